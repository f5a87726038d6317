"""The built page as static files, and what stands there instead if it was not built."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from .problems import not_found

STATIC: Final = Path(__file__).with_name("static")

_POLICY: Final = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""What a model writes is shown on the page: it can load nothing from elsewhere, so it can send nothing there."""

_HEADERS: Final = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)

_UNBUILT: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Pilothouse</title></head>
<body style="font:1rem/1.5 system-ui;max-width:40rem;margin:4rem auto;padding:0 1rem">
<h1>Pilothouse is running, its page is not built</h1>
<p>The page's source is in <code>web/</code> of the repository. <code>./dev page</code> builds it (it needs Node, and
fetches one if there is none); installed wheels have it built in.</p>
<p>Everything else works: the AG-UI endpoint at <code>agui</code>, the run control API at <code>v1</code>, and
<code>pilothouse chat</code> in a terminal.</p>
</body></html>
"""


class Page:
    """Serves the page at `/` and its files beside it; an ASGI application for GET and HEAD."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._folder = folder
        self._files: StaticFiles | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        """Sends the file at `path` (decoded, beginning with a slash)."""
        if not (self._folder / "index.html").is_file():
            if path != "/":
                raise not_found()
            await HTMLResponse(_UNBUILT)(scope, receive, _with_headers(send, b"no-cache"))
            return
        if self._files is None:
            self._files = StaticFiles(directory=self._folder, html=True)
        name = path.strip("/") or "index.html"
        try:
            response = await self._files.get_response(name, scope)
        except HTTPException as error:
            raise not_found() from error
        if response.status_code == 404:
            raise not_found()
        # Names of assets hold a digest of their content, so they never change.
        fixed = b"public, max-age=31536000, immutable" if name.startswith("assets/") else b"no-cache"
        await response(scope, receive, _with_headers(send, fixed))


def _with_headers(send: Send, cache: bytes) -> Send:
    async def sending(message: Scope) -> None:
        if message["type"] == "http.response.start":
            kept = [pair for pair in message.get("headers", ()) if pair[0] != b"cache-control"]
            message["headers"] = [*kept, *_HEADERS, (b"cache-control", cache)]
        await send(message)

    return sending


__all__ = ["STATIC", "Page"]
