"""Messages to Gemini's `contents` list and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...core.assembly import judge_arguments, judge_object
from ...core.pairing import WireRules, is_blank
from ...core.unicode import clean, clean_json
from ...messages import (
    JSON,
    MEDIA,
    Audio,
    Context,
    File,
    Image,
    Media,
    Message,
    Part,
    Reasoning,
    Text,
    ToolCall,
    Video,
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
from ..frames import mapping, objects, raw_text, word

TAG: Final = "gemini"
RULES: Final = WireRules("A-Za-z0-9_.:-", 128)
_DIALECT: Final = "Gemini"
_TYPES: Final = ("image/", "audio/", "video/", "text/", "application/pdf", "application/json")


def to_wire(messages: Sequence[Message], tag: str = TAG) -> list[dict[str, JSON]]:
    """The messages as contents. They are paired already; leading system messages are not in it.

    Raises:
        CannotCarry: a part that the dialect cannot send.
    """
    calls = {call.call_id: call for message in messages for call in message.tool_calls}
    out: list[dict[str, JSON]] = []
    rest = messages[len(leading_system(messages)) :]
    for item in result_groups([message for message in rest if not is_blank(message)]):
        if isinstance(item, list):
            out.extend(_results(item, calls, tag))
        elif item.role == "assistant":
            _add_model(out, [one for part in item.parts for one in _model_parts(part, tag)])
        else:
            out.append({"role": "user", "parts": [one for part in item.parts for one in _user_parts(part)]})
    if out and out[0]["role"] == "model":
        out.insert(0, {"role": "user", "parts": [{"text": CONTINUED}]})
    return out


def leading_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages before anything else: they belong into the request's system instruction."""
    out = []
    for message in messages:
        if message.role != "system":
            break
        out.append(message)
    return out


def _add_model(out: list[dict[str, JSON]], parts: list[JSON]) -> None:
    """Neighbouring messages of the model are one content: calls must come directly after the user's."""
    if all(mapping(part).get("thought") for part in parts):  # thoughts alone lead to nothing
        return
    if out and out[-1]["role"] == "model":
        out[-1]["parts"].extend(parts)
    else:
        out.append({"role": "model", "parts": parts})


def _model_parts(part: Part, tag: str) -> list[JSON]:
    match part:
        case Reasoning():
            signed = part.tag == tag and mapping(part.raw).get("thoughtSignature")
            return [clean_json(part.raw)] if signed else []
        case ToolCall():
            if not part.tool:
                return []
            call = {**_wire_id(part, tag), "name": _name(part.tool), "args": argument_object(part)}
            return [{"functionCall": call, **_signature(part.provider_data, tag)}]
        case Text():
            signature = _signature(part.provider_data, tag)
            if is_empty(part.text) and not signature:
                return []
            return [{"text": clean(part.text), **signature}]
        case _ if isinstance(part, MEDIA):
            return [{"text": f"[{describe(part)}]"}]
        case _:
            return [{"text": text} for text in texts_of([part])]


def _name(tool: str) -> str:
    return wire_name(tool, 128, ".:")


def _signature(data: JSON, tag: str) -> dict[str, JSON]:
    """A part's signature, where it is this provider's; none is ever made up."""
    fields = mapping(data)
    signature = fields.get("thoughtSignature")
    return {"thoughtSignature": signature} if signature and fields.get("tag") == tag else {}


def _wire_id(call: ToolCall, tag: str) -> dict[str, JSON]:
    """The id that the provider gave the call. Without one, calls and responses meet by their order."""
    fields = mapping(call.provider_data)
    wire_id = fields.get("id")
    return {"id": wire_id} if wire_id == call.call_id and fields.get("tag") == tag else {}


def _results(group: list[Message], calls: Mapping[str, ToolCall], tag: str) -> list[dict[str, JSON]]:
    """One content with a response for each call, in order; media follow in a content of their own."""
    parts: list[JSON] = []
    media: list[JSON] = []
    for message in group:
        call = calls.get(message.call_id or "")
        name = _name(call.tool) if call is not None and call.tool else "unknown"
        key = "error" if message.is_error else "output"
        response: dict[str, JSON] = {"name": name, "response": {key: result_text(message)}}
        parts.append({"functionResponse": {**(_wire_id(call, tag) if call is not None else {}), **response}})
        if message.attachments:
            media.append({"text": f"Media of the result of {name}:"})
            media.extend(_media(part) for part in message.attachments)
    out: list[dict[str, JSON]] = [{"role": "user", "parts": parts}]
    if media:
        out.append({"role": "user", "parts": media})
    return out


