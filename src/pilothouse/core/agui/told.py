"""Messages of the wire as an interface shows them, and back: what a snapshot tells, what a request carries."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET

from ...messages import (
    JSON,
    MEDIA,
    ArtifactRef,
    Audio,
    File,
    Image,
    InputPart,
    Media,
    Part,
    Structured,
    Text,
    Video,
)
from ...projection import (
    EMPTY,
    AgentMessage,
    AgentToolCall,
    AgentUsage,
    Citation,
    Interrupt,
    UsageEntry,
)
from ..display import Content, Display, Role, Told, ToldCall
from . import events as agui
from .events import AGUIMessage

_OURS: Final = re.compile(r"(.+):reasoning-\d+")
_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MEDIA: Final[Mapping[type, type[Media]]] = MappingProxyType(
    {
        agui.ImagePart: Image,
        agui.AudioPart: Audio,
        agui.VideoPart: Video,
        agui.DocumentPart: File,
    }
)
_BINARY: Final[Mapping[str, type[Media]]] = MappingProxyType({"image": Image, "audio": Audio, "video": Video})
_NAMES: Final = MappingProxyType({Image: "image", Audio: "audio", Video: "video", File: "document"})


def answer_of(reasoning_id: str) -> str:
    """The message that reasoning belongs to, where its id says so; else the id itself."""
    found = _OURS.fullmatch(reasoning_id)
    return reasoning_id if found is None else found[1]


# From the wire


def told(messages: Sequence[AGUIMessage], *, run_id: str | None = None) -> list[Told]:
    """The messages of a snapshot; reasoning goes to the answer that follows it. Activities are no messages."""
    out: list[Told] = []
    thought: list[tuple[str, str]] = []
    for message in messages:
        match message:
            case agui.ReasoningMessage(id=name, content=text):
                thought.append((name, text))
                continue
            case agui.ActivityMessage():
                continue
            case agui.AssistantMessage():
                out.append(_assistant(message, thought, run_id))
                thought = []
                continue
            case agui.UserMessage():
                item = Told(message.id, "user", content_of(message.content), run_id=run_id)
            case agui.ToolMessage():
                error = None if message.error is UNSET else message.error
                item = Told(
                    message.id,
                    "tool",
                    content_of(message.content),
                    tool_call_id=message.tool_call_id,
                    error=error,
                    run_id=run_id,
                )
            case _:
                item = Told(message.id, "system", message.content, run_id=run_id)
        out += _alone(thought, run_id)
        thought = []
        out.append(item)
    return out + _alone(thought, run_id)


def _assistant(message: agui.AssistantMessage, thought: list[tuple[str, str]], run_id: str | None) -> Told:
    calls = () if message.tool_calls is UNSET else message.tool_calls
    return Told(
        message.id,
        "assistant",
        "" if message.content is UNSET else message.content,
        "".join([text for _, text in thought]) if thought else None,
        next((name for name, _ in thought if answer_of(name) == name), ""),
        tuple([ToldCall(call.id, call.function.name, call.function.arguments) for call in calls]),
        run_id=run_id,
    )


def _alone(thought: list[tuple[str, str]], run_id: str | None) -> list[Told]:
    """Reasoning without an answer."""
    return [Told(answer_of(name), "assistant", "", text, run_id=run_id) for name, text in thought]


def content_of(content: agui.Content) -> Content:
    """A text, or parts."""
    if isinstance(content, str):
        return content
    return tuple([_part(part) for part in content])


def _part(part: agui.ContentPart) -> Part:
    if isinstance(part, agui.TextPart):
        return Text(part.text)
    if isinstance(part, agui.BinaryPart):
        kind: type[Media] = _BINARY.get(part.mime_type.partition("/")[0], File)
        data = None if part.data is UNSET else _bytes(part.data)
        url = None if part.url is UNSET else part.url
        return kind(part.mime_type, url, data, None if part.filename is UNSET else part.filename)
    source, kind = part.source, _MEDIA[type(part)]
    if isinstance(source, agui.DataSource):
        data = _bytes(source.value)
        return kind(source.mime_type, data=data) if data is not None else Structured({"data": source.value})
    mime_type = "application/octet-stream" if source.mime_type is UNSET else source.mime_type
    return kind(mime_type, url=source.value)


def _bytes(text: str) -> bytes | None:
    try:
        return b64decode(text, validate=True)
    except (NotBase64, ValueError):
        return None


def interrupt_of(item: agui.Interrupt) -> Interrupt:
    """An interrupt of a native outcome."""
    metadata: Mapping[str, JSON] = EMPTY if item.metadata is UNSET else item.metadata
    return Interrupt(
        item.id,
        item.reason,
        None if item.message is UNSET else item.message,
        metadata.get("value", None if item.message is UNSET else item.message),
        None if item.tool_call_id is UNSET else item.tool_call_id,
        None if item.response_schema is UNSET else item.response_schema,
        None if item.expires_at is UNSET else _time(item.expires_at),
        metadata,
    )


def _time(text: str) -> datetime:
    """A time; one that cannot be read is in the past (AG-131)."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return _NEVER
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def noticed(value: JSON, run_id: str) -> list[Interrupt]:
    """The interrupts of an older notice (CUSTOM `on_interrupt`)."""
    found = value if isinstance(value, list) else [value]
    out = []
    for number, item in enumerate(found):
        fields = item if isinstance(item, dict) else {}
        name = fields.get("id") or fields.get("interrupt_id") or fields.get("interruptId")
        name = name or fields.get("toolCallId") or f"{run_id}:interrupt-{number}"
        call_id = fields.get("toolCallId")
        out.append(
            Interrupt(
                str(name),
                str(fields.get("reason") or fields.get("type") or "interrupt"),
                fields.get("message") if isinstance(fields.get("message"), str) else None,
                fields.get("value", item),
                call_id if isinstance(call_id, str) else None,
                metadata=fields or EMPTY,
            )
        )
    return out


