"""Every fact and every delta of a run, and how a run can end.

A **fact** is durable and numbered: the struct's tag (`kind`) is its name in the journal and on every wire. A
**delta** is ephemeral: told to whoever listens, never numbered, never folded. Which fact is legal when is
`core/run.py`; where facts are kept is `journal/`.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import field

from .commands import Command, Request, Resolution, StopSource
from .messages import (
    JSON,
    ArtifactRef,
    CallOutcome,
    Message,
    Part,
    StopReason,
    Usage,
    Value,
)
from .responses import ErrorInfo

VOCABULARY: Final = (1, 0)
"""Version of the fact vocabulary: majors must be equal, a newer minor is readable."""

Effect: TypeAlias = Literal["read", "idempotent", "non_idempotent", "human"]
Lane: TypeAlias = Literal["host", "runtime"]

# How a run ends


class Completed(Value, tag="completed", tag_field="outcome"):
    """Done. `empty`: the model said nothing; `stopped_by`: a tool or hook ended the asking."""

    empty: bool = False
    stopped_by: str | None = None


class Truncated(Value, tag="truncated", tag_field="outcome"):
    """The answer was cut by an output limit."""


class Incomplete(Value, tag="incomplete", tag_field="outcome"):
    """A declared end without a finished answer: `limit`, `interrupted`, `runtime_ended`, `content_filter` or a runtime's own."""

    reason: str
    limit: str | None = None
    partial: str | None = None


class Cancelled(Value, tag="cancelled", tag_field="outcome"):
    """Somebody stopped it."""

    reason: str = ""
    source: StopSource = "user"


class Failed(Value, tag="failed", tag_field="outcome"):
    """It failed; `kind` is one of `responses.ErrorKind`."""

    kind: str
    code: str | None = None
    message: str = ""
    retryable: bool = False
    retry_after_ms: int | None = None


class Unknown(Value, tag="unknown", tag_field="outcome"):
    """Nobody saw the end. `settled`: a person decided to leave it at that."""

    cause: str = ""
    reason: str = ""
    settled: bool = False
    by: str = ""


Outcome: TypeAlias = Completed | Truncated | Incomplete | Cancelled | Failed | Unknown


class Delivery(Value):
    """What a completed run hands over: ids of committed facts of this run."""

    message_ids: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    supports: tuple[str, ...] = ()


LossCause: TypeAlias = Literal[
    "eof",  # the runtime returned without an end
    "error",  # it raised
    "cancelled_outside",  # its task was cancelled, but not by our stop
    "stop_unconfirmed",  # it ignored a stop
    "violation",  # it broke the contract
    "owner_lost",  # the process that drove it is gone
    "shutdown",  # the controller was closed
    "recovery_failed",  # a recovery began and broke
    "journal_unavailable",  # told to waiters while the journal is away; never recorded
]

# Facts


class Fact(Value, tag_field="kind"):
    """Base of all facts."""

    @property
    def kind(self) -> str:
        """Its name in the journal and on every wire."""
        return str(self.__struct_config__.tag)


class RunAccepted(Fact, tag="run_accepted"):
    """Seq 1: the run is registered and owned; nothing has been asked of the runtime yet."""

    thread_id: str
    spec_digest: str
    binding: str
    descriptor_digest: str
    vocabulary: tuple[int, int] = VOCABULARY


class StartRefused(Fact, tag="start_refused"):
    """The runtime promised that no work exists."""

    code: str
    message: str = ""
    retryable: bool = False


class Skipped(Value):
    """An optional resource that a runtime did not take."""

    name: str
    code: str = ""
    reason: str = ""


class RunStarted(Fact, tag="run_started"):
    """The runtime began to work."""

    skipped: tuple[Skipped, ...] = ()


class CommandReceived(Fact, tag="command_received"):
    """The whole command, recorded before it is forwarded."""

    command: Command
    digest: str


class CommandAnswered(Fact, tag="command_answered"):
    """`implied`: not said by the runtime but proved by an effect of the command (RC-22)."""

    command_id: str
    answer: Literal["accepted", "rejected", "unsupported"]
    code: str = ""
    message: str = ""
    implied: bool = False


class StopRequested(Fact, tag="stop_requested"):
    """From here on nothing new may start."""

    reason: str
    source: StopSource = "user"


class TurnStarted(Fact, tag="turn_started"):
    """A model response and its tool calls begin. `turn` counts from 1."""

    turn: int
    model: str | None = None
    tools_digest: str | None = None


class TurnEnded(Fact, tag="turn_ended"):
    """All calls of the turn have their result."""

    turn: int
    stop_reason: StopReason | None = None
    usage: Usage | None = None


class ModelRequested(Fact, tag="model_requested"):
    """Durable before the request leaves."""

    turn: int
    attempt: int
    message_id: str
    provider: str = ""
    model: str = ""
    request_digest: str = ""


class ModelAttemptEnded(Fact, tag="model_attempt_ended"):
    """How one request ended."""

    turn: int
    attempt: int
    end: Literal["answered", "discarded", "failed", "interrupted", "cancelled"]
    why: str = ""
    error: ErrorInfo | None = None
    usage: Usage | None = None
    retry_after_ms: int | None = None
    notices: tuple[str, ...] = ()


