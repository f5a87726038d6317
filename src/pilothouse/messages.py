"""Messages and their parts: what a conversation consists of.

Values only. A message is immutable; a changed conversation is a new tuple of the same messages. Nothing here knows
how a provider writes them down or how a journal stores them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, dataclass_transform

from msgspec import UNSET, Struct, UnsetType, field

JSON: TypeAlias = Any
"""Any JSON value: None, bool, int, float, str, a list of them, or a dict with str keys."""

Unset: TypeAlias = UnsetType
"""The type of `UNSET`, which means "not given" where None is a value."""

Role: TypeAlias = Literal["user", "assistant", "system", "tool"]

StopReason: TypeAlias = Literal[
    "complete",  # the model finished
    "tool_calls",  # the model finished and wants tools
    "length",  # cut by an output limit, under any name a dialect has for it
    "content_filter",  # ended early by the provider's filter
    "refusal",  # the model refused
    "pause_turn",  # the provider wants its content back and then goes on
    "error",  # failed; the error says how
    "unknown",  # the stream ended without saying how
    "cancelled",  # we stopped reading
]

CallOutcome: TypeAlias = Literal["succeeded", "failed", "cancelled", "refused", "unknown"]


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Value(
    Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False, repr_omit_defaults=True
):
    """Base of all vocabulary: immutable, strict on decode, absent optionals left out on encode.

    `gc=False`: values form trees, never cycles, so the collector need not walk them (performance.md, rule 1).
    """


class Text(Value, tag="text", tag_field="type"):
    """Plain text. `provider_data` is kept for the provider that made it (a signature, for example)."""

    text: str
    provider_data: JSON = None


class Reasoning(Value, tag="reasoning", tag_field="type"):
    """What a model thought. `raw` goes back unchanged, and only to a provider with the same `tag` (PV-7)."""

    text: str = ""
    raw: JSON = None
    tag: str = ""
    redacted: bool = False
    provider_data: JSON = None


class ToolCall(Value, tag="tool_call", tag_field="type"):
    """A call that the model asks for.

    `arguments` is a JSON object; where `raw_arguments` was not one, it is empty and `args_error` says why: such a
    call is never run (PV-6).
    """

    call_id: str
    tool: str
    arguments: dict[str, JSON] = {}
    raw_arguments: str = ""
    args_error: str | None = None
    provider_data: JSON = None


class ArtifactRef(Value, tag="artifact", tag_field="type"):
    """Content that was too large for a fact. `digest` is the SHA-256 of the bytes, `preview` ≤ 2,000 characters."""

    digest: str
    bytes: int
    media_type: str
    preview: str = ""


class Image(Value, tag="image", tag_field="type"):
    """An image: exactly one of `url`, `data` (raw bytes) and `artifact`."""

    mime_type: str
    url: str | None = None
    data: bytes | None = None
    filename: str | None = None
    artifact: ArtifactRef | None = None


class Audio(Value, tag="audio", tag_field="type"):
    """A sound: exactly one of `url`, `data` (raw bytes) and `artifact`."""

    mime_type: str
    url: str | None = None
    data: bytes | None = None
    filename: str | None = None
    artifact: ArtifactRef | None = None


class Video(Value, tag="video", tag_field="type"):
    """A film: exactly one of `url`, `data` (raw bytes) and `artifact`."""

    mime_type: str
    url: str | None = None
    data: bytes | None = None
    filename: str | None = None
    artifact: ArtifactRef | None = None


class File(Value, tag="file", tag_field="type"):
    """Any other document: exactly one of `url`, `data` (raw bytes) and `artifact`."""

    mime_type: str
    url: str | None = None
    data: bytes | None = None
    filename: str | None = None
    artifact: ArtifactRef | None = None


class Structured(Value, tag="structured", tag_field="type"):
    """A JSON value beside the text that says the same."""

    data: JSON


class Context(Value, tag="context", tag_field="type"):
    """Text that the application added to a user message: providers render it, interfaces skip it."""

    text: str


Media: TypeAlias = Image | Audio | Video | File
InputPart: TypeAlias = Text | Image | Audio | Video | File
Part: TypeAlias = (
    Text | Reasoning | ToolCall | Image | Audio | Video | File | Structured | Context | ArtifactRef
)

MEDIA: Final = (Image, Audio, Video, File)


class Message(Value):
    """One entry of a conversation.

    Attributes:
        id: unique in the conversation.
        parts: in the order in which a reader should meet them.
        metadata: never read by Pilothouse itself.
        call_id: role tool only: the call whose one result this is.
        is_error: role tool only: the result says that something went wrong.
        stop_reason: role assistant only: how the model's response ended.
    """

    id: str
    role: Role
    parts: tuple[Part, ...] = ()
    metadata: dict[str, JSON] = field(default_factory=dict)
    call_id: str | None = None
    is_error: bool = False
    stop_reason: StopReason | None = None

    @property
    def text(self) -> str:
        """All `Text` parts, joined."""
        parts = self.parts
        if len(parts) == 1 and type(parts[0]) is Text:
            return parts[0].text
        return "".join([part.text for part in parts if type(part) is Text])

    @property
    def reasoning(self) -> str:
        """All `Reasoning` parts, joined."""
        return "".join([part.text for part in self.parts if type(part) is Reasoning])

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that this message proposes, in order."""
        parts = self.parts
        if len(parts) == 1:  # the usual message, for half of it
            return parts if type(parts[0]) is ToolCall else ()  # type: ignore[return-value]
        return tuple([part for part in parts if type(part) is ToolCall])

    @property
    def attachments(self) -> tuple[Media, ...]:
        """The media parts."""
        return tuple([part for part in self.parts if isinstance(part, MEDIA)])