def usage_of(entries: Iterable[agui.TokenUsage]) -> AgentUsage | None:
    """Usage of a terminal event; None if it told nothing."""

    def given(value: Any) -> Any:
        return None if value is UNSET else value

    found = tuple(
        [
            UsageEntry(
                given(item.provider),
                given(item.model),
                given(item.input_tokens),
                given(item.output_tokens),
                given(item.total_tokens),
                given(item.reasoning_tokens),
                given(item.cached_input_tokens),
                given(item.cache_write_input_tokens),
            )
            for item in entries
        ]
    )
    return AgentUsage(found) if found else None


def citations_of(state: JSON) -> dict[str, tuple[Citation, ...]]:
    """`state.citations` by message id; bare texts and the usual spellings are understood (AG-208)."""
    table = state.get("citations") if isinstance(state, Mapping) else None
    if not isinstance(table, Mapping):
        return {}
    return {
        str(name): tuple([_citation(n, item) for n, item in enumerate(items, 1)])
        for name, items in table.items()
        if isinstance(items, list)
    }


def _citation(number: int, item: JSON) -> Citation:
    if not isinstance(item, Mapping):
        text = str(item)
        return Citation(str(number), url=text) if "://" in text else Citation(str(number), title=text)

    def first(*names: str) -> str | None:
        found = next((item[name] for name in names if item.get(name) is not None), None)
        return None if found is None else str(found)

    known = (
        "id",
        "title",
        "name",
        "url",
        "href",
        "link",
        "uri",
        "source",
        "excerpt",
        "snippet",
        "text",
        "quote",
    )
    extra = {name: value for name, value in item.items() if name not in known}
    return Citation(
        first("id") or str(number),
        first("title", "name"),
        first("url", "href", "link", "uri", "source"),
        first("excerpt", "snippet", "quote", "text"),
        extra or EMPTY,
    )


# To the wire


def written(display: Display) -> list[dict[str, JSON]]:
    """The conversation as a request carries it, without what was interrupted before it said anything."""
    out: list[dict[str, JSON]] = []
    for message in display.messages:
        out += _message(message, display)
    return out


def _message(message: AgentMessage, display: Display) -> list[dict[str, JSON]]:
    if message.role == "user":
        return [{"id": message.id, "role": "user", "content": wire_content(message.content)}]
    if message.role == "tool":
        known = {"id": message.id, "role": "tool", "toolCallId": message.tool_call_id or ""}
        call = display.call(message.tool_call_id or "")
        error = {"error": call.error} if call is not None and call.error is not None else {}
        return [{**known, "content": wire_content(message.content), **error}]
    if message.role == "system":
        return [{"id": message.id, "role": "system", "content": message.text}]
    name, thought_id = display.told_ids(message.id)
    out: list[dict[str, JSON]] = []
    if message.reasoning and thought_id:
        out.append({"id": thought_id, "role": "reasoning", "content": message.reasoning})
    calls = [call for item in message.tool_call_ids if (call := display.call(item)) is not None]
    said: dict[str, JSON] = {"id": name, "role": "assistant"}
    if message.text:
        said["content"] = message.text
    if calls:
        said["toolCalls"] = [_call(call) for call in calls]
    return [*out, said] if len(said) > 2 else out


def _call(call: AgentToolCall) -> dict[str, JSON]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.args_text or "{}"},
    }


def wire_content(content: str | Sequence[Part | InputPart]) -> JSON:
    """A text as it is; parts as parts. What the protocol has no part for is left out."""
    if isinstance(content, str):
        return content
    out: list[JSON] = []
    for part in content:
        if isinstance(part, Text):
            out.append({"type": "text", "text": part.text})
        elif isinstance(part, MEDIA):
            out.append({"type": _NAMES[type(part)], "source": _source(part)})
        elif isinstance(part, ArtifactRef):
            out.append({"type": "text", "text": part.preview})
    return out


def _source(part: Media) -> dict[str, JSON]:
    if part.data is not None:
        return {"type": "data", "value": b64encode(part.data).decode(), "mimeType": part.mime_type}
    return {"type": "url", "value": part.url or "", "mimeType": part.mime_type}


_ROLES: Final[Mapping[Any, Role]] = MappingProxyType(
    {"developer": "system", "system": "system", "user": "user"}
)


def role_of(role: object) -> Role:
    """The role under which a message is shown."""
    return _ROLES.get(role, "assistant")


__all__ = [
    "answer_of",
    "citations_of",
    "content_of",
    "interrupt_of",
    "noticed",
    "role_of",
    "told",
    "usage_of",
    "wire_content",
    "written",
]
