"""Our messages in the words of AG-UI.

A message keeps its id; its reasoning is a message of its own with an id derived from it, so that no client glues the
answer to the thought (SV-78). What the protocol cannot carry (context that the application added, structured values)
is left out: interfaces skip it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET

from ...messages import (
    MEDIA,
    ArtifactRef,
    Audio,
    CallOutcome,
    Image,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Video,
)
from ...records import HistoryMessage
from . import events as agui
from .events import AGUIMessage, Profile

_LEDGER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "failed": "Error",
        "cancelled": "Cancelled",
        "refused": "Refused",
        "unknown": "Outcome unknown",
    }
)
"""What the text of a result says first where it is no success: the protocol has no other place for it."""


def reasoning_id(message_id: str, number: int) -> str:
    """Id of the reasoning that is part `number` of a message, counting what a reader can see."""
    return f"{message_id}:reasoning-{number}"


def sealed(message: Message) -> Iterator[agui.ReasoningEncryptedValue]:
    """What of a message's reasoning only its provider can read, for a client that hands it back."""
    for number, part in enumerate(visible(message)):
        if isinstance(part, Reasoning) and part.raw is not None:
            value = part.raw if isinstance(part.raw, str) else msgspec.json.encode(part.raw).decode()
            yield agui.ReasoningEncryptedValue("message", reasoning_id(message.id, number), value)


def visible(message: Message) -> Iterator[Part]:
    """The parts of an assistant message that a stream shows, in order: text, reasoning, calls."""
    for part in message.parts:
        if isinstance(part, Text | Reasoning):
            if part.text:
                yield part
        elif isinstance(part, ToolCall) and part.tool:
            yield part


def arguments_text(call: ToolCall) -> str:
    """The argument text of a call, as the model wrote it where that is known."""
    if call.raw_arguments:
        return call.raw_arguments
    return msgspec.json.encode(call.arguments).decode() if call.arguments else ""


def plain_text(parts: Iterable[Part]) -> str:
    """Text of a message or result; what is too large is its preview, other things are named."""
    pieces = []
    for part in parts:
        if isinstance(part, Text):
            pieces.append(part.text)
        elif isinstance(part, ArtifactRef):
            pieces.append(part.preview)
        elif isinstance(part, MEDIA):
            pieces.append(f"[{part.filename or part.mime_type}]")
    return "".join(pieces)


def result_text(outcome: CallOutcome | str, content: Iterable[Part]) -> str:
    """Text of a call's result, which says so where the call did not succeed."""
    text = plain_text(content)
    word = _LEDGER.get(outcome)
    if word is None or text[: len(word)].lower() == word.lower():
        return text
    return f"{word}: {text}" if text else word


# A path as a snapshot


def snapshot(path: Sequence[HistoryMessage], *, profile: Profile) -> list[AGUIMessage]:
    """The messages of a path, interrupted ones included, reasoning in front of the answer that it led to.

    Reasoning is always in it: some clients drop what a snapshot does not hold.
    """
    found: list[AGUIMessage] = []
    for entry in path:
        message = entry.message
        if message.role == "assistant":
            found += _thoughts(message)
            found.append(_assistant(message))
        elif message.role == "tool":
            found.append(_result(entry))
        elif message.role == "user":
            found.append(agui.UserMessage(message.id, _content(message, profile)))
        else:
            found.append(agui.SystemMessage(message.id, message.text))
    return found


def _thoughts(message: Message) -> Iterator[AGUIMessage]:
    for number, part in enumerate(visible(message)):
        if isinstance(part, Reasoning):
            yield agui.ReasoningMessage(reasoning_id(message.id, number), part.text)


def _assistant(message: Message) -> agui.AssistantMessage:
    calls = [
        agui.ToolCall(call.call_id, agui.FunctionCall(call.tool, arguments_text(call) or "{}"), "function")
        for call in message.tool_calls
        if call.tool
    ]
    text = message.text
    return agui.AssistantMessage(
        message.id, content=text if text or not calls else UNSET, tool_calls=calls or UNSET
    )


def _result(entry: HistoryMessage) -> agui.ToolMessage:
    message = entry.message
    outcome = entry.call_outcome or ("failed" if message.is_error else "succeeded")
    text = result_text(outcome, message.parts)
    error = text if message.is_error else UNSET
    return agui.ToolMessage(message.id, text, message.call_id or "", error=error)


def _content(message: Message, profile: Profile) -> agui.Content:
    if not message.attachments:
        return message.text
    parts: list[agui.ContentPart] = []
    for part in message.parts:
        if isinstance(part, Text):
            parts.append(agui.TextPart(part.text))
        elif isinstance(part, MEDIA) and (media := _media(part, profile)) is not None:
            parts.append(media)
    return parts


def _media(part: Media, profile: Profile) -> agui.ContentPart | None:
    data = None if part.data is None else b64encode(part.data).decode()
    if data is None and part.url is None:
        return None  # kept as an artifact: fetched by its own address
    if profile == "legacy":
        return agui.BinaryPart(part.mime_type, part.url or UNSET, data or UNSET, part.filename or UNSET)
    source: agui.Source = (
        agui.DataSource(data, part.mime_type)
        if data is not None
        else agui.UrlSource(part.url or "", part.mime_type)
    )
    match part:
        case Image():
            return agui.ImagePart(source)
        case Audio():
            return agui.AudioPart(source)
        case Video():
            return agui.VideoPart(source)
        case _:
            return agui.DocumentPart(source)


__all__ = ["arguments_text", "plain_text", "reasoning_id", "result_text", "snapshot", "visible"]
