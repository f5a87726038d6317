import { defineConfig, type Plugin } from "vite";

// The page needs nothing from anywhere else. `connect-src` covers the streams; remote images stay out, because an
// image address in an answer would tell another host what was said. (In `vite dev` styles are injected: no policy.)
const POLICY = [
  "default-src 'none'",
  "script-src 'self'",
  "style-src 'self'",
  "img-src 'self' data: blob:",
  "connect-src 'self'",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");

const contentSecurityPolicy: Plugin = {
  name: "content-security-policy",
  apply: "build",
  transformIndexHtml: () => [
    { tag: "meta", attrs: { "http-equiv": "Content-Security-Policy", content: POLICY }, injectTo: "head-prepend" },
  ],
};

// The AG-UI client checks shapes with zod, which tries once whether it may make code from strings. The policy says no, and
// the browser reports the attempt as an error at every load. With this setting zod does not try.
const noCodeFromStrings: Plugin = {
  name: "no-code-from-strings",
  apply: "build",
  transform(code, id) {
    if (!id.endsWith("/zod/v4/core/core.js")) return null;
    const set = code.replace("globalConfig = {}", "globalConfig = { jitless: true }");
    if (set === code) this.error("zod keeps its settings elsewhere now");
    return set;
  },
};

export default defineConfig({
  base: "./", // works mounted under any prefix
  plugins: [contentSecurityPolicy, noCodeFromStrings],
  build: {
    outDir: "../src/pilothouse/server/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    chunkSizeWarningLimit: 1200,
  },
  server: {
    proxy: Object.fromEntries(["/agui", "/v1", "/healthz"].map((path) => [path, "http://127.0.0.1:8000"])),
  },
});
