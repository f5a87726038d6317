"""Whole messages and calls as events, and the notes that are shown and forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ...events import CallHeartbeat, CallProgress, Extension, Progress
from ...messages import UNSET, Message
from . import events as agui
from .content import arguments_text, plain_text
from .events import Event


class Note(NamedTuple):
    """Something ephemeral; `key` says of what it may be thinned out."""

    event: Event
    key: str | None = None


def whole(message: Message) -> Iterator[Event]:
    """A message at once."""
    assert message.role != "tool"
    yield agui.TextMessageStart(message.id, message.role)
    if text := plain_text(message.parts):
        yield agui.TextMessageContent(message.id, text)
    yield agui.TextMessageEnd(message.id)
    for part in message.tool_calls:
        yield from call(part.call_id, part.tool, arguments_text(part), message.id)


def call(call_id: str, tool: str, arguments: str, parent: str | None) -> Iterator[Event]:
    """A call at once."""
    yield agui.ToolCallStart(call_id, tool, UNSET if parent is None else parent)
    if arguments:
        yield agui.ToolCallArgs(call_id, arguments)
    yield agui.ToolCallEnd(call_id)


def _progress(body: CallProgress) -> Note:
    said: dict[str, Any] = {"id": body.call_id, "phase": "progress", "text": body.text}
    if body.fraction is not None:
        said["fraction"] = body.fraction
    return Note(agui.Custom("pilothouse.tool", said), body.call_id)


def _heartbeat(body: CallHeartbeat) -> Note:
    said = {"id": body.call_id, "phase": "running", "elapsed_ms": body.elapsed_ms}
    return Note(agui.Custom("pilothouse.tool", said), body.call_id)


def _run_progress(body: Progress) -> Note:
    said: dict[str, Any] = {"text": body.text}
    if body.fraction is not None:
        said["fraction"] = body.fraction
    return Note(agui.Custom("pilothouse.progress", said), "")


def _extension(body: Extension) -> Note:
    return Note(agui.Custom(body.name, body.data))


EPHEMERAL: Final[Mapping[type, Callable[[Any], Note]]] = MappingProxyType(
    {
        CallProgress: _progress,
        CallHeartbeat: _heartbeat,
        Progress: _run_progress,
        Extension: _extension,
    }
)
"""Deltas that are shown and forgotten; the others carry text or concern the connection alone."""


__all__ = ["EPHEMERAL", "Note", "call", "whole"]
