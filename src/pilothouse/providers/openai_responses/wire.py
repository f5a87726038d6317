"""Messages to the `input` list of OpenAI Responses and back. Nothing is stored there: every item goes whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

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
    Role,
    Text,
    ToolCall,
)
from ..content import (
    CannotCarry,
    argument_text,
    data_url,
    describe,
    encode_body,
    inline,
    is_empty,
    result_text,
    text_file,
    texts_of,
    wire_name,
)
from ..frames import mapping, objects, raw_text, word

TAG: Final = "openai-responses"
RULES: Final = WireRules("A-Za-z0-9_-", 64)
_OF_MCP: Final = ("mcp_list_tools", "mcp_approval_request")
_DIALECT: Final = "OpenAI Responses"


def to_wire(messages: Sequence[Message], tag: str = TAG) -> list[dict[str, JSON]]:
    """The messages as input items. They are paired already.

    Raises:
        CannotCarry: a part that the dialect cannot send.
    """
    out: list[dict[str, JSON]] = []
    for message in messages:
        if is_blank(message):
            continue
        if message.role == "assistant":
            out.extend(_followed([item for part in message.parts for item in _items(part, tag)]))
        elif message.role == "tool":
            out.append(
                {
                    "type": "function_call_output",
                    "call_id": RULES.wire_id(message.call_id or ""),
                    "output": _output(message),
                }
            )
        elif message.role == "system":
            out.append({"role": "developer", "content": "\n\n".join(texts_of(message.parts))})
        else:
            out.append({"role": "user", "content": _user_content(message)})
    return out


def _items(part: Part, tag: str) -> Iterator[dict[str, JSON]]:
    match part:
        case Reasoning():
            if part.tag == tag and _goes_back(part.raw):
                yield clean_json(part.raw)
        case ToolCall():
            if part.tool:
                yield {
                    **_kept(part.provider_data, tag),
                    "type": "function_call",
                    "arguments": argument_text(part),
                    "call_id": RULES.wire_id(part.call_id),
                    "name": wire_name(part.tool),
                }
        case Text():
            if not is_empty(part.text):
                yield _spoken(part, tag)
        case _ if isinstance(part, MEDIA):
            yield {"role": "assistant", "content": f"[{describe(part)}]"}
        case _:
            for text in texts_of([part]):
                yield {"role": "assistant", "content": text}


def _spoken(part: Text, tag: str) -> dict[str, JSON]:
    """An assistant's text: the item as it came, where it is one of this provider's, else a plain message."""
    kept = _kept(part.provider_data, tag)
    if not kept.get("id"):
        return {"role": "assistant", "content": clean(part.text)}
    content = [{"type": "output_text", "text": clean(part.text), "annotations": []}]
    return {**kept, "type": "message", "role": "assistant", "content": content}


def _kept(data: JSON, tag: str) -> dict[str, JSON]:
    """The fields of an item beside those that its part has; no id is invented [086]."""
    fields = mapping(data)
    kept: dict[str, JSON] = clean_json(mapping(fields.get("item"))) if fields.get("tag") == tag else {}
    return kept


def _goes_back(raw: JSON) -> bool:
    """Whether a stored item can be sent: a thought whose content is neither encrypted nor here cannot."""
    fields = mapping(raw)
    if fields.get("type") == "reasoning":
        return bool(fields.get("encrypted_content") or fields.get("content"))
    return bool(fields.get("type"))


def _followed(items: list[dict[str, JSON]]) -> list[dict[str, JSON]]:
    """Without thoughts that led to nothing: one goes back directly before what it led to, or not at all [087]."""
    kept: list[dict[str, JSON]] = []
    for item in reversed(items):
        if item.get("type") != "reasoning" or (kept and _is_led_to(kept[-1])):
            kept.append(item)
    return kept[::-1]


def _is_led_to(item: dict[str, JSON]) -> bool:
    kind = word(item.get("type"))
    return kind in ("reasoning", *_OF_MCP) or kind.endswith("_call") or item.get("role") == "assistant"


def _output(message: Message) -> JSON:
    if not message.attachments:
        return result_text(message)
    texts: list[JSON] = [{"type": "input_text", "text": text} for text in texts_of(message.parts)]
    return texts + [_media(part) for part in message.attachments]


def _user_content(message: Message) -> JSON:
    if not message.attachments:
        return "\n\n".join(texts_of(message.parts))
    parts: list[JSON] = []
    for part in message.parts:
        if isinstance(part, MEDIA):
            parts.append(_media(part))
        else:
            parts.extend({"type": "input_text", "text": text} for text in texts_of([part]))
    return parts


def _media(part: Media) -> JSON:
    if (text := text_file(part)) is not None:
        return {"type": "input_text", "text": text}
    match part:
        case Image():
            return {"type": "input_image", "image_url": data_url(part, _DIALECT), "detail": "auto"}
        case File(url=str(url)):
            return {"type": "input_file", "file_url": url}
        case File():
            data = f"data:{part.mime_type};base64,{inline(part, _DIALECT)}"
            return {"type": "input_file", "filename": clean(part.filename or "file"), "file_data": data}
        case _:
            raise CannotCarry(f"cannot send {describe(part)} to {_DIALECT}")


# And back


def from_wire(stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of a stored `input` list, broken ones included. Neighbouring items of the model are one message."""
    out: list[Message] = []
    said: list[Part] = []
    for number, item in enumerate(stored):
        kind = item.get("type", "message")
        role = item.get("role")
        if kind == "function_call_output" or (kind == "message" and role != "assistant"):
            _flush(said, number, out)
            out.append(_read(item, f"wire-{number}"))
        else:
            said += _model_parts(item)
    _flush(said, len(stored), out)
    return out


def _flush(said: list[Part], number: int, out: list[Message]) -> None:
    if said:
        out.append(Message(f"wire-{number}-said", "assistant", tuple(said)))
        said.clear()


def _read(item: Mapping[str, Any], message_id: str) -> Message:
    if item.get("type") == "function_call_output":
        parts = tuple(_parts(item.get("output")))
        return Message(message_id, "tool", parts, call_id=word(item.get("call_id")))
    role: Role = "system" if item.get("role") in ("system", "developer") else "user"
    return Message(message_id, role, tuple(_parts(item.get("content"))))


def _model_parts(item: Mapping[str, Any]) -> list[Part]:
    match item.get("type", "message"):
        case "function_call":
            raw = raw_text(item.get("arguments"))
            value, why = judge_arguments(raw)
            data = _read_kept(item, "type", "arguments", "call_id", "name")
            return [ToolCall(word(item.get("call_id")), word(item.get("name")), value, raw, why, data)]
        case "message":
            data = _read_kept(item, "type", "role", "content")
            texts = [part for part in _parts(item.get("content")) if isinstance(part, Text)]
            return [Text(part.text, data) for part in texts]
        case _:
            return [Reasoning("", dict(item), TAG)]


def _read_kept(item: Mapping[str, Any], *fields: str) -> JSON:
    kept = {name: value for name, value in item.items() if name not in fields}
    return {"item": kept, "tag": TAG} if kept else None


def _parts(content: JSON) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    parts: list[Part] = []
    for fields in objects(content):
        if isinstance(text := fields.get("text", fields.get("refusal")), str):
            parts.append(Text(text))
        elif fields.get("type") == "input_image":
            parts.append(Image("image/*", url=word(fields.get("image_url"))))
        else:
            parts.append(Context(encode_body(fields).decode()))
    return parts


__all__ = ["RULES", "TAG", "from_wire", "to_wire"]