class MessageAdded(Fact, tag="message_added"):
    """A whole message of the transcript. An assistant message proposes its calls."""

    message: Message
    turn: int = 0


class PartialSaved(Fact, tag="partial_saved"):
    """A fragment of a message that is still being streamed.

    `offset` counts characters of the part; `index` numbers the parts of the message in order of appearance. `tool` is
    what the arguments are for, as far as it was told; a call that was only named has an empty text.
    """

    message_id: str
    part: Literal["text", "reasoning", "arguments"]
    index: int
    offset: int
    text: str
    call_id: str | None = None
    tool: str = ""


class OutputAdded(Fact, tag="output_added"):
    """A named result of the run besides its messages."""

    output_id: str
    name: str
    content: JSON = None


class HistoryCompacted(Fact, tag="history_compacted"):
    """The context was replaced: these messages stay, these are new. The transcript is untouched."""

    kept: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    method: str = ""


class CallProposed(Fact, tag="call_proposed"):
    """A call that no assistant message named."""

    call_id: str
    tool: str
    arguments: dict[str, JSON] = field(default_factory=dict)
    index: int = 0


class CallStarted(Fact, tag="call_started"):
    """Durable before the function is entered (EF-1).

    `arguments` only if they differ from what was proposed; `approved_by` is the request whose answer allowed it,
    None where policy did; `key` is the idempotency key, equal in all attempts (EF-3).
    """

    call_id: str
    attempt: int
    tool: str
    arguments_digest: str
    effect: Effect = "non_idempotent"
    key: str = ""
    arguments: dict[str, JSON] | None = None
    approved_by: str | None = None
    mediated: bool = True


class CallObserved(Fact, tag="call_observed"):
    """The raw end of a call, recorded where something still happens to it before it is the result (EF-7).

    `not_run`: a reconciliation proved that this attempt did not happen, so another may be made (EF-5).
    """

    call_id: str
    attempt: int
    status: Literal["returned", "raised", "cancelled", "timed_out", "reconciled"]
    content: tuple[Part, ...] = ()
    is_error: bool = False
    not_run: bool = False


class CallFinished(Fact, tag="call_finished"):
    """The one result of a call: the tool message of the transcript (EF-2).

    `marks`: `coerced`, `retried`, `backgrounded`, `abandoned`, `terminate`. `by`: `host` where the writer settled it.
    """

    call_id: str
    outcome: CallOutcome
    content: tuple[Part, ...] = ()
    is_error: bool = False
    reason: str = ""
    error: str | None = None
    marks: tuple[str, ...] = ()
    by: Lane = "runtime"
    attempt: int = 0


class RequestOpened(Fact, tag="request_opened"):
    """The run asks a person or the host."""

    request: Request


class RequestResolved(Fact, tag="request_resolved"):
    """It was answered; the causation is the answer command."""

    request_id: str
    resolution: Resolution


class RequestClosed(Fact, tag="request_closed"):
    """It will not be answered any more."""

    request_id: str
    reason: Literal["elsewhere", "superseded", "expired", "withdrawn", "run_ended"]


class InputReturned(Fact, tag="input_returned"):
    """A queued steer or follow-up goes back to its sender."""

    command_id: str
    reason: Literal["withdrawn", "replaced", "expired", "run_ended"]


class Noted(Fact, tag="noted"):
    """A remark; no effect on the run's state. `name` is `namespace/name`."""

    name: str
    data: JSON = None


SUBAGENT: Final = "pilothouse/subagent"
"""The remark that a call is a run of its own, recorded before that begins: `call_id`, the child's `run_id`, its `name`."""


class ViolationRecorded(Fact, tag="violation_recorded"):
    """What the runtime did against the contract, kept as evidence."""

    code: str
    why: str
    draft: JSON = None
    digest: str = ""


class ContinuityLost(Fact, tag="continuity_lost"):
    """From here on nobody knows what happened."""

    last_seq: int
    cause: LossCause
    reason: str = ""


class ContinuityRestored(Fact, tag="continuity_restored"):
    """Evidence closed the gap; `accepted` holds the reasons of a person where some were needed."""

    loss_seq: int
    method: Literal["journal", "replay", "query"]
    prefix_chain: str = ""
    replayed: int = 0
    accepted: tuple[str, ...] = ()


class RunAbandoned(Fact, tag="run_abandoned"):
    """A person decided to leave the outcome unknown."""

    reason: str
    by: str = ""


class RunEnded(Fact, tag="run_ended"):
    """The end, told by the runtime (or settled by the writer after our stop)."""

    outcome: Outcome
    delivery: Delivery = Delivery()


