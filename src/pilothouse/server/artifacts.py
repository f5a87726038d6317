"""Artifacts over HTTP: what was too large for a fact, through a run that refers to it (SV-160).

Never by digest alone: equal bytes are stored once for all tenants, so knowing a digest must open nothing (SV-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from msgspec import Struct
from starlette.responses import Response

from ..messages import JSON, MEDIA, ArtifactRef
from .call import Call, answer
from .problems import Problem, not_found
from .scope import ScopedRun

HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "sandbox",
    "Cache-Control": "private, max-age=31536000, immutable",
    "Accept-Ranges": "bytes",
}
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_PAGE: Final = 500


class ArtifactsFace:
    """The routes of artifacts."""

    async def list(self, call: Call) -> Response:
        """What the run refers to, in the order in which it came."""
        found = await _found(await call.runs.run_of(call.params["run"]))
        items = [_view(ref, name) for ref, name in found.values()]
        return answer({"items": items, "next": None})

    async def get(self, call: Call) -> Response:
        """The bytes, or a range of them."""
        run = await call.runs.run_of(call.params["run"])
        known = (await _found(run)).get(call.params["digest"])
        if known is None:
            raise not_found()
        ref, name = known
        tag = f'"{ref.digest}"'
        headers = {**HEADERS, "ETag": tag, "Content-Disposition": _attachment(name or ref.digest[:16])}
        if tag in call.headers.get("if-none-match", ""):
            return Response(None, 304, headers)
        data = await run.blob(ref.digest)
        span = _span(call, len(data), tag)
        status = 200
        if span is not None:
            headers["Content-Range"] = f"bytes {span[0]}-{span[1] - 1}/{len(data)}"
            data, status = data[span[0] : span[1]], 206
        return Response(data, status, headers, ref.media_type or "application/octet-stream")


async def _found(run: ScopedRun) -> dict[str, tuple[ArtifactRef, str]]:
    """By digest; the first mention names it."""
    found: dict[str, tuple[ArtifactRef, str]] = {}

    def look(value: object) -> None:
        for ref, name in _refs(value):
            if ref.digest not in found or (name and not found[ref.digest][1]):
                found[ref.digest] = ref, name

    look(run.spec.base)
    look(run.spec.input)
    after = 0
    while records := await run.events(after, _PAGE):  # a page may end early, by its bytes
        for record in records:
            look(record.fact)
        after = records[-1].seq
    return found


def _refs(value: object) -> Iterator[tuple[ArtifactRef, str]]:
    """All references in a value, each with the name of the file that it is, where it is one."""
    if isinstance(value, ArtifactRef):
        yield value, ""
    elif isinstance(value, MEDIA):
        if value.artifact is not None:
            yield value.artifact, value.filename or ""
    elif isinstance(value, Struct):
        for field in value.__struct_fields__:
            yield from _refs(getattr(value, field))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _refs(item)


def _view(ref: ArtifactRef, name: str) -> JSON:
    return {
        "digest": ref.digest,
        "media_type": ref.media_type,
        "size": ref.bytes,
        "name": name,
        "preview": ref.preview,
    }


def _attachment(name: str) -> str:
    plain = re.sub(r"[^\w.\- ]", "_", name, flags=re.ASCII)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _span(call: Call, size: int, tag: str) -> tuple[int, int] | None:
    """The range that is asked for; None for everything. Several ranges, or a broken one, are answered whole.

    Raises:
        Problem: 416, it lies outside.
    """
    given = _RANGE.fullmatch(call.headers.get("range", "").replace(" ", ""))
    if given is None or given[0] == "bytes=-" or call.headers.get("if-range", tag) != tag:
        return None
    first, last = given[1], given[2]
    start = int(first) if first else max(size - int(last), 0)
    end = min(int(last) + 1, size) if first and last else size
    if start >= end:
        raise Problem(
            416, "bad_request", f"there are {size} bytes", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, end


__all__ = ["ArtifactsFace"]