class Price(Value):
    """What a model costs, per million tokens, as decimal strings in one currency."""

    input: str = "0"
    output: str = "0"
    cache_read: str | None = None
    cache_write: str | None = None
    currency: str = "USD"


class Model(Value):
    """A model as a provider offers it. Sizes are tokens; 0 means unknown.

    `shared_window`: the output counts against `context_window` too.
    """

    id: str
    provider: str = ""
    context_window: int = 0
    max_output_tokens: int = 0
    shared_window: bool = False
    prices: Price | None = None


class Usage(Value):
    """Tokens of one response, as the provider told them last (PV-8).

    `input` is the whole prompt, cached part included; `output` includes `reasoning`. None means not told, which is
    not zero. `native` is the provider's own object. `cost` is money as a decimal string, where the provider tells it
    or the model has prices.
    """

    input: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    output: int | None = None
    reasoning: int | None = None
    total: int | None = None
    estimated: bool = False
    native: JSON = None
    cost: str | None = None

    def __add__(self, other: Usage) -> Usage:
        """Sum of two responses; a figure that neither told stays None."""

        def plus(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            plus(self.input, other.input),
            plus(self.cache_read, other.cache_read),
            plus(self.cache_write, other.cache_write),
            plus(self.output, other.output),
            plus(self.reasoning, other.reasoning),
            plus(self.total, other.total),
            self.estimated or other.estimated,
            cost=_sum(self.cost, other.cost),
        )


def _sum(a: str | None, b: str | None) -> str | None:
    if a is None or b is None:
        return b if a is None else a
    from decimal import Decimal

    return f"{Decimal(a) + Decimal(b):f}"


class ToolSpec(Value):
    """A tool as the model is told of it. `parameters` is a JSON Schema of an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, JSON] = field(default_factory=dict)


def user_message(
    content: str | Message | tuple[InputPart, ...] | list[InputPart], message_id: str
) -> Message:
    """Makes a user message of a text or of parts; a `Message` comes back as it is."""
    if isinstance(content, Message):
        return content
    parts: tuple[Part, ...] = (Text(content),) if isinstance(content, str) else tuple(content)
    return Message(message_id, "user", parts)


__all__ = [
    "JSON",
    "MEDIA",
    "UNSET",
    "ArtifactRef",
    "Audio",
    "CallOutcome",
    "Context",
    "File",
    "Image",
    "InputPart",
    "Media",
    "Message",
    "Model",
    "Part",
    "Price",
    "Reasoning",
    "Role",
    "StopReason",
    "Structured",
    "Text",
    "ToolCall",
    "ToolSpec",
    "Unset",
    "Usage",
    "Value",
    "Video",
    "user_message",
]
