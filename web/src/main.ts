import "./parts/app";