AnyFact: TypeAlias = (
    RunAccepted
    | StartRefused
    | RunStarted
    | CommandReceived
    | CommandAnswered
    | StopRequested
    | TurnStarted
    | TurnEnded
    | ModelRequested
    | ModelAttemptEnded
    | MessageAdded
    | PartialSaved
    | OutputAdded
    | HistoryCompacted
    | CallProposed
    | CallStarted
    | CallObserved
    | CallFinished
    | RequestOpened
    | RequestResolved
    | RequestClosed
    | InputReturned
    | Noted
    | ViolationRecorded
    | ContinuityLost
    | ContinuityRestored
    | RunAbandoned
    | RunEnded
)


class Opaque(Value):
    """A fact of a newer vocabulary: readable as data, not controllable here (RC-9)."""

    kind: str
    data: JSON = None


# Deltas


class ResponseStream(Value, tag="response_started", tag_field="kind"):
    """The stream of a response is handed over."""

    message_id: str
    response_id: str | None = None
    model: str | None = None


class TextTold(Value, tag="text", tag_field="kind"):
    """A piece of answer text of a message that is being streamed.

    `index` numbers the message's parts; `offset` counts the characters of the part before this piece. The port fills
    `offset` in.
    """

    message_id: str
    index: int
    text: str
    offset: int = 0


class ReasoningTold(Value, tag="reasoning", tag_field="kind"):
    """A piece of reasoning text."""

    message_id: str
    index: int
    text: str
    offset: int = 0


class ArgumentsTold(Value, tag="arguments", tag_field="kind"):
    """A piece of a call's argument text; `tool` is known with the first."""

    message_id: str
    index: int
    call_id: str
    text: str
    offset: int = 0
    tool: str = ""


class CallProgress(Value, tag="call_progress", tag_field="kind"):
    """What a running tool says of itself. `text` ≤ 512 characters, `fraction` in [0, 1], ≤ 16 details."""

    call_id: str
    text: str = ""
    fraction: float | None = None
    details: tuple[JSON, ...] = ()


class CallHeartbeat(Value, tag="call_heartbeat", tag_field="kind"):
    """A long call is still running."""

    call_id: str
    elapsed_ms: int
    attempt: int = 1


class RunHeartbeat(Value, tag="run_heartbeat", tag_field="kind"):
    """The runtime is alive though it has nothing to tell."""


class Progress(Value, tag="progress", tag_field="kind"):
    """What the run as a whole says of itself."""

    text: str = ""
    fraction: float | None = None


class OwnershipTold(Value, tag="ownership", tag_field="kind"):
    """Who drives the run changed."""

    ownership: str


class Lagged(Value, tag="lagged", tag_field="kind"):
    """This follower fell behind; what it missed of facts it gets from the journal, deltas are gone."""

    facts: int
    deltas: int
    last_seq: int


class Extension(Value, tag="extension", tag_field="kind"):
    """A delta of somebody else's vocabulary. `name` is `namespace/name`."""

    name: str
    data: JSON = None


class ChildTold(Value, tag="child", tag_field="kind"):
    """What a sub-agent does while the call that began it runs: a piece of its text, or one of its facts.

    `run_id` is the child's. That it began is a fact of the parent (`pilothouse/subagent`), that it is over is the end of
    the call: whoever missed pieces of it has those.
    """

    call_id: str
    run_id: str
    said: TextTold | ReasoningTold | None = None
    fact: MessageAdded | CallStarted | CallFinished | None = None


DeltaBody: TypeAlias = (
    ResponseStream
    | TextTold
    | ReasoningTold
    | ArgumentsTold
    | CallProgress
    | CallHeartbeat
    | RunHeartbeat
    | Progress
    | OwnershipTold
    | Lagged
    | Extension
    | ChildTold
)


class Delta(Value):
    """A told delta. `n` counts per attachment, `after_seq` is the last durable fact then."""

    run_id: str
    n: int
    after_seq: int
    body: DeltaBody


__all__ = [
    "SUBAGENT",
    "VOCABULARY",
    "AnyFact",
    "ArgumentsTold",
    "ArtifactRef",
    "CallFinished",
    "CallHeartbeat",
    "CallObserved",
    "CallProgress",
    "CallProposed",
    "CallStarted",
    "Cancelled",
    "ChildTold",
    "CommandAnswered",
    "CommandReceived",
    "Completed",
    "ContinuityLost",
    "ContinuityRestored",
    "Delivery",
    "Delta",
    "DeltaBody",
    "Effect",
    "Extension",
    "Fact",
    "Failed",
    "HistoryCompacted",
    "Incomplete",
    "InputReturned",
    "Lagged",
    "Lane",
    "LossCause",
    "MessageAdded",
    "ModelAttemptEnded",
    "ModelRequested",
    "Noted",
    "Opaque",
    "Outcome",
    "OutputAdded",
    "OwnershipTold",
    "PartialSaved",
    "Progress",
    "ReasoningTold",
    "RequestClosed",
    "RequestOpened",
    "RequestResolved",
    "ResponseStream",
    "RunAbandoned",
    "RunAccepted",
    "RunEnded",
    "RunHeartbeat",
    "RunStarted",
    "Skipped",
    "StartRefused",
    "StopRequested",
    "TextTold",
    "Truncated",
    "TurnEnded",
    "TurnStarted",
    "Unknown",
    "ViolationRecorded",
]
