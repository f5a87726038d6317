"""A run as it is registered, stored, listed and shown: values between the run controller, runtimes and journals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import field

from .commands import CommandKind, Request, RequestKind
from .errors import OutcomeError
from .events import (
    VOCABULARY,
    AnyFact,
    Completed,
    Delivery,
    Lane,
    LossCause,
    Opaque,
    Outcome,
    Truncated,
)
from .messages import JSON, Message, Usage, Value

T = TypeVar("T")

RunStateName: TypeAlias = Literal["accepted", "running", "waiting", "stopping", "unknown", "terminal"]

RunStatus: TypeAlias = Literal[
    "accepted", "running", "waiting", "stopping", "unknown",  # the state, while there is no outcome
    "completed", "truncated", "incomplete", "cancelled", "failed",  # the outcome's word
    "corrupt",  # of a catalog entry only
]  # fmt: skip

UNFINISHED: Final[frozenset[str]] = frozenset({"cancelled", "failed", "unknown"})
"""Statuses of runs that a retry goes on from: there is no answer, and nothing is under way (AC-50)."""

Ownership: TypeAlias = Literal[
    "here",  # this controller drives it
    "elsewhere",  # another living process does
    "queued",  # nobody drives it: the dispatcher gives it to a process that will
    "orphaned",  # its owner is dead
    "parked",  # at rest, released on purpose
    "stalled",  # ours, but the journal is away
    "none",  # ended, or unknown by a recorded loss and released
]


class Parent(Value):
    """Where a run hangs: after `keep_through`, a message on the path of `run_id` (None: its last one).

    `seq` is set at registration where the parent had not ended: its later facts are not on this path, so that what
    stands in front of a run never changes (RC-68). 0: all of them are.
    """

    run_id: str
    keep_through: str | None = None
    seq: int = 0


class Origin(Value):
    """The run and call that spawned this run."""

    run_id: str
    call_id: str = ""


class RunSpec(Value):
    """One immutable request to a runtime. Carries no authority: no approval, no secret, no native handle.

    `base` is a history without a parent run; `options` is JSON for the runtime; `deadline_ms` is epoch milliseconds.
    """

    run_id: str
    thread_id: str
    input: tuple[Message, ...] = ()
    tenant: str = ""
    parent: Parent | None = None
    base: tuple[Message, ...] = ()
    options: dict[str, JSON] = field(default_factory=dict)
    deadline_ms: int | None = None
    output_schema: JSON = None
    config_digest: str = ""
    origin: Origin | None = None
    extensions: dict[str, JSON] = field(default_factory=dict)
    vocabulary: tuple[int, int] = VOCABULARY


class Descriptor(Value):
    """The contract of a runtime: what it takes, what it may ask, how it ends and how it recovers (RC-7)."""

    runtime: str
    agent: str = ""
    vocabulary: tuple[int, int] = VOCABULARY
    accepts: tuple[str, ...] = ("text/*",)
    commands: tuple[CommandKind, ...] = ()
    inputs: Literal["queue", "forward"] = "queue"
    requests: tuple[RequestKind, ...] = ()
    cancel: Literal["none", "best_effort", "confirmed"] = "best_effort"
    recovery: Literal["journal", "replay", "query"] | None = None
    thread_reuse: Literal["none", "sequential", "parallel"] = "sequential"
    structured_output: bool = False
    extensions: dict[str, JSON] = field(default_factory=dict)


class DescribedRuntime(Value):
    """A descriptor with its digest; never changes for the life of a binding."""

    descriptor: Descriptor
    digest: str


class Registration(Value):
    """What is durable before a runtime is called; immutable."""

    spec: RunSpec
    spec_digest: str
    binding: str
    descriptor_digest: str
    identity: str
    created_at_ms: int


class Head(Value):
    """The end of a run's facts: the last seq and its chain value (seq 0: nothing yet)."""

    seq: int
    chain: str


class Draft(Value):
    """What a runtime offers. No seq: a runtime cannot number. `source` is the fingerprint of a native event."""

    fact: AnyFact
    event_id: str | None = None
    causation: str | None = None
    source: str | None = None


class Record(Value):
    """A stored fact. `body` is the canonical JSON whose SHA-256 is `digest`; it is what stores keep."""

    run_id: str
    seq: int
    at_ms: int
    lane: Lane
    fence: int
    event_id: str
    fact: AnyFact | Opaque
    digest: str
    chain: str
    body: bytes = b""
    causation: str | None = None
    source: str | None = None


class RunSummary(Value):
    """What a store keeps of a run's fold beside its facts, so that lists and heads read no facts (JR-5).

    `resting`: nothing is in flight, the run only waits for answers (RC-50).
    """

    state: RunStateName = "accepted"
    status: RunStatus = "accepted"
    resting: bool = False
    loss_recorded: bool = False
    takeovers: int = 0
    updated_at_ms: int = 0


class Owner(Value):
    """A controller instance. `machine`, `pid` and `started` prove on the same machine that it is dead."""

    id: str
    machine: str = ""
    pid: int = 0
    started: str = ""


class ClaimRequest(Value):
    """`ttl_ms` is the length of the lease; `now_ms` the claimer's clock, ignored by stores that have their own."""

    owner: Owner
    ttl_ms: int
    now_ms: int


