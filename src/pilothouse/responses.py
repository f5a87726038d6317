"""What a provider is asked and what it streams back (the provider contract, values only).

A provider yields *provider events*: any number of openings, deltas, usage figures and notices, then exactly one
`StreamEnd`. Failure is an event, not an exception (PV-1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeAlias

from msgspec import field

from .messages import JSON, Message, Model, StopReason, ToolSpec, Usage, Value

ErrorKind: TypeAlias = Literal[
    "auth",
    "quota",
    "rate_limit",
    "overloaded",
    "server_error",
    "transport",
    "context_overflow",
    "invalid_request",
    "malformed",
    "protocol",
    "malformed_tool_call",
    # the loop's own
    "config",
    "hook",
    "bug",
    "send_timeout",
    "idle_timeout",
    "stalled",
    # the conversation's
    "provider_contract",
    "unsupported_attachment",
    "commit",
    "provider",
    "provider_cancelled",
    "start_refused",
]

RETRYABLE: frozenset[str] = frozenset(
    {"rate_limit", "overloaded", "server_error", "transport", "send_timeout", "idle_timeout", "stalled"}
    | {"provider", "provider_cancelled"}
)
"""Kinds that can pass by themselves: a person (or, before anything was visible, the loop) may ask again."""

STATUS_KINDS: Mapping[int, ErrorKind] = MappingProxyType(
    {
        401: "auth",
        402: "quota",
        403: "auth",
        413: "context_overflow",
        429: "rate_limit",
        503: "overloaded",
        529: "overloaded",
    }
)
"""What an HTTP status says by itself; of any other, 500 and above are the server's fault, the rest the request's."""


class ErrorInfo(Value):
    """Why a response failed. `message` is the provider's own words; `status` the HTTP status where there was one."""

    kind: ErrorKind
    message: str = ""
    code: str | None = None
    status: int | None = None
    retry_after_ms: int | None = None
    native: JSON = None

    @property
    def retryable(self) -> bool:
        """Whether asking again can help at all."""
        return self.kind in RETRYABLE


class ResponseStarted(Value, tag="response_started", tag_field="kind"):
    """The response head is in; comes before any content."""

    response_id: str | None = None
    model: str | None = None


class TextDelta(Value, tag="text", tag_field="kind"):
    """A piece of answer text. Blocks are numbered by first appearance in the response (PV-4)."""

    block: int
    text: str


class ReasoningDelta(Value, tag="reasoning", tag_field="kind"):
    """A piece of reasoning text."""

    block: int
    text: str


class ToolCallDelta(Value, tag="tool_call", tag_field="kind"):
    """A piece of a tool call: the first one names it, every one may add argument text.

    `call_id` is unique in the response; `wire_id` is what the provider wrote, if anything. `args` is an object where
    the dialect sends arguments whole and parsed.
    """

    block: int
    call_id: str
    name: str = ""
    args: str | dict[str, JSON] = ""
    wire_id: str | None = None


class BlockEnded(Value, tag="block_ended", tag_field="kind"):
    """A block is whole. `provider_data` (and for reasoning `raw`) is what must go back to this provider.

    Of a call, `raw` is the text of its arguments where the provider's last word differs from the pieces.
    """

    block: int
    provider_data: JSON = None
    raw: JSON = None
    redacted: bool = False


class UsageUpdate(Value, tag="usage", tag_field="kind"):
    """The response's figures so far; the last told value of each field wins."""

    usage: Usage


class Notice(Value, tag="notice", tag_field="kind"):
    """Something odd that does not break the response: an unknown event, a missing reason."""

    name: str
    detail: str = ""


class StreamEnd(Value, tag="end", tag_field="kind"):
    """How the response ended; exactly one, last.

    `raw_reason` is the provider's word; `error` is set exactly for `reason == "error"`; `cause` (`eof`, `reset`)
    exactly for `"unknown"`.
    """

    reason: StopReason
    raw_reason: str | None = None
    error: ErrorInfo | None = None
    cause: Literal["eof", "reset"] | None = None


ProviderEvent: TypeAlias = (
    ResponseStarted
    | TextDelta
    | ReasoningDelta
    | ToolCallDelta
    | BlockEnded
    | UsageUpdate
    | Notice
    | StreamEnd
)


class Timeouts(Value):
    """Seconds: to get a connection, and to read the body of an error answer. Silence is limited by the loop (PV-11)."""

    connect: float = 15.0
    error_body: float = 5.0


class ModelSettings(Value):
    """How a model is to answer; None leaves the provider's default. `extra` is passed through as it is."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    reasoning_effort: str | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: str | dict[str, JSON] | None = None
    parallel_tool_calls: bool | None = None
    response_schema: Mapping[str, JSON] | None = None
    timeouts: Timeouts = Timeouts()
    extra: Mapping[str, JSON] = field(default_factory=dict)


class ModelRequest(Value, gc=True):
    """One request to a model. `messages` is the payload: already paired and trimmed.

    `deadline_ms` is wall-clock, epoch milliseconds.
    """

    model: Model
    messages: Sequence[Message]
    system_prompt: str | None = None
    tools: Sequence[ToolSpec] = ()
    settings: ModelSettings = ModelSettings()
    thread_id: str = ""
    attempt: int = 1
    deadline_ms: int | None = None


__all__ = [
    "RETRYABLE",
    "STATUS_KINDS",
    "BlockEnded",
    "ErrorInfo",
    "ErrorKind",
    "ModelRequest",
    "ModelSettings",
    "Notice",
    "ProviderEvent",
    "ReasoningDelta",
    "ResponseStarted",
    "StreamEnd",
    "TextDelta",
    "Timeouts",
    "ToolCallDelta",
    "UsageUpdate",
]
