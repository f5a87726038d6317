"""What interfaces are shown: messages with their delivery, tool calls, usage, interrupts, events. Values only.

They are projections for display. The truth is the vocabulary's `Message` and the facts; nothing here is ever stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from .messages import JSON, UNSET, Part, Unset, Value

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})

Delivered: TypeAlias = Literal["success", "paused", "aborted", "error", "interrupted"]
"""How a message, or an awaited action, came out."""

AgentStatus: TypeAlias = Literal["idle", "running", "error"]

AgentOutcome: TypeAlias = Delivered | Literal["nothing"]
"""What awaiting an action gives; `nothing` for one that had nothing to do."""

WhenBusy: TypeAlias = Literal["raise", "queue", "drop", "supersede", "steer", "rollback"]

StopResult: TypeAlias = Literal[
    "stopped",  # it has stopped, and that is known
    "will_stop",  # it was asked to; no proof is possible
    "unconfirmed",  # no proof came in time
    "nothing",  # nothing was in flight
]

ErrorKind: TypeAlias = Literal["connection", "auth", "server", "interrupted", "aborted"]
Recovery: TypeAlias = Literal["retry", "check", "none"]

InterruptPhase: TypeAlias = Literal[
    "none",  # nothing is open
    "collecting",  # a pause was seen, its run is not at its boundary yet
    "pending",  # answerable
    "claimed",  # one decision owns the batch, nothing was sent yet
    "resuming",  # sent
    "acknowledged",  # the backend started it
    "uncertain",  # sent or maybe sent, no answer
    "recovery-required",  # acknowledged, then failed
]


class MessageDelivery(Value):
    """Where a message is on its way to the reader.

    Attributes:
        generation: names one attempt; a row may be keyed by (message id, generation).
        phase: `streaming` while text may still come.
        outcome: exactly one once complete.
        reason: a finer word: `truncated`, `limit`, `superseded`, `abandoned`, …
    """

    generation: str
    phase: Literal["streaming", "complete"]
    outcome: Delivered | None = None
    reason: str | None = None


class Citation(Value):
    """Where something that was said comes from. `extra` holds what the backend told besides."""

    id: str
    title: str | None = None
    url: str | None = None
    excerpt: str | None = None
    extra: Mapping[str, JSON] = EMPTY


class AgentMessage(Value, omit_defaults=False):
    """A message as an interface shows it.

    Attributes:
        id: never changes while the message is shown.
        content: a text, or parts where there is more than text.
        reasoning: plain text, never mixed into the content.
        reasoning_duration: seconds by the wall clock of this client.
        tool_call_ids: the calls that belong to it, in order.
        tool_call_id: role tool: the call whose result this is.
        extra: what the backend told besides, under its own keys.
    """

    id: str
    role: Literal["user", "assistant", "system", "tool"]
    delivery: MessageDelivery
    content: str | tuple[Part, ...] = ""
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_duration: float | None = None
    citations: tuple[Citation, ...] = ()
    tool_call_ids: tuple[str, ...] = ()
    run_id: str | None = None
    extra: Mapping[str, JSON] = EMPTY

    @property
    def text(self) -> str:
        """Its text; parts that are no text are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join([getattr(part, "text", "") for part in self.content])


class AgentToolCall(Value):
    """A tool call as an interface shows it.

    Attributes:
        args: the last argument text that was an object; `args_text` is verbatim.
        status: `complete` once the arguments are whole, or with the result where a runtime says no more.
        result: UNSET while there is none.
        ledger: how the call came out: `succeeded`, `failed`, `cancelled`, `refused`, `unknown`; None where nobody says.
        subagent_id: the subagent that made it.
    """

    id: str
    name: str
    args: Mapping[str, JSON] = EMPTY
    args_text: str = ""
    status: Literal["pending", "running", "complete", "error"] = "pending"
    result: JSON | Unset = UNSET
    error: str | None = None
    ledger: str | None = None
    subagent_id: str | None = None


class UsageEntry(Value):
    """Tokens of the requests to one model. None was not told, which is not zero."""

    provider: str | None = None
    model: str | None = None
    input: int | None = None
    output: int | None = None
    total: int | None = None
    reasoning: int | None = None
    cached_input: int | None = None
    cache_write_input: int | None = None


