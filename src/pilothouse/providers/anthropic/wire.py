"""Messages to the `messages` list of Anthropic Messages and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...core.assembly import judge_arguments
from ...core.pairing import WireRules, is_blank
from ...core.unicode import clean, clean_json
from ...messages import (
    JSON,
    MEDIA,
    Context,
    File,
    Image,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
)
from ..content import (
    CONTINUED,
    CannotCarry,
    argument_object,
    describe,
    encode_body,
    inline,
    is_empty,
    result_groups,
    result_text,
    text_file,
    texts_of,
    wire_name,
)
from ..frames import mapping, objects, word

TAG: Final = "anthropic"
RULES: Final = WireRules("A-Za-z0-9_-", 64)
_DIALECT: Final = "Anthropic"
_NOT_OPAQUE: Final = ("text", "tool_use", "tool_result", "image", "document")
"""Kinds that are written from parts of their own, or by the user only."""


def to_wire(messages: Sequence[Message], tag: str = TAG) -> list[dict[str, JSON]]:
    """The messages as the dialect wants them. They are paired already; leading system messages are not in it.

    Raises:
        CannotCarry: a part that the dialect cannot send.
    """
    rest = messages[len(leading_system(messages)) :]
    out: list[dict[str, JSON]] = []
    for item in result_groups([message for message in rest if not is_blank(message)]):
        if isinstance(item, list):
            out.append({"role": "user", "content": [_result(message) for message in item]})
        elif item.role == "assistant":
            if blocks := _assistant(item, tag):
                out.append({"role": "assistant", "content": blocks})
        else:
            out.append(
                {"role": "user", "content": [block for part in item.parts for block in _user_blocks(part)]}
            )
    if out and out[0]["role"] != "user":
        out.insert(0, {"role": "user", "content": [{"type": "text", "text": CONTINUED}]})
    return out


def leading_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages before anything else: they belong into the request's system prompt."""
    out = []
    for message in messages:
        if message.role != "system":
            break
        out.append(message)
    return out


def _assistant(message: Message, tag: str) -> list[JSON]:
    blocks: list[JSON] = []
    for part in message.parts:
        match part:
            case Reasoning():
                if part.tag == tag and _goes_back(part.raw):
                    blocks.append(clean_json(part.raw))
            case ToolCall():
                if part.tool:
                    call_id = RULES.wire_id(part.call_id)
                    blocks.append(
                        {
                            "type": "tool_use",
                            "id": call_id,
                            "name": wire_name(part.tool, 128),
                            "input": argument_object(part),
                        }
                    )
            case _ if isinstance(part, MEDIA):
                blocks.append({"type": "text", "text": f"[{describe(part)}]"})
            case _:
                blocks.extend(_text_blocks(part))
    return blocks


def _goes_back(raw: JSON) -> bool:
    """Whether a stored block is signed, or is none that needs a signature (PV-7)."""
    kind = mapping(raw).get("type")
    if kind == "thinking":
        return bool(raw.get("signature"))
    if kind == "redacted_thinking":
        return bool(raw.get("data"))
    return bool(kind) and kind not in _NOT_OPAQUE


def _result(message: Message) -> dict[str, JSON]:
    media = message.attachments
    content: JSON = result_text(message)
    if media:
        texts = texts_of(message.parts)
        content = [*[{"type": "text", "text": text} for text in texts], *[_media(part) for part in media]]
    out: dict[str, JSON] = {
        "type": "tool_result",
        "tool_use_id": RULES.wire_id(message.call_id or ""),
        "content": content,
    }
    if message.is_error:
        out["is_error"] = True
    return out


def _user_blocks(part: Part) -> list[JSON]:
    return [_media(part)] if isinstance(part, MEDIA) else _text_blocks(part)


def _text_blocks(part: Part) -> list[JSON]:
    return [{"type": "text", "text": text} for text in texts_of([part])]


