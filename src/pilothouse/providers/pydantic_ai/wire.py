"""Messages as Pydantic AI's and back from its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pydantic_ai.messages as theirs

from ...core.pairing import is_blank
from ...core.unicode import clean
from ...messages import (
    JSON,
    MEDIA,
    Audio,
    Image,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Video,
)
from ..content import CannotCarry, argument_object, describe, is_empty, result_text, text_file, texts_of
from ..frames import mapping

_KEPT: Final = ("id", "signature", "provider_name", "provider_details")
"""Fields of their parts that must go back unchanged."""

_URLS: Final = {Image: theirs.ImageUrl, Audio: theirs.AudioUrl, Video: theirs.VideoUrl}


def to_theirs(
    messages: Sequence[Message], system_prompt: str | None, tag: str
) -> list[theirs.ModelRequest | theirs.ModelResponse]:
    """The messages, paired already, as requests and responses that take turns.

    Raises:
        CannotCarry: a part that cannot be sent.
    """
    names = {call.call_id: call.tool for message in messages for call in message.tool_calls}
    out: list[theirs.ModelRequest | theirs.ModelResponse] = []
    asked: list[Any] = []
    if system_prompt is not None and not is_empty(system_prompt):
        asked.append(theirs.SystemPromptPart(clean(system_prompt)))
    for message in messages:
        if is_blank(message):
            continue
        if message.role == "assistant":
            if parts := [part for one in message.parts for part in _said(one, tag)]:
                if asked:
                    out.append(theirs.ModelRequest(parts=asked))
                    asked = []
                out.append(theirs.ModelResponse(parts=parts))
        elif message.role == "system":
            asked.append(theirs.SystemPromptPart("\n\n".join(texts_of(message.parts))))
        elif message.role == "tool":
            call_id = message.call_id or ""
            asked.append(
                theirs.ToolReturnPart(names.get(call_id, ""), result_text(message), tool_call_id=call_id)
            )
            if message.attachments:
                asked.append(theirs.UserPromptPart([_media(part) for part in message.attachments]))
        else:
            asked.append(theirs.UserPromptPart(_content(message)))
    if asked:
        out.append(theirs.ModelRequest(parts=asked))
    return out


def _said(part: Part, tag: str) -> list[Any]:
    match part:
        case Reasoning():
            kept = mapping(part.raw)
            if part.tag != tag or not (kept.get("signature") or kept.get("provider_details")):
                return []
            return [
                theirs.ThinkingPart(clean(part.text), **{name: kept[name] for name in _KEPT if name in kept})
            ]
        case ToolCall():
            if not part.tool:
                return []
            data = mapping(part.provider_data)
            kept = (
                {name: data[name] for name in _KEPT[:1] + _KEPT[2:] if name in data}
                if data.get("tag") == tag
                else {}
            )
            return [theirs.ToolCallPart(part.tool, argument_object(part), tool_call_id=part.call_id, **kept)]
        case Text():
            return [] if is_empty(part.text) else [theirs.TextPart(clean(part.text))]
        case _ if isinstance(part, MEDIA):
            return [theirs.TextPart(f"[{describe(part)}]")]
        case _:
            return [theirs.TextPart(text) for text in texts_of([part])]


def _content(message: Message) -> Any:
    if not message.attachments:
        return "\n\n".join(texts_of(message.parts))
    out: list[Any] = []
    for part in message.parts:
        if isinstance(part, MEDIA):
            out.append(_media(part))
        else:
            out.extend(texts_of([part]))
    return out


def _media(part: Media) -> Any:
    if (text := text_file(part)) is not None:
        return text
    if part.data is not None:
        return theirs.BinaryContent(part.data, media_type=part.mime_type)
    if part.url is None:
        raise CannotCarry(
            f"cannot send {describe(part)} through Pydantic AI because its bytes are not loaded"
        )
    return _URLS.get(type(part), theirs.DocumentUrl)(part.url)


def kept_of(part: Any) -> dict[str, JSON] | None:
    """What of one of their parts must go back, as JSON; None if nothing."""
    kept = {name: value for name in _KEPT if (value := getattr(part, name, None)) is not None}
    return kept or None


__all__ = ["kept_of", "to_theirs"]
