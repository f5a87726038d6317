"""What the parts of the house ask of each other, as Protocols.

Implement these to bring a model (`Provider`), a whole agent (`Runtime`) or a store (`Journal`). Conformance suites
for each of them are in `pilothouse.testing`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from .cluster import Relay
from .commands import Command, CommandKind, Request, StopSource
from .events import DeltaBody, Effect, Fact
from .messages import JSON, UNSET, ArtifactRef, Model, Unset
from .records import (
    Appended,
    ClaimRequest,
    Created,
    Descriptor,
    Draft,
    Head,
    JournalStats,
    Owner,
    Page,
    Record,
    RecordPage,
    Registration,
    RunEntry,
    RunHead,
    RunQuery,
    RunSummary,
    RunView,
    Start,
    StatusAnswer,
    ThreadRecord,
    Verification,
)
from .responses import ModelRequest, ProviderEvent

GatePoint: TypeAlias = Literal["request", "call", "read"]
"""Where a runtime waits while paused: before a model request, a call start, a read of a model stream (RC-83)."""


class Clock(Protocol):
    """Time, injected: tests move it, nothing sleeps."""

    def time_ms(self) -> int:
        """Wall clock, epoch milliseconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


class CancelToken(Protocol):
    """A stop that can be asked for from any thread and observed in any style."""

    @property
    def reason(self) -> str:
        """Why, once set."""
        ...

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        ...

    async def wait(self) -> None:
        """Waits until it is."""
        ...

    def on_set(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when it is set (at once if it is already); returns a function that takes this back."""
        ...

    def raise_if_set(self) -> None:
        """Raises `asyncio.CancelledError` if set."""
        ...


@runtime_checkable
class Provider(Protocol):
    """Talks to one model API.

    `tag` is its provenance ("anthropic"), compared when reasoning is replayed. `stream` yields provider events, ends
    with exactly one `StreamEnd`, and raises nothing but `CancelledError`; closing the iterator closes the connection.
    """

    tag: str
    default_model: Model

    def stream(self, request: ModelRequest, /) -> AsyncIterator[ProviderEvent]:
        """One request, one response."""
        ...

    async def aclose(self) -> None:
        """Closes what the provider opened itself."""
        ...


class CancelScope(Protocol):
    """The stop of a run, as its runtime sees it."""

    @property
    def cancelled(self) -> bool:
        """Whether the run is to end."""
        ...

    @property
    def reason(self) -> str:
        """Why; empty while it is not."""
        ...

    @property
    def source(self) -> StopSource | None:
        """Who asked: a person, the deadline, the end of the process, the parent run."""
        ...

    @property
    def deadline_ms(self) -> int | None:
        """When the run ends by itself, epoch milliseconds."""
        ...

    def on_cancel(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when cancelled (at once if it is already); returns a function that takes this back."""
        ...

    async def wait(self) -> None:
        """Waits until cancelled."""
        ...


class PendingCommand(Protocol):
    """A command taken from the inbox."""

    @property
    def command(self) -> Command:
        """What was asked."""
        ...

    async def accept(self) -> None:
        """Records that it will have, or has, an effect. Not needed before a fact that names it as its cause."""
        ...

    async def reject(self, code: str, message: str = "") -> None:
        """Records that it will have none; an answer is not used up by this."""
        ...

    async def unsupported(self, feature: str = "") -> None:
        """Records that this runtime has no such thing."""
        ...


class CommandInbox(Protocol):
    """Commands for a run, in order."""

    def peek(self, kind: CommandKind | None = None) -> Command | None:
        """The next one (of that kind), left where it is."""
        ...

    def take(self, kind: CommandKind | None = None) -> PendingCommand | None:
        """Takes the next one (of that kind), or None. Never waits."""
        ...

    async def wait(self, kind: CommandKind | None = None) -> None:
        """Waits until there is one (of that kind)."""
        ...

    def on_arrival(self, callback: Callable[[Command], object], /) -> Callable[[], None]:
        """Calls back for each command that arrives from now on; returns a function that takes this back."""
        ...


class CallFold(Protocol):
    """A tool call as the facts so far know it (the effect ledger, `core/calls.py`)."""

    @property
    def call_id(self) -> str: ...
    @property
    def tool(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, JSON]: ...
    @property
    def args_error(self) -> str | None: ...
    @property
    def state(self) -> Literal["proposed", "awaiting", "started", "observed", "finished"]: ...
    @property
    def attempt(self) -> int: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def key(self) -> str: ...
    @property
    def mediated(self) -> bool: ...


class RunFold(Protocol):
    """A run as the facts so far know it (`core/run.py`)."""

    @property
    def run_id(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def state(self) -> str:
        """A `records.RunStateName`."""
        ...

    @property
    def turn(self) -> int: ...
    @property
    def turn_open(self) -> bool: ...
    @property
    def calls(self) -> Mapping[str, CallFold]: ...
    @property
    def requests(self) -> Mapping[str, Request]: ...


class RunPort(Protocol):
    """What a runtime is given to work with; valid for one attachment.

    Ports may also have `attended` (bool, True): whether anybody can answer a request; `on_gate(callback)`: calls back when
    a point was shut or opened, and returns a function that takes this back; and `flow(message_id, index)`: gives a function
    that tells the next piece of that text, cheaper than `tell` for each, and raises `TypeError` for what is no text. A
    runtime works without any of them.
    """

    @property
    def state(self) -> RunFold:
        """Fold of the facts so far; read-only."""
        ...

    @property
    def scope(self) -> CancelScope:
        """The stop."""
        ...

    @property
    def commands(self) -> CommandInbox:
        """Steering, follow-ups, answers."""
        ...

    @property
    def paused(self) -> Collection[GatePoint]:
        """The points that are closed now: a live view, so that a look at it is all that an open gate costs."""
        ...

    def facts(self, after: int = 0) -> AsyncIterator[Record]:
        """The run's facts from the journal."""
        ...

    async def record(self, *facts: Fact | Draft) -> int:
        """One atomic append; returns the last seq once it is durable.

        Raises:
            RecordRefused: an honest race (the run is stopping, unknown, ended) or a bad form; nothing was stored.
            ProtocolViolation: the runtime broke the contract; the port is closed.
        """
        ...

    def tell(self, body: DeltaBody, /) -> None:
        """Publishes a delta. Never blocks, never fails the run."""
        ...

    async def gate(self, point: GatePoint) -> None:
        """Waits while that point is paused; a stop opens it."""
        ...

    async def put_artifact(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes, durable before it returns."""
        ...

    async def get_artifact(self, digest: str) -> bytes:
        """Bytes that were stored.

        Raises:
            ArtifactNotFound: none with that digest.
        """
        ...


@runtime_checkable
class Runtime(Protocol):
    """A whole agent that can be driven: our loop, or an adapter to somebody else's.

    Optional, by the recovery level it declares: `resume(start, port)` (journal), `replay(start, prefix)` (replay),
    `query(start, view)` (query). Also optional, and looked up by these names where it is driven by a conversation:

    * `config_digest` (str): of what it works by: model, prompt, tools. A run records it; it is taken up again under
      another one only with `Accept(config_change=…)`.
    * `offering(tools, instructions, *, digest)`: the same runtime with the tools of AI controllers, and with what they
      tell the model unless `takes_instructions` is False: then that comes as tools, too. Without `offering` it serves no
      conversation that has AI controllers.
    * `tool_names` (strings): names of its own tools, which no other tool may have.
    * `reopens` (bool, False): a `run_ended` that is refused with the code `input` is no fault to it: it goes on with what
      was said meanwhile.
    * `abandoned`, `orphans` (int): calls and tasks that ignored their stop and still run.

    And where a `RunController` hosts it, for a runtime that serves many threads (`conversation/router.py`):

    * `await screen(spec, command)`: a steer, follow-up or replacement before it is recorded; returns what takes its place,
      or raises to refuse it.
    * `await admit(spec)`: a run of an earlier process is about to be taken up; raises to refuse that: nothing is written.
    * `await config_of(spec)`: in place of `config_digest`, where it is another one for each thread.
    """

    def describe(self) -> Descriptor:
        """The contract; stable for the life of the binding."""
        ...

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works; returns after it recorded `run_ended`."""
        ...


@runtime_checkable
class Resumable(Protocol):
    """A runtime of recovery level `journal`."""

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts alone."""
        ...


class Replay(Protocol):
    """A foreign agent's retelling of a run; an async context manager that yields drafts and deltas."""

    @property
    def status(self) -> Literal["attached", "absent"]:
        """Whether the agent still has the run."""
        ...

    def __aiter__(self) -> AsyncIterator[Draft | DeltaBody]:
        """The whole history again, in order."""
        ...

    async def confirm(self, port: RunPort, /) -> None:
        """Awaited only after the restore is durable; drives the run from then on."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


@runtime_checkable
class Replayable(Protocol):
    """A runtime of recovery level `replay`."""

    def replay(self, start: Start, prefix: Sequence[Record], /) -> Replay:
        """Opens the retelling."""
        ...


@runtime_checkable
class Queryable(Protocol):
    """A runtime that can be asked where a run stands, read-only."""

    async def query(self, start: Start, view: RunView, /) -> StatusAnswer:
        """Asks; never resubmits, never appends anything there."""
        ...


class ThreadStore(Protocol):
    """Titles, pins and marks of threads. Losing it loses nothing else."""

    async def get(self, tenant: str, thread_id: str) -> ThreadRecord | None:
        """The record, or None."""
        ...

    async def put(self, record: ThreadRecord, *, expected: int | None) -> ThreadRecord:
        """Stores it if the revision is `expected` (None: new); returns it with its new revision.

        Raises:
            ThreadMoved: another revision is stored.
        """
        ...

    async def list(
        self,
        tenant: str,
        *,
        archived: bool = False,
        search: str = "",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ThreadRecord]:
        """Pinned first, then by `updated_at_ms`, newest first."""
        ...

    async def delete(self, tenant: str, thread_id: str) -> None:
        """Removes the record; no error if there is none."""
        ...


class Journal(Protocol):
    """The store of runs and facts.

    Numbering and meaning stay with the controller; the store checks head, fence and uniqueness, and returns only when
    what it confirms is durable. `immediate` says that no method ever suspends (memory): a caller may then rely on an
    append being inline. `relay` is what its processes talk through; None where runs stay where they began.

    A journal may also have `hand_over`, with the arguments of `append` and `tell`: it returns at once, and calls
    `tell(appended, None)` on the caller's loop when the append is durable, `tell(None, error)` when it is refused. Writers
    then do without a task of their own. One that is `immediate` may have `append_now`: the same as `append`, in a plain
    call.
    """

    immediate: bool
    threads: ThreadStore

    @property
    def relay(self) -> Relay | None:
        """What its processes talk through."""
        ...

    async def create(
        self,
        registration: Registration,
        records: Sequence[Record],
        *,
        summary: RunSummary,
        claim: ClaimRequest | None,
        expect_head: str | Unset | None = UNSET,
    ) -> Created:
        """Registers a run with its first facts, claims it (fence 1) and moves the thread's head, in one transaction.

        Without a claim nobody drives it yet: the first to claim it has fence 2.

        Raises:
            RunConflict: the id stands for another registration.
            ThreadConflict: the thread's head is not `expect_head`; nothing was written.
        """
        ...

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """Compare and append: all or none. With a summary that says `terminal` the claim of the run ends too.

        Raises:
            SeqConflict: the stored head is not `expected`, and these records are not stored already.
            FenceConflict: another owner has claimed the run.
        """
        ...

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 500, kinds: frozenset[str] | None = None
    ) -> RecordPage:
        """Facts with seq > after, ascending; at most `limit` and about 4 MiB. An unknown run has none.

        Raises:
            JournalCorrupt: a body, a digest or the chain is not what was stored.
        """
        ...

    async def find(self, run_id: str, event_id: str) -> Record | None:
        """The fact with that event id, or None."""
        ...

    async def head(self, run_id: str) -> RunHead | None:
        """The run without its facts, or None."""
        ...

    async def thread_head(self, thread_id: str) -> str | None:
        """The run created last in a thread, or None."""
        ...

    async def list(self, query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> Page[RunEntry]:
        """Newest first by order of creation; no run twice or missed while runs are added.

        `can_control` is left False: only a controller knows.
        """
        ...

    async def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """Takes ownership: the fence rises by one.

        Raises:
            OwnedElsewhere: a living owner has it.
            RunNotFound: no such run.
        """
        ...

    async def renew(self, owner: Owner, *, ttl_ms: int, now_ms: int) -> None:
        """Prolongs the leases of all runs of an owner, in one statement."""
        ...

    async def release(self, owner: Owner, run_id: str | None = None) -> None:
        """Gives up one run, or all of an owner; the fence stays."""
        ...

    async def changed(self, run_id: str, after: int, *, timeout: float) -> int:
        """Waits until the run's head is beyond `after` or `timeout` seconds are over; returns the head's seq."""
        ...

    async def put_blob(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes under their SHA-256; equal bytes are stored once."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """The bytes.

        Raises:
            ArtifactNotFound: none with that digest.
        """
        ...

    async def verify(self, run_id: str | None = None) -> Verification:
        """Checks chain, head and blobs of one run or of all."""
        ...

    async def purge(self, thread_id: str) -> None:
        """Removes a thread's facts and unshared blobs; leaves a mark of each run id so that it cannot come back.

        Raises:
            UsageError: a run of the thread is live.
        """
        ...

    def stats(self) -> JournalStats:
        """Counters since the store was opened."""
        ...

    async def aclose(self) -> None:
        """Drains what was handed over, then closes. Idempotent."""
        ...


class Host(Protocol):
    """Whoever shows a conversation and wants to know when to look again."""

    def request_update(self) -> object:
        """Called after each visible change, before the call that caused it returns."""
        ...


__all__ = [
    "CancelScope",
    "CancelToken",
    "Clock",
    "CommandInbox",
    "GatePoint",
    "Host",
    "Journal",
    "PendingCommand",
    "Provider",
    "Queryable",
    "Replay",
    "Replayable",
    "Resumable",
    "RunPort",
    "Runtime",
    "ThreadStore",
]
