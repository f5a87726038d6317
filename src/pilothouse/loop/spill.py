"""Results that are too large for the transcript: kept as artifacts, with their ends in the transcript (TL-15)."""

from __future__ import annotations

from typing import Any, Final, final

import msgspec
from msgspec.structs import replace

from ..core.calls import text_parts
from ..errors import ToolError
from ..events import CallFinished
from ..messages import ArtifactRef, Part, Structured, Text
from .tools import Tool, tool
from .work import Work

HEAD: Final = 4_096
TAIL: Final = 2_048
"""Bytes of a large text that stay in the transcript, cut at characters."""
PREVIEW: Final = 2_000
"""Characters of an artifact's preview."""
MAX_READ: Final = 32_768
"""Bytes that one `read_artifact` gives."""


@final
class Spill:
    """Makes large results small enough."""

    def __init__(self, work: Work) -> None:
        self._work = work

    async def fit(self, end: CallFinished, tool: Tool | None) -> CallFinished:
        """The result as the transcript takes it: itself, if nothing of it is too large."""
        if len(end.content) > 1 and any(type(part) is ArtifactRef for part in end.content):
            self._work.spilled = True  # elsewhere: in the run that is played again
        limit = (tool and tool.spill_above) or self._work.plan.config.spill_above
        return await self._of(end, limit) if self._wants(end, limit) else end

    def _wants(self, end: CallFinished, limit: int) -> bool:
        """Whether a result may have a part that is too large; cheap, because nearly none has."""
        large = sum([len(part.text) for part in end.content if type(part) is Text])
        # A character has at most four bytes, and JSON data is as large as the text beside it.
        return large * 4 > limit or (large == 0 and any(type(part) is Structured for part in end.content))

    async def _of(self, end: CallFinished, limit: int) -> CallFinished:
        """The result with its large parts as artifacts; one that is too large for that is an error."""
        hard = self._work.plan.config.result_limit
        parts: list[Part] = []
        for part in end.content:
            body = _bytes_of(part)
            if body is None or len(body) <= limit:
                parts.append(part)
                continue
            if len(body) > hard:
                text = f"The tool ran; its result has {len(body)} bytes, more than the limit of {hard}."
                return replace(
                    end,
                    outcome="failed",
                    content=text_parts(text),
                    is_error=True,
                    reason="bad_result",
                    error="bad_result",
                )
            parts += await self._spilled(part, body, alone=len(end.content) == 1)
        return replace(end, content=tuple(parts))

    async def _spilled(self, part: Part, body: bytes, *, alone: bool) -> list[Part]:
        if isinstance(part, Structured) and not alone:  # the text beside it says the same
            return []
        self._work.spilled = True
        ref = await self._work.port.put_artifact(body, "text/plain")
        head, tail = _cut(body[:HEAD], front=True), _cut(body[-TAIL:], front=False)
        left_out = len(body) - len(head.encode()) - len(tail.encode())
        middle = (
            f"\n[… {left_out} of {len(body)} bytes left out; read_artifact(id={ref.digest!r}) has all …]\n"
        )
        return [Text(head + middle + tail), replace(ref, preview=head[:PREVIEW])]


def _bytes_of(part: Part) -> bytes | None:
    if isinstance(part, Text):
        return part.text.encode("utf-8", "replace")
    if isinstance(part, Structured):
        return msgspec.json.encode(part.data)
    return None


def _cut(body: bytes, *, front: bool) -> str:
    """A piece of a text without the half characters at its border."""
    if front:
        return body.decode("utf-8", "ignore")
    start = 0
    while start < len(body) and start < 4 and body[start] & 0xC0 == 0x80:
        start += 1
    return body[start:].decode("utf-8", "ignore")


def reader(work: Work) -> Tool:
    """The tool with which a model reads what was spilled in its thread, and nothing else."""

    @tool(effect="read", approval=False)
    async def read_artifact(id: str, offset: int = 0, length: int = MAX_READ) -> str:
        """Reads a part of a large result that was left out.

        Args:
            id: The artifact's id, as in the result.
            offset: Bytes to skip.
            length: Bytes to read, at most 32768.
        """
        if not any(_holds(part, id) for message in work.context for part in message.parts):
            raise ToolError(f"There is no artifact {id!r} in this conversation.")
        body = await work.port.get_artifact(id)
        start = max(0, offset)
        piece = body[start : start + min(max(0, length), MAX_READ)]
        rest = len(body) - start - len(piece)
        text = _cut(piece, front=False) if start else piece.decode("utf-8", "ignore")
        return text + (f"\n[{rest} bytes follow]" if rest > 0 else "")

    return read_artifact


def _holds(part: Any, digest: str) -> bool:
    return isinstance(part, ArtifactRef) and part.digest == digest
