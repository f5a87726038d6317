"""What a surface fetches of AI controllers over HTTP: rows of a grid, the spec of a chart (SV-165).

Read-only: it opens the thread's conversation, as a send would, and begins no run.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from starlette.responses import Response

from ..errors import InvalidTarget
from .call import Call, answer
from .problems import invalid, not_found

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox",
    "Cache-Control": "private, no-store",
}
_INLINE: Final = frozenset({"image/png"})
"""What a browser may show by itself; a picture in SVG may run scripts."""


class ExportsFace:
    """The routes of AI controllers."""

    async def list(self, call: Call) -> Response:
        """AI controllers of the thread's agent that have something to fetch."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        if not await call.runs.may_export(thread):
            return answer({"items": []})
        async with call.runs.visit(thread) as conversation:
            items = [{"key": key, "exports": [*names]} for key, names in conversation.exports.items()]
        return answer({"items": items})

    async def get(self, call: Call) -> Response:
        """One export, for the query parameters that it takes."""
        thread = await call.runs.thread(call.params["thread"], known=True)
        key, name = call.params["key"], call.params["export"]
        async with call.runs.visit(thread) as conversation:
            try:
                found = await conversation.export(key, name, dict(call.query))
            except InvalidTarget:
                raise not_found() from None
            except ValueError as error:
                raise invalid(("", str(error))) from None
        kind = "inline" if found.media_type in _INLINE else "attachment"
        filename = quote(found.filename or f"{key}-{name}", safe="")
        headers = {**HEADERS, "Content-Disposition": f"{kind}; filename*=UTF-8''{filename}"}
        return Response(found.data, 200, headers, found.media_type)


__all__ = ["ExportsFace"]