class RunHead(Value):
    """A run without its facts. `owner_alive` is None where nobody owns it."""

    registration: Registration
    head: Head
    summary: RunSummary
    fence: int
    owner: str | None = None
    owner_alive: bool | None = None


class Created(Value):
    """`existing`: an equal run was there already and nothing was written."""

    head: RunHead
    existing: bool = False


class Appended(Value):
    """`duplicate`: exactly these records were stored already."""

    head: Head
    duplicate: bool = False


class RecordPage(Value):
    """Records in order, `more` if the run goes on behind them."""

    records: tuple[Record, ...]
    more: bool = False


class UnknownInfo(Value):
    """Why nobody knows how a run goes on, and what can help."""

    cause: LossCause
    reason: str = ""
    loss_seq: int = 0
    ways: tuple[Literal["recover", "check_status", "abandon"], ...] = ()


class CallView(Value):
    """An open call, as the view shows it."""

    call_id: str
    tool: str
    state: Literal["proposed", "awaiting", "started", "observed"]
    attempt: int = 0


class RunView(Value):
    """The bounded projection of a run: no transcript, texts ≤ 512 characters, pending sorted by id (RC-30)."""

    run_id: str
    thread_id: str
    state: RunStateName
    status: RunStatus
    ownership: Ownership
    last_seq: int
    chain: str
    tag: str
    fence: int
    binding: str
    descriptor_digest: str
    tenant: str = ""
    parent: Parent | None = None
    turn: int = 0
    requests: tuple[Request, ...] = ()
    queued: tuple[str, ...] = ()
    calls: tuple[CallView, ...] = ()
    outcome: Outcome | None = None
    delivery: Delivery | None = None
    usage: Usage | None = None
    unknown: UnknownInfo | None = None
    can: tuple[CommandKind, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0


class RunEntry(Value):
    """A run in a list."""

    run_id: str
    thread_id: str
    binding: str
    descriptor_digest: str
    state: RunStateName
    status: RunStatus
    last_seq: int
    created_at_ms: int
    updated_at_ms: int
    tenant: str = ""
    parent: Parent | None = None
    origin: Origin | None = None
    can_control: bool = False
    ownership: Ownership = "none"
    takeovers: int = 0


class RunQuery(Value):
    """Filters of a catalog; None admits everything. Times are epoch milliseconds of creation."""

    tenant: str | None = None
    thread_id: str | None = None
    states: tuple[RunStateName, ...] | None = None
    statuses: tuple[RunStatus, ...] | None = None
    binding: str | None = None
    parent: str | None = None
    origin: str | None = None
    after_ms: int | None = None
    before_ms: int | None = None


class Page(Value, Generic[T]):
    """One page of a list; `cursor` asks for the next, None at the end."""

    items: tuple[T, ...]
    cursor: str | None = None


class RunResult(Value):
    """How a run ended. `settled` is False for an unknown that evidence may still change."""

    outcome: Outcome
    view: RunView
    settled: bool = True

    def raise_for_outcome(self) -> None:
        """Does nothing for completed and truncated runs.

        Raises:
            OutcomeError: for every other outcome.
        """
        if not isinstance(self.outcome, Completed | Truncated):
            raise OutcomeError(self.outcome, self.view.run_id)


class HistoryMessage(Value):
    """A message of a path, with where it came from. Not `complete`: known from fragments only, `end` says why."""

    message: Message
    run_id: str
    seq: int = 0
    complete: bool = True
    end: str = ""
    call_outcome: str = ""


class Accept(Value):
    """Reasons of a person for recovering in spite of something (RC-58)."""

    violation: str = ""
    config_change: str = ""


class StatusAnswer(Value):
    """Where a foreign agent says that a run stands."""

    kind: Literal["running", "waiting", "settled", "absent", "unknown"]
    detail: str = ""
    drafts: tuple[Draft, ...] = ()


class Start(Value, gc=True):
    """What a runtime is driven with. `history` is the path up to this run, complete messages only (RC-82).

    `apart`: parts of it, or of the input, may stand for bytes that the journal keeps.
    """

    spec: RunSpec
    history: Sequence[Message]
    spec_digest: str
    binding: str
    descriptor_digest: str
    fence: int
    identity: str
    apart: bool = True


class ThreadRecord(Value):
    """Title, pins and marks of a thread: never needed for a run. `keys` holds idempotency keys of operations."""

    tenant: str
    thread_id: str
    revision: int = 0
    title: str = ""
    agent: str = ""
    created_at_ms: int = 0
    updated_at_ms: int = 0
    pinned: bool = False
    archived: bool = False
    metadata: dict[str, JSON] = field(default_factory=dict)
    keys: dict[str, JSON] = field(default_factory=dict)


class Verification(Value):
    """What a check of a store found; `problems` is empty if all is well."""

    runs: int
    facts: int
    problems: tuple[str, ...] = ()


class JournalStats(Value):
    """Counters since the store was opened."""

    facts: int = 0
    appends: int = 0
    commits: int = 0
    retries: int = 0
    busy_waits: int = 0
    bytes: int = 0
    queue: int = 0


__all__ = [
    name for name, item in list(globals().items()) if isinstance(item, type) and item.__module__ == __name__
] + [
    "UNFINISHED",
    "Ownership",
    "RunStateName",
    "RunStatus",
]