def _user_parts(part: Part) -> list[JSON]:
    if isinstance(part, MEDIA):
        return [_media(part)]
    return [{"text": text} for text in texts_of([part])]


def _media(part: Media) -> JSON:
    if (text := text_file(part)) is not None:
        return {"text": text}
    if not part.mime_type.startswith(_TYPES):
        raise CannotCarry(f"cannot send {describe(part)} to {_DIALECT}")
    if part.url is not None and part.url.startswith("data:"):
        head, _, data = part.url.partition(",")
        return {"inlineData": {"mimeType": head[5:].partition(";")[0] or part.mime_type, "data": data}}
    if part.url is not None:
        return {"fileData": {"mimeType": part.mime_type, "fileUri": part.url}}
    return {"inlineData": {"mimeType": part.mime_type, "data": inline(part, _DIALECT)}}


# And back


def from_wire(stored: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of a stored `contents` list, broken ones included. Calls without ids get some, by their place."""
    out: list[Message] = []
    open_calls: list[ToolCall] = []
    for number, content in enumerate(stored):
        parts = objects(content.get("parts"))
        if content.get("role") == "model":
            said = [_read_model_part(part, f"wire-{number}-{place}") for place, part in enumerate(parts)]
            message = Message(f"wire-{number}", "assistant", tuple(said))
            open_calls = list(message.tool_calls)
            out.append(message)
            continue
        rest: list[Part] = []
        for place, part in enumerate(parts):
            if "functionResponse" in part:
                response = mapping(part["functionResponse"])
                out.append(_read_response(response, open_calls, f"wire-{number}-{place}"))
            else:
                rest.append(_read_user_part(part))
        if rest or not parts:
            out.append(Message(f"wire-{number}", "user", tuple(rest)))
    return out


def _read_model_part(part: dict[str, JSON], made_id: str) -> Part:
    signature = part.get("thoughtSignature")
    if "functionCall" in part:
        call = mapping(part["functionCall"])
        given = call.get("args")
        kept = {
            name: value for name, value in (("thoughtSignature", signature), ("id", call.get("id"))) if value
        }
        data = {**kept, "tag": TAG} if kept else None
        raw = raw_text(given)
        value, why = judge_object(given) if isinstance(given, dict) else judge_arguments(raw)
        return ToolCall(word(call.get("id")) or made_id, word(call.get("name")), value, raw, why, data)
    if part.get("thought"):
        return Reasoning(word(part.get("text")), part if signature else None, TAG if signature else "")
    if "text" in part:
        return Text(word(part["text"]), {"thoughtSignature": signature, "tag": TAG} if signature else None)
    return Context(encode_body(part).decode())


def _read_response(response: dict[str, JSON], open_calls: list[ToolCall], message_id: str) -> Message:
    """A result; it belongs to the call of its id, else to the first open one of its name."""
    wire_id, name = word(response.get("id")), word(response.get("name"))
    call = next((one for one in open_calls if wire_id and one.call_id == wire_id), None)
    call = call or next((one for one in open_calls if one.tool == name and not wire_id), None)
    if call is not None:
        open_calls.remove(call)
    body = mapping(response.get("response"))
    error = isinstance(body.get("error"), str) and len(body) == 1
    said = body.get("error") if error else body.get("output")
    text = said if isinstance(said, str) and len(body) == 1 else encode_body(body).decode()
    call_id = call.call_id if call is not None else wire_id or f"{message_id}-alone"
    return Message(message_id, "tool", (Text(text),), call_id=call_id, is_error=error)


def _read_user_part(part: dict[str, JSON]) -> Part:
    if "text" in part:
        return Text(word(part["text"]))
    held = mapping(part.get("inlineData") or part.get("fileData"))
    mime = word(held.get("mimeType"))
    if not mime:
        return Context(encode_body(part).decode())
    address = word(held.get("fileUri")) or f"data:{mime};base64,{word(held.get('data'))}"
    kinds: tuple[tuple[str, type[Media]], ...] = (("image/", Image), ("audio/", Audio), ("video/", Video))
    kind = next((one for prefix, one in kinds if mime.startswith(prefix)), File)
    return msgspec.structs.replace(kind(mime), url=address)


__all__ = ["RULES", "TAG", "from_wire", "leading_system", "to_wire"]
