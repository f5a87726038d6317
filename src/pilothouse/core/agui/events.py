"""The events and values of AG-UI 1.0 as structs: what goes over the wire between an agent and an interface.

Optional means absent, never null (AG-190): an optional field that is `UNSET` is left out when written, and null for
it is a wrong type when read. Unknown fields are dropped, an unknown event type reads as None (AG-193). Only the shape
is here; which event is legal when is `verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, dataclass_transform, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType, field

from ..canonical import scrub

PROTOCOL_VERSION: Final = "1.0"

Profile: TypeAlias = Literal["1.0", "legacy"]
"""What a client understands: 1.0, or the common ground of the 0.0.5x clients (SV-91)."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Wire(Struct, frozen=True, omit_defaults=True, gc=False, rename="camel"):
    """Base of everything on the wire: camel case, optional fields left out, unknown fields dropped."""


# Messages


class TextPart(Wire, tag="text", tag_field="type"):
    """Text of a message with several parts."""

    text: str


class DataSource(Wire, tag="data", tag_field="type"):
    """Bytes in base64."""

    value: str
    mime_type: str


class UrlSource(Wire, tag="url", tag_field="type"):
    """Something that can be fetched."""

    value: str
    mime_type: str | UnsetType = UNSET


Source: TypeAlias = DataSource | UrlSource


class ImagePart(Wire, tag="image", tag_field="type"):
    """An image."""

    source: Source


class AudioPart(Wire, tag="audio", tag_field="type"):
    """A sound."""

    source: Source


class VideoPart(Wire, tag="video", tag_field="type"):
    """A film."""

    source: Source


class DocumentPart(Wire, tag="document", tag_field="type"):
    """Any other file."""

    source: Source


class BinaryPart(Wire, tag="binary", tag_field="type"):
    """The form that media had before 1.0."""

    mime_type: str
    url: str | UnsetType = UNSET
    data: str | UnsetType = UNSET
    filename: str | UnsetType = UNSET


ContentPart: TypeAlias = TextPart | ImagePart | AudioPart | VideoPart | DocumentPart | BinaryPart
Content: TypeAlias = str | list[ContentPart]


class FunctionCall(Wire):
    """The name and the argument text of a call."""

    name: str
    arguments: str


class ToolCall(Wire):
    """A call in an assistant message. `type` is always `function`."""

    id: str
    function: FunctionCall
    type: Literal["function"]


class SystemMessage(Wire, tag="system", tag_field="role"):
    """Instructions."""

    id: str
    content: str


class DeveloperMessage(Wire, tag="developer", tag_field="role"):
    """Instructions."""

    id: str
    content: str


class UserMessage(Wire, tag="user", tag_field="role"):
    """What a person said."""

    id: str
    content: Content
    name: str | UnsetType = UNSET


class AssistantMessage(Wire, tag="assistant", tag_field="role"):
    """What the agent said and which tools it called."""

    id: str
    content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ToolMessage(Wire, tag="tool", tag_field="role"):
    """The result of a call."""

    id: str
    content: Content
    tool_call_id: str
    error: str | UnsetType = UNSET


class ReasoningMessage(Wire, tag="reasoning", tag_field="role"):
    """What the agent thought."""

    id: str
    content: str


class ActivityMessage(Wire, tag="activity", tag_field="role"):
    """Something that an interface shows beside the conversation."""

    id: str
    activity_type: str
    content: dict[str, Any]


AGUIMessage: TypeAlias = (
    SystemMessage
    | DeveloperMessage
    | UserMessage
    | AssistantMessage
    | ToolMessage
    | ReasoningMessage
    | ActivityMessage
)


# What an end says


class TokenUsage(Wire):
    """Tokens of the requests to one model."""

    provider: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    input_tokens: int | UnsetType = UNSET
    output_tokens: int | UnsetType = UNSET
    total_tokens: int | UnsetType = UNSET
    reasoning_tokens: int | UnsetType = UNSET
    cached_input_tokens: int | UnsetType = UNSET
    cache_write_input_tokens: int | UnsetType = UNSET


class Interrupt(Wire):
    """What a run asks of a person."""

    id: str
    reason: str
    message: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    response_schema: dict[str, Any] | UnsetType = UNSET
    expires_at: str | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET


class Success(Wire, tag="success", tag_field="type"):
    """The run finished; these calls wait for the client."""

    pending_tool_call_ids: list[str] | UnsetType = UNSET