class AgentUsage(Value):
    """Tokens of the run that ended last. Reasoning and cached tokens are parts of the totals."""

    entries: tuple[UsageEntry, ...]

    def _sum(self, name: str) -> int | None:
        told = [figure for entry in self.entries if (figure := getattr(entry, name)) is not None]
        return sum(told) if told else None

    @property
    def input(self) -> int | None:
        """All prompt tokens that were told."""
        return self._sum("input")

    @property
    def output(self) -> int | None:
        """All output tokens that were told."""
        return self._sum("output")

    @property
    def total(self) -> int | None:
        """All tokens that were told."""
        return self._sum("total")


# Interrupts


class Interrupt(Value):
    """What a run asks of a person.

    Attributes:
        reason: `tool_call`, `input_required`, `confirmation` or a backend's own.
        response_schema: JSON Schema of the payload of an answer.
        expires_at: from then on it can only be cancelled. An expiry that could not be read is in the past.
    """

    id: str
    reason: str = ""
    message: str | None = None
    value: JSON = None
    tool_call_id: str | None = None
    response_schema: JSON = None
    expires_at: datetime | None = None
    metadata: Mapping[str, JSON] = EMPTY
    subagent_id: str | None = None


class AgentInterrupt(Value):
    """The one interrupt that is shown; `resumable` is False while an answer to it is on its way."""

    id: str
    value: JSON = None
    resumable: bool = True


class InterruptAnswer(Value):
    """What is answered to one interrupt of a batch."""

    id: str
    status: Literal["resolved", "cancelled"] = "resolved"
    payload: JSON | Unset = UNSET


# Client tools


class Ok(Value):
    """A client tool came to this value."""

    value: JSON = None


class Err(Value):
    """A client tool failed; the model reads the message."""

    message: str


ToolOutcome: TypeAlias = Ok | Err


class Claimed(Value):
    """The guard of a client tool: run it."""


class Recorded(Value):
    """The guard of a client tool: it ran before, with this outcome."""

    outcome: ToolOutcome


class InDoubt(Value):
    """The guard of a client tool: it was begun before, and nobody knows how that ended."""


# Events


class StateUpdate(Value):
    """A backend told an update of its state that it keeps out of the state itself."""

    data: Mapping[str, JSON]


class CustomEvent(Value):
    """A backend told something of its own."""

    name: str
    data: JSON = None


AgentEvent: TypeAlias = StateUpdate | CustomEvent


# Asking a backend what happened


class ReconcileRequest(Value):
    """What a `reconcile` function is asked about."""

    thread_id: str
    run_id: str
    batch: tuple[Interrupt, ...] = ()
    generation: int = 0


class Reconciled(Value):
    """What it answers.

    Attributes:
        status: `acknowledged` says that the backend started the work, which is not that it finished.
        messages, state: authoritative; None keeps what is shown.
        batch, generation: a new batch that the finished run left, with a generation beyond the one asked about.
    """

    status: Literal["unknown", "pending", "acknowledged", "completed"]
    messages: tuple[AgentMessage, ...] | None = None
    state: JSON | None = None
    batch: tuple[Interrupt, ...] = ()
    generation: int = 0


class Checkpoint(Value):
    """A place in a thread's history to which a conversation can go back."""

    id: str
    label: str = ""
    values: Mapping[str, JSON] = EMPTY


__all__ = [
    "EMPTY",
    "AgentEvent",
    "AgentInterrupt",
    "AgentMessage",
    "AgentOutcome",
    "AgentStatus",
    "AgentToolCall",
    "AgentUsage",
    "Checkpoint",
    "Citation",
    "Claimed",
    "CustomEvent",
    "Delivered",
    "Err",
    "ErrorKind",
    "InDoubt",
    "Interrupt",
    "InterruptAnswer",
    "InterruptPhase",
    "MessageDelivery",
    "Ok",
    "ReconcileRequest",
    "Reconciled",
    "Recorded",
    "Recovery",
    "StateUpdate",
    "StopResult",
    "ToolOutcome",
    "UsageEntry",
    "WhenBusy",
]
