"""What all concerns of a run controller share: the runtime's contract, the journal, and the runs that are live here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

from msgspec.structs import replace

from ..cluster import Dispatcher, Ticket, queue_of
from ..contracts import Clock, Journal, Resumable, Runtime
from ..core.canonical import digest_of
from ..core.run import HOST, TAKEOVERS_TRIED, Phase, RunState, Terms, fold
from ..core.transcript import kept_apart
from ..core.view import view
from ..errors import DispatchUnavailable, InvalidSpec, JournalError, NotControllable, RunNotFound, UsageError
from ..events import VOCABULARY, StopRequested
from ..journal.liveness import this_process
from ..messages import Message
from ..records import (
    ClaimRequest,
    DescribedRuntime,
    Descriptor,
    Draft,
    Ownership,
    Record,
    RecordPage,
    Registration,
    RunHead,
    RunSpec,
    RunView,
    Start,
)
from .agenda import Agenda, DelayLine, weakly
from .history import Paths, first_chain
from .inline import inline
from .live import LiveRun
from .ring import Observer
from .timing import RunLimits, RunTiming
from .writer import WriterSetup

if TYPE_CHECKING:
    from .hub import Hub
    from .mirror import Mirror

logger = logging.getLogger("pilothouse.runs")

PRIORITY = "dispatch/priority"
"""Extension of a specification: an integer, smaller goes first."""

KEPT_FINISHED = 256
"""Ended runs in memory, whatever `keep_finished` says: a host that ends thousands a second stays small."""

LOOK_AGAIN_S = 1.0
"""A run that cannot leave memory yet is looked at no more often, however short `keep_finished` is."""


def _evict_of(found: ref[Fleet], live: LiveRun) -> None:
    """Lets go of an ended run; what the fleet has due does not keep the fleet."""
    if (fleet := found()) is not None:
        fleet.evict(live)


class Starting(NamedTuple):
    """A start that is being registered: what it is of, and the task that ends with (the live run, reopened)."""

    identity: str
    task: asyncio.Task[tuple[LiveRun | None, bool]]


def _described(runtime: Runtime) -> Descriptor:
    """What a runtime says of itself.

    Raises:
        InvalidSpec: it is none, or one that cannot be driven here.
    """
    if not hasattr(runtime, "describe"):
        way = ": AgentLoop(it)" if hasattr(runtime, "stream") else ""
        raise InvalidSpec(
            f"a RunController drives a Runtime (describe, run), got {type(runtime).__name__}{way}"
        )
    descriptor = runtime.describe()
    if not getattr(descriptor, "runtime", ""):
        raise InvalidSpec("runtime.describe() must return a Descriptor that names the runtime")
    if descriptor.vocabulary[0] != VOCABULARY[0]:
        raise InvalidSpec(f"vocabulary {descriptor.vocabulary} is not {VOCABULARY}", "vocabulary")
    return descriptor


class Fleet:
    """The state of a run controller."""

    __slots__ = (
        "__weakref__",
        "_driven",
        "_evictions",
        "_lingering",
        "_renewing",
        "_requests",
        "agenda",
        "binding",
        "claims",
        "clock",
        "closed",
        "confirms",
        "described",
        "dispatcher",
        "finished",
        "follower_buffer",
        "hub",
        "journal",
        "limits",
        "live",
        "moving",
        "new_id",
        "outlived",
        "owner",
        "parking",
        "partials",
        "paths",
        "recovering",
        "releasing",
        "runtime",
        "starting",
        "threads",
        "timing",
        "watched",
        "writer_setup",
        "zombies",
    )

    def __init__(
        self,
        runtime: Runtime,
        binding: str,
        *,
        journal: Journal,
        follower_buffer: int,
        timing: RunTiming,
        limits: RunLimits,
        clock: Clock,
        new_id: Callable[[], str],
        dispatcher: Dispatcher | None = None,
    ) -> None:
        if not binding.strip():
            raise InvalidSpec("the binding needs a name")
        if follower_buffer < 1:
            raise InvalidSpec(f"follower_buffer must be at least 1, got {follower_buffer}")
        descriptor = _described(runtime)
        self.runtime = runtime
        self.binding = binding
        self.described = DescribedRuntime(descriptor, digest_of(descriptor))
        self.journal = journal
        self.follower_buffer = follower_buffer
        self.timing = timing
        self.limits = limits
        self.clock = clock
        self.new_id = new_id
        self.agenda = Agenda(clock)
        evict = partial(_evict_of, ref(self))
        self._evictions = DelayLine(self.agenda, timing.keep_finished, evict)
        self._lingering = DelayLine(self.agenda, max(timing.keep_finished, LOOK_AGAIN_S), evict)
        self.paths = Paths(journal)
        # What a live run looks up here (`live.Host`).
        self.writer_setup = WriterSetup(journal, clock, self.agenda, timing, limits)
        self.partials: DelayLine[LiveRun] = DelayLine(self.agenda, timing.partial_interval, LiveRun.save_due)
        self.outlived: DelayLine[LiveRun] = DelayLine(self.agenda, timing.stop_grace, LiveRun.outlived)
        self.confirms = descriptor.cancel == "confirmed"
        self.parking = descriptor.recovery == "journal"
        self.moving = dispatcher is not None
        self._requests = frozenset(descriptor.requests)
        self.owner = this_process(new_id())
        self.live: dict[str, LiveRun] = {}
        self.finished: dict[str, LiveRun] = {}  # of those, the ones that are over, oldest first
        self.threads: dict[str, LiveRun] = {}  # the last run of each thread that was live here
        self.starting: dict[str, Starting] = {}
        self.recovering: dict[str, asyncio.Task[None]] = {}
        self.releasing: dict[str, asyncio.Task[None]] = {}  # claims that are being given up
        # Who goes on with a run that was let go, once it is live again.
        self.watched: dict[str, list[Observer]] = {}
        self.claims = False  # whether the journal may know this controller as an owner
        self.zombies = 0
        self.closed = False
        self._driven = 0  # runs that are live here and not over
        self._renewing = False
        self.dispatcher = dispatcher
        self.hub: Hub | None = None
        if dispatcher is not None:
            if journal.relay is None:
                raise InvalidSpec(
                    "a dispatcher needs a journal that several processes share: PostgresJournal", "journal"
                )
            from .hub import Hub

            self.hub = Hub(self, journal.relay)

    def check_open(self, action: str) -> None:
        """Refuses work after `aclose()`."""
        if self.closed:
            raise UsageError(f"cannot {action} while the run controller is closed")

    @property
    def idle(self) -> bool:
        """Whether nothing that it could wait for is under way, in memory or in its journal."""
        busy = self._driven or self.starting or self.recovering or self.releasing or self.agenda.busy
        return self.journal.immediate and not busy and self.dispatcher is None

    def claim_request(self) -> ClaimRequest:
        """A claim of this controller, now."""
        self.claims = True
        return ClaimRequest(self.owner, int(self.timing.lease * 1000), self.clock.time_ms())

    # Reading

    async def head(self, run_id: str) -> RunHead:
        """The run without its facts.

        Raises:
            RunNotFound: no such run.
        """
        head = await self.journal.head(run_id)
        if head is None:
            raise RunNotFound(run_id)
        return head

    async def state(self, head: RunHead) -> RunState:
        """The fold of a run's facts, from memory where it is live."""
        run_id = head.registration.spec.run_id
        live = self.live.get(run_id)
        if live is not None and (not live.over or live.state.phase is Phase.TERMINAL):
            return live.state
        return await self.refold(head.registration)

    async def refold(self, registration: Registration) -> RunState:
        """The fold of a run's facts from the journal."""
        run_id = registration.spec.run_id
        return fold(
            await self.paths.facts(run_id), run_id, first_chain(registration), self.terms(registration.spec)
        )

    async def facts_of(self, run_id: str, after: int) -> list[Record]:
        """A run's facts from the journal."""
        return await self.paths.facts(run_id, after)

    def terms(self, spec: RunSpec) -> Terms:
        """What the rules of a run go by, under this runtime's contract."""
        given = frozenset([message.id for message in spec.input])
        return Terms(self._requests, self.limits.max_pending, spec.output_schema is not None, given)

    async def read(self, run_id: str, after: int, limit: int) -> RecordPage:
        """A page of facts."""
        return await self.journal.read(run_id, after=after, limit=limit)

    def ownership(self, head: RunHead) -> Ownership:
        """Who drives the run, as far as can be seen without a write (RC-50)."""
        run_id = head.registration.spec.run_id
        if (live := self.live.get(run_id)) is not None and not live.over:
            return "stalled" if live.writer.stalled else "here"
        if head.summary.state == "terminal":
            return "none"
        if run_id in self.starting:  # registered, and about to be driven
            return "here"
        if head.owner is not None and head.owner_alive and head.owner != self.owner.id:
            return "elsewhere"
        if head.summary.resting and self.parks(head.registration):
            return "parked"
        if head.summary.loss_recorded:
            return "none"
        if self.dispatcher is not None and head.summary.takeovers < TAKEOVERS_TRIED:
            return "queued"
        return "orphaned"

    async def view(self, run_id: str) -> RunView:
        """The bounded view of a run; reads, never writes (RC-48)."""
        return (await self.seen(run_id))[1]

    async def seen(self, run_id: str) -> tuple[RunState, RunView]:
        """A run's fold and its bounded view."""
        live = self.live.get(run_id)
        if live is not None and (not live.over or live.state.phase is Phase.TERMINAL):
            return self.seen_live(live)
        head = await self.head(run_id)
        state = await self.refold(head.registration)
        return state, self._view(head.registration, state, head.fence, self.ownership(head))

    def seen_live(self, live: LiveRun) -> tuple[RunState, RunView]:
        """The same of one that is live here or has its end.

        Memory is never behind the journal while we own the run, and an end is final.
        """
        owner: Ownership = "none" if live.over else "stalled" if live.writer.stalled else "here"
        state = live.state
        return state, self._view(live.registration, state, live.writer.fence, owner)

    def _view(self, registration: Registration, state: RunState, fence: int, owner: Ownership) -> RunView:
        controllable = self.why_not(registration) is None
        descriptor = self.described.descriptor if controllable else None
        return view(state, registration, fence=fence, ownership=owner, descriptor=descriptor)

    def parks(self, registration: Registration) -> bool:
        """Whether a run at rest that nobody drives goes on as it is: its facts are all there is (RC-50)."""
        return self.parking or self.why_not(registration) is not None

    def why_not(self, registration: Registration) -> str | None:
        """Why this controller cannot control a run (RC-85): None, `binding`, `descriptor_changed`, `vocabulary`."""
        if registration.binding != self.binding:
            return "binding"
        if registration.descriptor_digest != self.described.digest:
            return "descriptor_changed"
        major, minor = registration.spec.vocabulary
        if major != VOCABULARY[0] or minor > VOCABULARY[1]:
            return "vocabulary"
        return None

    def check_control(self, registration: Registration) -> None:
        """Raises `NotControllable` unless this controller can control the run."""
        if (why := self.why_not(registration)) is not None:
            raise NotControllable(registration.spec.run_id, why)

    def live_here(self, run_id: str) -> bool:
        """Whether the run is driven here."""
        live = self.live.get(run_id)
        return live is not None and not live.over

    def mirror(self, run_id: str) -> Mirror | None:
        """The run as it is shown here, if another process drives it."""
        return None if self.hub is None else self.hub.of(run_id)

    def ticket_of(self, registration: Registration, fence: int) -> Ticket:
        """What asks that somebody drives a run."""
        spec = registration.spec
        priority = spec.extensions.get(PRIORITY)
        return Ticket(
            spec.run_id,
            queue_of(registration.binding, registration.descriptor_digest),
            fence,
            spec.tenant,
            spec.thread_id,
            priority if isinstance(priority, int) and not isinstance(priority, bool) else 0,
        )

    async def hand_to_dispatcher(
        self, registration: Registration, fence: int, *, again: bool = False
    ) -> None:
        """Asks that somebody drives a run; where the engine is away the run is found by its journal later.

        `again`: a worker may have refused it at this fence; a person, or a command, asks for another try.
        """
        assert self.dispatcher is not None
        ticket = self.ticket_of(registration, fence)
        if again:
            ticket = replace(ticket, round=self.clock.time_ms())
        try:
            await self.dispatcher.enqueue(ticket)
        except DispatchUnavailable as error:
            logger.warning("run %s waits for the dispatcher: %s", registration.spec.run_id, error)

    # Driving

    def host(self, registration: Registration, state: RunState, fence: int) -> LiveRun:
        """Makes a run live here; nothing drives it yet."""
        run_id = registration.spec.run_id
        live = LiveRun(registration, state, fence, self)
        self._driven += 1
        self.agenda.hold(alive=True)
        live.observers = self.watched.pop(run_id, live.observers)
        if self.hub is not None and (mirror := self.hub.of(run_id)) is not None:
            live.observers += mirror.observers
            mirror.close()
        self.live[run_id] = live
        self.finished.pop(run_id, None)
        self.threads[registration.spec.thread_id] = live
        self._keep_leases()
        return live

    async def drive(self, live: LiveRun, *, resume: bool) -> None:
        """Gives a live run to the runtime."""
        start = await self.start_of(live.registration, live.writer.fence)
        if resume or live.late:
            await self.settle_times(live)
        if live.over:
            return
        if resume:
            assert isinstance(self.runtime, Resumable)
        work = self.runtime.resume if resume else self.runtime.run  # type: ignore[attr-defined]
        live.drive(work, start)

    async def start_of(self, registration: Registration, fence: int) -> Start:
        """What a runtime is given."""
        spec = registration.spec
        history: list[Message] = []
        apart = kept_apart(spec.input)
        if spec.parent is not None or spec.base:
            path = await self.paths.front(spec)
            history, apart = path.context[:], apart or path.apart
        return Start(
            spec,
            history,
            registration.spec_digest,
            registration.binding,
            registration.descriptor_digest,
            fence,
            registration.identity,
            apart,
        )

    async def settle_times(self, live: LiveRun) -> None:
        """What was due while nobody drove the run is done before it is driven: its deadline, expired requests."""
        if live.late:
            await live.write_quietly((Draft(StopRequested("deadline", "deadline")), HOST))
        await live.expire_due()
        for request in live.state.requests.values():
            live.expect_expiry(request)
        live.rest()

    def run_over(self, live: LiveRun) -> None:
        """A run has its end or was lost: its claim is given up, its memory later (RC-73)."""
        self._driven -= 1
        if not self._driven:
            self.agenda.hold(alive=False)
        self.finished[live.run_id] = live
        if live.released and live.observers:
            self.watched[live.run_id] = live.observers
        if live.released and not live.followers:
            self.evict(live)
        elif self.journal.immediate and live.task is not None and not live.followers:
            live.task.add_done_callback(lambda _: self.evict(live))  # the journal is memory, too
        else:
            self._evictions.add(live)
        if len(self.finished) > KEPT_FINISHED:
            self.evict(next(iter(self.finished.values())))
        if live.state.phase is Phase.TERMINAL:
            return  # the append of its end gave the claim up
        if self.journal.immediate:
            inline(self.journal.release(self.owner, live.run_id))
        else:
            task = asyncio.get_running_loop().create_task(self._release(live))
            self.releasing[live.run_id] = task
            task.add_done_callback(lambda done: self._released(live.run_id, done))

    async def _release(self, live: LiveRun) -> None:
        await live.writer.drain()
        await self.journal.release(self.owner, live.run_id)

    def _released(self, run_id: str, task: asyncio.Task[None]) -> None:
        if self.releasing.get(run_id) is task:
            del self.releasing[run_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the claim of run %s ends with its lease: %s", run_id, error)

    async def settled(self, run_id: str) -> None:
        """Waits until a start that is under way is made, and a claim that is being given up is.

        What comes after it is judged on what they leave.
        """
        if (starting := self.starting.get(run_id)) is not None:
            await asyncio.wait({starting.task})
        if (task := self.releasing.get(run_id)) is not None:
            await asyncio.wait({task})

    def run_deaf(self, _live: LiveRun) -> None:
        """Its task ignored its end."""
        self.zombies += 1

    def evict(self, live: LiveRun) -> None:
        """Lets go of a run that is over, unless somebody follows it or its task goes on."""
        run_id = live.run_id
        if self.threads.get(thread_id := live.registration.spec.thread_id) is live:
            del self.threads[thread_id]
        if self.live.get(run_id) is not live:
            return  # gone already, or live again
        self.finished.pop(run_id, None)
        if live.followers or (live.zombie and live.task is not None and not live.task.done()):
            self.finished[run_id] = live  # looked at again, behind the others
            self._lingering.add(live)
        else:
            del self.live[run_id]
            live.forget()

    def _keep_leases(self) -> None:
        if not self._renewing:
            self._renewing = True
            self.agenda.after(self.timing.lease / 3, weakly(self._renew))

    async def _renew(self) -> None:
        """One statement for all runs of this controller (RC-78)."""
        self._renewing = False
        if any(not live.over for live in self.live.values()):
            self._keep_leases()
            ttl_ms = int(self.timing.lease * 1000)
            try:
                await self.journal.renew(self.owner, ttl_ms=ttl_ms, now_ms=self.clock.time_ms())
            except JournalError as error:  # tried again before the lease is over
                logger.warning("the leases were not prolonged: %s", error)