class Interrupted(Wire, tag="interrupt", tag_field="type"):
    """The run waits for answers."""

    interrupts: list[Interrupt]


class CancelledEnd(Wire, tag="cancelled", tag_field="type"):
    """Somebody stopped the run."""


RunOutcome: TypeAlias = Success | Interrupted | CancelledEnd


# Events


class Event(Wire, tag_field="type", kw_only=True):
    """Base of all events, with the fields that each may have."""

    timestamp: int | float | UnsetType = UNSET
    raw_event: Any = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    subagent_run_id: str | UnsetType = UNSET

    @property
    def type(self) -> str:
        """Its name on the wire."""
        return str(self.__struct_config__.tag)


class RunStarted(Event, tag="RUN_STARTED"):
    """A run, or a segment of one, begins."""

    thread_id: str
    run_id: str
    protocol_version: str | UnsetType = UNSET
    parent_run_id: str | UnsetType = UNSET
    input: Any = UNSET


class RunFinished(Event, tag="RUN_FINISHED"):
    """It ended or pauses."""

    thread_id: str
    run_id: str
    result: Any = UNSET
    outcome: RunOutcome | UnsetType = UNSET
    usage: list[TokenUsage] | UnsetType = UNSET


class RunError(Event, tag="RUN_ERROR"):
    """It failed, or nobody knows how it ended."""

    message: str
    code: str | UnsetType = UNSET
    usage: list[TokenUsage] | UnsetType = UNSET


class StepStarted(Event, tag="STEP_STARTED"):
    """A named step begins."""

    step_name: str


class StepFinished(Event, tag="STEP_FINISHED"):
    """It ends."""

    step_name: str


class TextMessageStart(Event, tag="TEXT_MESSAGE_START"):
    """A text message opens, or is opened again and appended to."""

    message_id: str
    role: Literal["assistant", "developer", "system", "user"] | UnsetType = UNSET
    name: str | UnsetType = UNSET


class TextMessageContent(Event, tag="TEXT_MESSAGE_CONTENT"):
    """A piece of its text."""

    message_id: str
    delta: str


class TextMessageEnd(Event, tag="TEXT_MESSAGE_END"):
    """It closes."""

    message_id: str


class TextMessageChunk(Event, tag="TEXT_MESSAGE_CHUNK"):
    """The short form: a piece without start and end."""

    message_id: str | UnsetType = UNSET
    role: Literal["assistant", "developer", "system", "user"] | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class ToolCallStart(Event, tag="TOOL_CALL_START"):
    """A call opens."""

    tool_call_id: str
    tool_call_name: str
    parent_message_id: str | UnsetType = UNSET


class ToolCallArgs(Event, tag="TOOL_CALL_ARGS"):
    """A piece of its argument text."""

    tool_call_id: str
    delta: str


class ToolCallEnd(Event, tag="TOOL_CALL_END"):
    """Its arguments are whole."""

    tool_call_id: str


class ToolCallChunk(Event, tag="TOOL_CALL_CHUNK"):
    """The short form."""

    tool_call_id: str | UnsetType = UNSET
    tool_call_name: str | UnsetType = UNSET
    parent_message_id: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET


class ToolCallResult(Event, tag="TOOL_CALL_RESULT"):
    """Its result: a message of its own."""

    message_id: str
    tool_call_id: str
    content: Content
    role: Literal["tool"] | UnsetType = UNSET


class StateSnapshot(Event, tag="STATE_SNAPSHOT"):
    """The whole shared state."""

    snapshot: Any


class StateDelta(Event, tag="STATE_DELTA"):
    """A change of it, RFC 6902."""

    delta: list[dict[str, Any]]


class MessagesSnapshot(Event, tag="MESSAGES_SNAPSHOT"):
    """The whole conversation."""

    messages: list[AGUIMessage]


class ActivitySnapshot(Event, tag="ACTIVITY_SNAPSHOT"):
    """A whole activity."""

    message_id: str
    activity_type: str
    content: dict[str, Any]
    replace: bool | UnsetType = UNSET


class ActivityDelta(Event, tag="ACTIVITY_DELTA"):
    """A change of one, RFC 6902."""

    message_id: str
    activity_type: str
    patch: list[dict[str, Any]]


class ReasoningStart(Event, tag="REASONING_START"):
    """A span of reasoning opens."""

    message_id: str


class ReasoningMessageStart(Event, tag="REASONING_MESSAGE_START"):
    """A message in it opens."""

    message_id: str
    role: Literal["reasoning"]