def _media(part: Media) -> JSON:
    if (text := text_file(part)) is not None:
        return {"type": "text", "text": text}
    match part:
        case Image():
            return {"type": "image", "source": _source(part)}
        case File(mime_type="application/pdf"):
            named = {"title": clean(part.filename)} if part.filename else {}
            return {"type": "document", "source": _source(part), **named}
        case _:
            raise CannotCarry(f"cannot send {describe(part)} to {_DIALECT}")


def _source(part: Media) -> JSON:
    if part.url is not None and not part.url.startswith("data:"):
        return {"type": "url", "url": part.url}
    if part.url is not None:
        head, _, data = part.url.partition(",")
        return {"type": "base64", "media_type": head[5:].partition(";")[0] or part.mime_type, "data": data}
    return {"type": "base64", "media_type": part.mime_type, "data": inline(part, _DIALECT)}


# And back


def from_wire(stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of a stored `messages` list, broken ones included."""
    out: list[Message] = []
    for number, item in enumerate(stored):
        content = item.get("content")
        blocks = _blocks(content)
        if item.get("role") == "assistant":
            parts = tuple(_assistant_part(block) for block in blocks)
            # What holds nothing but blocks of the provider's own was a pause: it goes back (see `is_blank`).
            paused = bool(parts) and all(
                isinstance(part, Reasoning) and part.raw is not None for part in parts
            )
            out.append(
                Message(f"wire-{number}", "assistant", parts, stop_reason="pause_turn" if paused else None)
            )
            continue
        rest = []
        for place, block in enumerate(blocks):
            if block.get("type") == "tool_result":
                out.append(_read_result(block, f"wire-{number}-{place}"))
            else:
                rest.append(_user_part(block))
        if rest or not blocks:
            out.append(Message(f"wire-{number}", "user", tuple(rest)))
    return out


def _blocks(content: JSON) -> list[dict[str, JSON]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else objects(content)


def _assistant_part(block: dict[str, JSON]) -> Part:
    match block.get("type"):
        case "text":
            return Text(word(block.get("text")))
        case "thinking":
            raw = block if _goes_back(block) else None
            return Reasoning(word(block.get("thinking")), raw, TAG if raw is not None else "")
        case "redacted_thinking":
            return Reasoning("", block, TAG, redacted=True)
        case "tool_use":
            given = block.get("input")
            raw_text = (
                given if isinstance(given, str) else "" if given is None else encode_body(given).decode()
            )
            value, why = judge_arguments(raw_text)
            return ToolCall(word(block.get("id")), word(block.get("name")), value, raw_text, why)
        case _:
            return Reasoning("", block, TAG)


def _read_result(block: dict[str, JSON], message_id: str) -> Message:
    items = _blocks(block.get("content"))
    return Message(
        message_id,
        "tool",
        tuple(_user_part(item) for item in items),
        call_id=word(block.get("tool_use_id")),
        is_error=bool(block.get("is_error")),
    )


def _user_part(block: dict[str, JSON]) -> Part:
    source = mapping(block.get("source"))
    match block.get("type"):
        case "text":
            return Text(word(block.get("text")))
        case "image":
            return _read_media(Image(word(source.get("media_type")) or "image/*"), source)
        case "document":
            return _read_media(File(word(source.get("media_type")) or "application/pdf"), source)
        case _:
            return Context(encode_body(block).decode())


def _read_media(part: Image | File, source: dict[str, JSON]) -> Part:
    address = word(source.get("url")) or f"data:{part.mime_type};base64,{word(source.get('data'))}"
    return msgspec.structs.replace(part, url=address)


def system_blocks(prompt: str | None, messages: Sequence[Message]) -> list[dict[str, JSON]]:
    """The system prompt and the leading system messages as text blocks."""
    texts = [] if prompt is None or is_empty(prompt) else [clean(prompt)]
    texts += [text for message in leading_system(messages) for text in texts_of(message.parts)]
    return [{"type": "text", "text": text} for text in texts]


__all__ = ["RULES", "TAG", "from_wire", "leading_system", "system_blocks", "to_wire"]
