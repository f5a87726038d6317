"""Proxies that people put in front of a server, as processes with the settings that the docs show."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Self

NGINX = """
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
events {{ worker_connections 64; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  gzip on; gzip_types text/plain application/json; gzip_min_length 0; gzip_proxied any;
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $http_host;
      proxy_read_timeout {idle}s;
      {more}
    }}
  }}
}}
"""

HAPROXY = """
defaults
  mode http
  timeout connect 5s
  timeout client {idle}s
  timeout server {idle}s
frontend in
  bind 127.0.0.1:{port}
  option forwardfor
  http-request set-header X-Forwarded-Proto http
  http-request set-header X-Forwarded-Host %[req.hdr(host)]
  default_backend out
backend out
  server one 127.0.0.1:{upstream}
"""

CADDY = """
{{
  admin off
  auto_https off
}}
http://127.0.0.1:{port} {{
  encode {{
    gzip
    match {{
      header Content-Type application/json*
      header Content-Type text/html*
    }}
  }}
  reverse_proxy 127.0.0.1:{upstream} {{
    transport http {{
      read_timeout {idle}s
    }}
  }}
}}
"""

_FORMS = {
    "nginx": (NGINX, ["nginx", "-p", "{folder}", "-c", "{config}", "-g", "daemon off; master_process off;"]),
    "haproxy": (HAPROXY, ["haproxy", "-db", "-f", "{config}"]),
    "caddy": (CADDY, ["caddy", "run", "--adapter", "caddyfile", "--config", "{config}"]),
}


class Proxy:
    """A proxy in front of a port, with an idle limit in seconds. A context manager."""

    def __init__(self, kind: str, upstream: int, folder: Path, *, idle: int = 60, more: str = "") -> None:
        form, self._command = _FORMS[kind]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._names = {"folder": str(folder), "config": str(folder / "config")}
        self._log = folder / "log"
        text = form.format(port=self.port, upstream=upstream, folder=folder, idle=idle, more=more)
        (folder / "config").write_text(text)

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            command = [part.format(**self._names) for part in self._command]
            home = {"HOME": self._names["folder"], "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=home)
        ends = time.monotonic() + 20
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
            except OSError:
                continue
            return self
        self.__exit__()
        raise AssertionError(f"the proxy does not answer: {self._log.read_text()[-2000:]}")

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.wait(20)
