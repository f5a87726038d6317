"""Cross-origin rules (SV-240): preflights, and the headers on every answer, errors too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Scope, Send

from .settings import CORS

ALLOWED: Final = "Authorization, Content-Type, Accept, Last-Event-ID, Idempotency-Key, X-Run-Id, traceparent"
EXPOSED: Final = "Location, Retry-After, Pilothouse-Run-Id, Pilothouse-Thread-Id, Idempotent-Replayed"
METHODS: Final = "GET, POST, PATCH, DELETE, OPTIONS"


def preflight(cors: CORS, headers: Mapping[str, str]) -> Response | None:
    """The answer to a preflight, without a token; None if the request is none."""
    origin = headers.get("origin")
    if origin is None or "access-control-request-method" not in headers:
        return None
    if not cors.allows(origin):
        return Response(status_code=403)
    found = {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": ALLOWED,
        "Access-Control-Max-Age": str(cors.max_age),
    }
    return Response(status_code=204, headers=found)


def with_headers(cors: CORS, headers: Mapping[str, str], send: Send) -> Send:
    """Adds the headers that let an allowed page read the answer."""
    origin = headers.get("origin")
    anybody = cors.origins == ("*",)
    # Without `Vary` a cache gives one origin's answer to another.
    added = [] if anybody else [(b"vary", b"Origin")]
    if origin is not None and cors.allows(origin):
        shown = "*" if anybody else origin
        added += [
            (b"access-control-allow-origin", shown.encode("latin-1")),
            (b"access-control-expose-headers", EXPOSED.encode()),
        ]
        if cors.allow_credentials:
            added.append((b"access-control-allow-credentials", b"true"))

    async def sending(message: Scope) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return sending


__all__ = ["preflight", "with_headers"]