class ReasoningMessageContent(Event, tag="REASONING_MESSAGE_CONTENT"):
    """A piece of its text."""

    message_id: str
    delta: str


class ReasoningMessageEnd(Event, tag="REASONING_MESSAGE_END"):
    """It closes."""

    message_id: str


class ReasoningMessageChunk(Event, tag="REASONING_MESSAGE_CHUNK"):
    """The short form."""

    message_id: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET


class ReasoningEnd(Event, tag="REASONING_END"):
    """The span closes."""

    message_id: str


class ReasoningEncryptedValue(Event, tag="REASONING_ENCRYPTED_VALUE"):
    """Reasoning that only its provider can read."""

    subtype: Literal["tool-call", "message"]
    entity_id: str
    encrypted_value: str


class SubagentStarted(Event, tag="SUBAGENT_STARTED"):
    """A subagent begins; its `subagentRunId` is the new one."""

    name: str
    description: str | UnsetType = UNSET
    parent_subagent_run_id: str | UnsetType = UNSET
    parent_tool_call_id: str | UnsetType = UNSET
    parent_message_id: str | UnsetType = UNSET


class SubagentFinished(Event, tag="SUBAGENT_FINISHED"):
    """It ended."""

    result: Any = UNSET
    outcome: dict[str, Any] | UnsetType = UNSET


class SubagentError(Event, tag="SUBAGENT_ERROR"):
    """It failed."""

    message: str
    code: str | UnsetType = UNSET


class Raw(Event, tag="RAW"):
    """An event of somebody else's."""

    event: Any
    source: str | UnsetType = UNSET


class Custom(Event, tag="CUSTOM"):
    """A note; `value` may be null."""

    name: str
    value: Any


AnyEvent: TypeAlias = (
    RunStarted
    | RunFinished
    | RunError
    | StepStarted
    | StepFinished
    | TextMessageStart
    | TextMessageContent
    | TextMessageEnd
    | TextMessageChunk
    | ToolCallStart
    | ToolCallArgs
    | ToolCallEnd
    | ToolCallChunk
    | ToolCallResult
    | StateSnapshot
    | StateDelta
    | MessagesSnapshot
    | ActivitySnapshot
    | ActivityDelta
    | ReasoningStart
    | ReasoningMessageStart
    | ReasoningMessageContent
    | ReasoningMessageEnd
    | ReasoningMessageChunk
    | ReasoningEnd
    | ReasoningEncryptedValue
    | SubagentStarted
    | SubagentFinished
    | SubagentError
    | Raw
    | Custom
)

TYPES: Final[dict[str, type[Event]]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyEvent)}
"""All event types by their name on the wire."""


# Bytes

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(AnyEvent)


class _Typed(Struct):
    type: str


_type_decoder: Final = msgspec.json.Decoder(_Typed)

_SEPARATORS: Final = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))


def encode(event: Wire | Mapping[str, Any]) -> bytes:
    """JSON on one line, whatever a reader takes for a line's end (SV-41). Lone surrogates become U+FFFD."""
    try:
        data = _encode(event)
    except UnicodeEncodeError:
        data = _encode(scrub(msgspec.to_builtins(event)))
    return _escaped(data) if b"\xe2\x80" in data or b"\xc2\x85" in data else data


def encode_text(text: str) -> bytes:
    """A JSON text by the same rules."""
    try:
        data = _encode(text)
    except UnicodeEncodeError:
        data = _encode(scrub(text))
    if text.isascii():
        return data
    return _escaped(data) if b"\xe2\x80" in data or b"\xc2\x85" in data else data


def _escaped(data: bytes) -> bytes:
    for found, escaped in _SEPARATORS:
        data = data.replace(found, escaped)
    return data


def decode(data: bytes) -> Event | None:
    """Reads an event; None for a type that is not known.

    Raises:
        msgspec.DecodeError: no JSON object, or a known field is missing or of a wrong type.
    """
    try:
        return _decoder.decode(data)
    except msgspec.ValidationError:
        if _type_decoder.decode(data).type in TYPES:
            raise
        return None


__all__ = [
    name for name, item in list(globals().items()) if isinstance(item, type) and item.__module__ == __name__
] + [
    "PROTOCOL_VERSION",
    "TYPES",
    "AGUIMessage",
    "AnyEvent",
    "Content",
    "ContentPart",
    "Profile",
    "decode",
    "encode",
    "encode_text",
]
