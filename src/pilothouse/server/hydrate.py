"""A thread as one JSON answer, for a page that was just opened (SV-156).

The only client that asks for it (TanStack AI) shows messages as lists of parts, a call and its result and the thoughts
before it inside the answer that they belong to. `content` holds the text, for readers that want nothing else. With
`?messages=agui` they come in the protocol's own words instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.agui.content import arguments_text, plain_text, result_text, visible
from ..messages import JSON, Message, Reasoning, Text, ToolCall
from ..records import HistoryMessage


def hydrated(path: Sequence[HistoryMessage]) -> list[dict[str, JSON]]:
    """The messages of a path, oldest first."""
    results = {entry.message.call_id: entry for entry in path if entry.message.role == "tool"}
    found: list[dict[str, JSON]] = []
    for entry in path:
        message = entry.message
        if message.role == "tool":
            continue
        parts = (
            _answer(message, results) if message.role == "assistant" else [_text(plain_text(message.parts))]
        )
        found.append({"id": message.id, "role": message.role, "content": message.text, "parts": parts})
    return found


def _text(text: str) -> JSON:
    return {"type": "text", "content": text}


def _answer(message: Message, results: dict[str | None, HistoryMessage]) -> list[JSON]:
    parts: list[JSON] = []
    for part in visible(message):
        if isinstance(part, Text):
            parts.append(_text(part.text))
        elif isinstance(part, Reasoning):
            parts.append({"type": "thinking", "content": part.text})
        elif isinstance(part, ToolCall):
            parts += _call(part, results.get(part.call_id))
    return parts


def _call(call: ToolCall, result: HistoryMessage | None) -> list[JSON]:
    shown: dict[str, JSON] = {
        "type": "tool-call",
        "id": call.call_id,
        "name": call.tool,
        "arguments": arguments_text(call) or "{}",
        "state": "input-complete",
    }
    if result is None:
        return [shown]
    message = result.message
    state = "error" if message.is_error else "complete"
    text = result_text(result.call_outcome or ("failed" if message.is_error else "succeeded"), message.parts)
    shown |= {"state": state, "output": text}
    told: dict[str, JSON] = {
        "type": "tool-result",
        "toolCallId": call.call_id,
        "content": text,
        "state": state,
    }
    if message.is_error:
        told["error"] = text
    return [shown, told]


__all__ = ["hydrated"]
