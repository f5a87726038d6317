"""What a server answers, as a tool's result."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from ...errors import ToolError
from ...loop.answers import ToolResult
from ...messages import File, Image, Part, Text
from ..texts import lines, one_line

if TYPE_CHECKING:
    from mcp import MCPError
    from mcp.types import CallToolResult

ERROR_TEXT: Final = 8 * 1024
"""Bytes of a text that a server wrote about an error, for the model."""

MESSAGE: Final = 300


def result_of(found: CallToolResult) -> ToolResult:
    """Text, pictures and files as parts; links as text with the address, which is never fetched."""
    parts = [part for block in found.content if (part := _part(block)) is not None]
    if found.is_error:
        text = "\n".join(part.text for part in parts if isinstance(part, Text)) or "the tool failed"
        return ToolResult(parts=(Text(_cut(text, ERROR_TEXT)),), is_error=True)
    return ToolResult(parts=tuple(parts) or (Text("(no output)"),), structured=found.structured_content)


def error_of(error: MCPError) -> ToolError:
    """An error of the protocol, as the model may read it."""
    return ToolError(f"The server refused the call (code {error.code}): {one_line(error.message)[:MESSAGE]}")


def _part(block: Any) -> Part | None:
    match block.type:
        case "text":
            return Text(lines(block.text)) if block.text else None
        case "image":
            return _binary(Image, block.data, block.mime_type)
        case "audio":
            return _binary(File, block.data, block.mime_type)
        case "resource_link":
            title = block.title or block.name
            return Text(
                one_line(f"[{title}] {block.uri}" + (f": {block.description}" if block.description else ""))
            )
        case "resource":
            held = block.resource
            name = str(held.uri).rsplit("/", 1)[-1][:200] or None
            mime = held.mime_type or ("text/plain" if hasattr(held, "text") else "application/octet-stream")
            if hasattr(held, "text"):
                return File(mime, data=held.text.encode(errors="replace"), filename=name)
            return _binary(File, held.blob, mime, filename=name)
        case _:
            return Text(f"(content of a kind that is not known here: {block.type})")


def _binary(kind: Any, data: str, mime: str, **more: Any) -> Part:
    try:
        part: Part = kind(mime, data=base64.b64decode(data, validate=True), **more)
    except (binascii.Error, ValueError):
        return Text("(content that cannot be read: no base64)")
    return part


def _cut(text: str, limit: int) -> str:
    data = text.encode(errors="replace")
    return text if len(data) <= limit else data[:limit].decode(errors="ignore") + "…"
