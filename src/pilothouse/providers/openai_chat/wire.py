"""Messages to the `messages` list of Chat Completions and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...core.assembly import judge_arguments
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
)
from ..content import (
    CannotCarry,
    argument_text,
    data_url,
    describe,
    encode_body,
    images_of,
    inline,
    is_empty,
    result_groups,
    result_text,
    text_file,
    texts_of,
    wire_name,
)
from ..frames import mapping, objects, raw_text, word
from .profile import CompatProfile

_DIALECT: Final = "a chat completions server"
_AUDIO_FORMATS: Final = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_DEFAULT: Final = CompatProfile()


def rules_of(profile: CompatProfile = _DEFAULT) -> WireRules:
    """What pairing must know of the dialect."""
    exact = profile.max_id_length < 16  # such servers want ids of exactly this length
    return WireRules(profile.id_charset, profile.max_id_length, profile.max_id_length if exact else 1)


def to_wire(messages: Sequence[Message], profile: CompatProfile = _DEFAULT) -> list[dict[str, JSON]]:
    """The messages as the dialect wants them. They are paired already.

    Raises:
        CannotCarry: a part that the dialect cannot send.
    """
    rules = rules_of(profile)
    names = {call.call_id: call.tool for message in messages for call in message.tool_calls}
    out: list[dict[str, JSON]] = []
    for item in result_groups([message for message in messages if not is_blank(message)]):
        if isinstance(item, list):
            out.extend(_results(item, profile, rules, names))
        elif item.role == "assistant":
            said = _assistant(item, profile, rules)
            if said["content"] is not None or "tool_calls" in said:
                out.append(said)
        elif item.role == "system":
            out.append({"role": profile.system_role, "content": "\n\n".join(texts_of(item.parts))})
        else:
            out.append({"role": "user", "content": _user_content(item)})
    return alternating(out, profile) if profile.strict_alternation else out


def _assistant(message: Message, profile: CompatProfile, rules: WireRules) -> dict[str, JSON]:
    text = clean("".join(part.text for part in message.parts if isinstance(part, Text)))
    pieces = [] if is_empty(text) else [text]
    pieces += texts_of(part for part in message.parts if not isinstance(part, Text))
    pieces += [f"[{describe(part)}]" for part in message.attachments]  # what it made has no place here
    out: dict[str, JSON] = {"role": "assistant", "content": "\n\n".join(pieces) or None}
    if details := _details(message, profile):
        out["reasoning_details"] = details
    elif profile.replay_reasoning:
        thoughts = [
            part.text
            for part in message.parts
            if isinstance(part, Reasoning) and part.tag == profile.tag and part.text
        ]
        if thoughts:
            out[profile.replay_reasoning] = clean("".join(thoughts))
    if calls := message.tool_calls:
        out["tool_calls"] = [
            {
                "id": rules.wire_id(call.call_id),
                "type": "function",
                "function": {"name": _name(call.tool, profile), "arguments": argument_text(call)},
            }
            for call in calls
            if call.tool
        ]
    return out


def _name(tool: str, profile: CompatProfile) -> str:
    return wire_name(tool) if profile.strict_names else clean(tool)


def _details(message: Message, profile: CompatProfile) -> list[JSON]:
    if not profile.reasoning_details:
        return []
    return [
        clean_json(item)
        for part in message.parts
        if isinstance(part, Reasoning) and part.tag == profile.tag
        for item in objects(mapping(part.raw).get("reasoning_details"))
    ]


def _results(
    group: list[Message], profile: CompatProfile, rules: WireRules, names: Mapping[str, str]
) -> list[dict[str, JSON]]:
    """The results of one round; their images follow in a user message, for which the dialect has a place."""
    out: list[dict[str, JSON]] = []
    images: list[JSON] = []
    for message in group:
        call_id = message.call_id or ""
        result: dict[str, JSON] = {"role": "tool", "tool_call_id": rules.wire_id(call_id)}
        if profile.name_on_results and (name := names.get(call_id)):
            result["name"] = _name(name, profile)
        found = images_of(message)
        texts = texts_of(message.parts)
        result["content"] = (
            "\n\n".join(texts) if texts else "(see the image below)" if found else result_text(message)
        )
        out.append(result)
        if found:
            images.append({"type": "text", "text": f"Image of the result of {rules.wire_id(call_id)}:"})
            images.extend(_media(image) for image in found)
        _refuse_other_media(message)
    if images:
        out.append({"role": "user", "content": images})
    return out


def _refuse_other_media(message: Message) -> None:
    for part in message.attachments:
        if not isinstance(part, Image):
            raise CannotCarry(f"cannot send {describe(part)} as a tool's result to {_DIALECT}")


def _user_content(message: Message) -> str | list[JSON]:
    """Plain text where there is only text: the smallest servers read nothing else."""
    if not message.attachments:
        return "\n\n".join(texts_of(message.parts))
    parts: list[JSON] = []
    for part in message.parts:
        if isinstance(part, MEDIA):
            parts.append(_media(part))
        else:
            parts.extend({"type": "text", "text": text} for text in texts_of([part]))
    return parts


def _media(part: Media) -> JSON:
    if (text := text_file(part)) is not None:
        return {"type": "text", "text": text}
    match part:
        case Image():
            return {"type": "image_url", "image_url": {"url": data_url(part, _DIALECT)}}
        case Audio(mime_type=mime) if mime in _AUDIO_FORMATS:
            return {
                "type": "input_audio",
                "input_audio": {"data": inline(part, _DIALECT), "format": _AUDIO_FORMATS[mime]},
            }
        case File():
            name = part.filename or "file"
            return {
                "type": "file",
                "file": {
                    "filename": name,
                    "file_data": f"data:{part.mime_type};base64,{inline(part, _DIALECT)}",
                },
            }
        case _:
            raise CannotCarry(f"cannot send {describe(part)} to {_DIALECT}")


def alternating(messages: Sequence[dict[str, JSON]], profile: CompatProfile) -> list[dict[str, JSON]]:
    """Neighbours of one role in one message; what the system says later is said as the user."""
    out: list[dict[str, JSON]] = []
    for message in messages:
        item = message
        last = out[-1] if out else {}
        if item["role"] == profile.system_role and out and last["role"] != profile.system_role:
            item = {"role": "user", "content": item["content"]}
        if item["role"] != "tool" and item["role"] == last.get("role") and "tool_calls" not in last:
            out[-1] = {**last, **item, "content": _joined(last["content"], item["content"])}
        else:
            out.append(item)
    return out


def _joined(before: str | list[JSON] | None, after: str | list[JSON] | None) -> str | list[JSON] | None:
    if not before or not after:
        return after or before
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    return [*_as_parts(before), *_as_parts(after)]


def _as_parts(content: str | list[JSON]) -> list[JSON]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


# And back


def from_wire(stored: Sequence[Mapping[str, Any]], profile: CompatProfile = _DEFAULT) -> list[Message]:
    """Messages of a stored `messages` list, broken ones included."""
    out = []
    for number, item in enumerate(stored):
        role = item.get("role")
        message_id = f"wire-{number}"
        if role == "assistant":
            out.append(Message(message_id, "assistant", tuple(_assistant_parts(item, profile))))
        elif role == "tool":
            parts = tuple(_parts(item.get("content")))
            out.append(Message(message_id, "tool", parts, call_id=word(item.get("tool_call_id"))))
        elif role in ("system", "developer"):
            out.append(Message(message_id, "system", tuple(_parts(item.get("content")))))
        else:
            out.append(Message(message_id, "user", tuple(_parts(item.get("content")))))
    return out


def _assistant_parts(item: Mapping[str, Any], profile: CompatProfile) -> list[Part]:
    parts: list[Part] = []
    if profile.reasoning_details and (details := objects(item.get("reasoning_details"))):
        parts.append(Reasoning("", {"reasoning_details": details}, profile.tag))
    for field in ("reasoning_content", "reasoning"):
        if isinstance(thought := item.get(field), str) and thought:
            parts.append(Reasoning(thought))
            break
    parts += _parts(item.get("content"))
    for call in objects(item.get("tool_calls")):
        function = mapping(call.get("function"))
        text = raw_text(function.get("arguments"))
        value, why = judge_arguments(text)
        parts.append(ToolCall(word(call.get("id")), word(function.get("name")), value, text, why))
    return parts


def _parts(content: JSON) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)]
    parts: list[Part] = []
    for fields in objects(content):
        if isinstance(text := fields.get("text"), str):
            parts.append(Text(text))
        elif fields.get("type") == "image_url":
            parts.append(Image("image/*", url=word(mapping(fields.get("image_url")).get("url"))))
        elif isinstance(refusal := fields.get("refusal"), str):
            parts.append(Text(refusal))
        else:
            parts.append(Context(encode_body(fields).decode()))
    return parts


__all__ = ["alternating", "from_wire", "rules_of", "to_wire"]
