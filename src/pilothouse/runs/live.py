"""A run that is driven here: its state, its writer, its ring, its one task, and what follows from each fact."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol, get_args

from ..commands import Answer, FollowUp, Request, Steer, StopSource
from ..core.batch import Written
from ..core.run import HOST, RUNTIME, Phase, RunState
from ..errors import JournalError, JournalUnavailable, RecordRefused, StartRefused
from ..events import (
    ArgumentsTold,
    ChildTold,
    CommandAnswered,
    CommandReceived,
    ContinuityLost,
    Delta,
    DeltaBody,
    Extension,
    Fact,
    LossCause,
    MessageAdded,
    OwnershipTold,
    ReasoningTold,
    RequestClosed,
    RequestOpened,
    StopRequested,
    TextTold,
)
from ..records import Draft, Record, Registration, Start
from ..scope import Scope
from .agenda import DelayLine, weakly
from .driving import closing_refusal, see_through
from .inline import inline
from .partials import ENDS, Partials
from .port import Gate, Port, resolve
from .ring import RECORD_BYTES, Observer, Ring
from .spilling import LARGE, may_be_large, spill
from .timing import RunLimits
from .waiters import Waiters
from .writer import Writer, WriterSetup

if TYPE_CHECKING:
    from ..events import Lane

logger = logging.getLogger("pilothouse.runs")

_STREAMED = frozenset[type]({TextTold, ReasoningTold, ArgumentsTold})
_OTHER = frozenset[type](get_args(DeltaBody)) - _STREAMED
ENVELOPE = 2_048
"""Bytes of a stored fact around its content, at most: kind, event id, causation, source."""

_fact = attrgetter("fact")
_LOOKED_AT = LARGE | ENDS
"""Facts for which there may be something to be done before they are recorded."""
_CLOSED = {Phase.TERMINAL: "ended", Phase.UNKNOWN: "unknown"}


class Host(Protocol):
    """What all runs of a controller have in common: the fleet.

    Attributes:
        writer_setup: where their writers write, and by which limits.
        follower_buffer: how many items a ring keeps.
        confirms: whether the runtime confirms a stop by ending.
        parking: whether a run at rest that nobody drives goes on as it is.
        moving: whether another process goes on with a run when this one closes.
        partials, outlived: what is due for each run after the same time.
    """

    writer_setup: WriterSetup
    limits: RunLimits
    follower_buffer: int
    confirms: bool
    parking: bool
    moving: bool
    partials: DelayLine[LiveRun]
    outlived: DelayLine[LiveRun]

    async def facts_of(self, run_id: str, after: int, /) -> list[Record]:
        """A run's facts from the journal."""
        ...

    async def refold(self, registration: Registration, /) -> RunState:
        """The fold of a run's facts from the journal."""
        ...

    def run_over(self, live: LiveRun, /) -> None:
        """A run has its end, was lost, or was let go of."""

    def run_deaf(self, live: LiveRun, /) -> None:
        """A run's task ignored its end and is given up."""


class LiveRun:
    """One run under one fence of this controller. Its parts are public to the modules of `runs/` only."""

    __slots__ = (
        "__weakref__",
        "_commanding",
        "_host",
        "_parking",
        "_parks",
        "_rested_at",
        "_saving",
        "agenda",
        "clock",
        "closing",
        "followers",
        "gate",
        "journal",
        "limits",
        "observers",
        "over",
        "partials",
        "port",
        "refusal",
        "registration",
        "released",
        "ring",
        "run_id",
        "scope",
        "task",
        "timing",
        "waiters",
        "writer",
        "zombie",
    )

    def __init__(self, registration: Registration, state: RunState, fence: int, host: Host) -> None:
        setup, limits, spec = host.writer_setup, host.limits, registration.spec
        self.registration = registration
        self.run_id = spec.run_id
        self._host = host
        self.journal = setup.journal
        self.clock = setup.clock
        self.agenda = setup.agenda
        self.timing = setup.timing
        self.limits = limits
        self.scope = Scope(spec.deadline_ms)
        self.gate = Gate()
        self.ring = Ring(host.follower_buffer, limits.follower_bytes, self.run_id, state.seq)
        self.observers: list[Observer] = []
        self._commanding: asyncio.Lock | None = None
        self.partials = Partials(limits.partial_bytes)
        self.task: asyncio.Task[None] | None = None
        self.port: Port | None = None
        self.zombie = False
        self.closing = False
        self.over = False  # terminal, lost or released: nothing will be written here any more
        self.released = False  # let go at rest: it is over here, and neither ended nor lost
        self.followers = 0
        self._saving = False
        self.waiters = Waiters()
        self.refusal: StartRefused | None = None  # why the runtime refused to start, if it did
        self._parks = host.parking and spec.deadline_ms is None  # a deadline has to stop it in time
        self._parking = False
        self._rested_at = 0.0
        self.writer = Writer(setup, state, fence, self)

    @property
    def commanding(self) -> asyncio.Lock:
        """Commands are judged and recorded one at a time."""
        if self._commanding is None:
            self._commanding = asyncio.Lock()
        return self._commanding

    @property
    def confirms(self) -> bool:
        """Whether the runtime confirms a stop by ending."""
        return self._host.confirms

    @property
    def moves(self) -> bool:
        """Whether another process goes on with it when this one closes."""
        return self._host.moving

    @property
    def state(self) -> RunState:
        """The fold of what is durable."""
        return self.writer.state

    async def read_facts(self, after: int) -> list[Record]:
        """The run's facts from the journal."""
        return await self._host.facts_of(self.run_id, after)

    async def reload(self) -> RunState:
        """The fold of its facts, from the journal anew."""
        return await self._host.refold(self.registration)

    # Publishing

    def publish_stored(self, record: Record) -> None:
        """Shows a durable record to followers and observers."""
        self._publish(record, len(record.body) + RECORD_BYTES)

    def _publish(self, item: Record | Delta, size: int) -> None:
        self.ring.append(item, size)
        if self.observers:
            self._observe(item)

    def _observe(self, item: Record | Delta) -> None:
        for observer in self.observers:
            try:
                observer(item)
            except Exception:
                logger.exception("an observer of run %s failed", self.run_id)

    def tell(self, body: DeltaBody) -> None:
        """Publishes a delta; text also waits to be saved as a fragment. What is no delta is logged and dropped (RC-17)."""
        if self.over:
            return
        kind = type(body)
        size = 200
        if kind in _STREAMED:
            try:
                added = self.partials.add(body)  # type: ignore[arg-type]
            except TypeError as error:
                logger.warning("run %s: a delta was dropped: %s", self.run_id, error)
                return
            size += added
            if added and self.partials.full:
                self.look(added)
        elif kind not in _OTHER:
            logger.warning("run %s: a delta was dropped: %s is none", self.run_id, kind.__name__)
            return
        elif kind is Extension or kind is ChildTold:
            size = 1000
        delta = self.ring.tell(body, size)
        if self.observers:
            self._observe(delta)

    def _tell_ownership(self, word: str) -> None:
        """Of the controller, not of the runtime: it has no number of its own."""
        self._publish(Delta(self.run_id, self.ring.told, self.state.seq, OwnershipTold(word)), 200)

    def look(self, size: int) -> None:
        """The first piece that waits to be saved was told, of so many characters, or too much waits (RC-19)."""
        pending = self.partials.pending_chars
        if pending == size:
            self._host.partials.add(self)
        elif pending >= self.limits.partial_bytes and not self._saving:
            self._save_now()
        self.partials.set_mark(saving=self._saving)

    def _save_now(self) -> None:
        self._saving = True
        if self.timing.partial_interval is None:
            return  # nothing is: it is not asked again
        if self.journal.immediate:
            inline(self.save_partials())
        else:
            self.agenda.spawn(self.save_partials())

    def save_due(self) -> Coroutine[object, object, None] | None:
        """Saves what waited long enough: here, or as work for whoever keeps the time."""
        if self.over or not self.partials.pending_chars:
            return None
        if self.journal.immediate:
            return inline(self.save_partials())
        return self.save_partials()

    async def save_partials(self) -> None:
        """Saves what was told and not yet saved (RC-19)."""
        self._saving = False
        self.partials.set_mark()
        if self.over or self.writer.full:
            return  # what room is left is kept for its end
        if drafts := self.unsaved():
            try:
                await self.writer.write(*drafts)
            except RecordRefused as error:
                logger.debug("partial text of run %s was not saved: %s", self.run_id, error)

    def unsaved(self, *, whole: Collection[str] = ()) -> list[Written]:
        """The told text that is not saved yet, to stand in front of a stop, a loss or an end (RC-19).

        `whole`: messages of which no fragment is needed any more. None where a fragment has no place (RC §3.5), or
        where partial text is not to be saved.
        """
        if self.timing.partial_interval is None or self.state.phase not in (
            Phase.RUNNING,
            Phase.WAITING,
            Phase.STOPPING,
        ):
            return []
        names = self.state.names  # a message that is durable may not be published yet
        open_ = self.partials.message_ids().difference(whole)
        done = {*whole, *[name for name in open_ if names.has("message", name)]}
        return [(Draft(fragment), HOST) for fragment in self.partials.take(whole=done)]

    # Recording

    def record(self, facts: Sequence[Fact | Draft]) -> int | Coroutine[object, object, int]:
        """Appends what the runtime offers; text that was told is flushed before an end is recorded.

        The last seq or, where something is to be waited for, what leads to it (`Writer.put`).
        """
        drafts: list[Written] = []
        named = looked_at = False
        for fact in facts:
            kind: type = type(fact)
            if kind is not Draft:
                drafts.append((Draft(fact), RUNTIME))  # type: ignore[arg-type]
            else:
                drafts.append((fact, RUNTIME))  # type: ignore[arg-type]
                kind = type(fact.fact)  # type: ignore[union-attr]
                named = named or fact.event_id is not None  # type: ignore[union-attr]
            if kind in _LOOKED_AT:
                looked_at = True
        if self.closing and (code := closing_refusal(drafts)):
            raise RecordRefused("closing", code)
        ends = False
        if looked_at:
            limit = self.limits.max_fact_bytes - ENVELOPE
            for draft, _ in drafts:
                kind = type(draft.fact)
                if kind in LARGE and may_be_large(draft.fact, limit):
                    return self._record_spilled(drafts)
                if kind in ENDS:
                    ends = True
        return self._put(drafts, ends=ends, named=named)

    def _put(
        self, drafts: Sequence[Written], *, ends: bool, named: bool
    ) -> int | Coroutine[object, object, int]:
        if ends and self.partials.pending_chars and (whole := self.partials.left_by(drafts)) is not None:
            drafts = [*self.unsaved(whole=whole), *drafts]
        return self.writer.put(drafts, named=named)

    async def _record_spilled(self, drafts: Sequence[Written]) -> int:
        ends = any(type(draft.fact) in ENDS for draft, _ in drafts)
        done = self._put(
            [(await self._spilled(draft), lane) for draft, lane in drafts], ends=ends, named=True
        )
        return done if isinstance(done, int) else await done

    async def _spilled(self, draft: Draft) -> Draft:
        """The draft with its large parts stored apart; as it is where that does not help (RC-71)."""
        largest = self.limits.max_artifact_bytes
        limit = self.limits.max_fact_bytes - ENVELOPE
        return await spill(draft, limit, largest, self.journal.put_blob) or draft

    def stored(self, records: Sequence[Record]) -> None:
        """What follows from the facts of an append, once they are durable and folded: publish, then tell and act, one by one."""
        acts = map(_ACTS.get, map(type, map(_fact, records)))
        self.ring.extend(records)
        if self.observers:
            for record, act in zip(records, acts, strict=True):
                self._observe(record)
                if act is not None:
                    act(self, record.fact)
        else:
            for record, act in zip(records, acts, strict=True):
                if act is not None:
                    act(self, record.fact)
        state = self.writer.state
        phase = state.phase
        if self.waiters.for_start and phase is not Phase.ACCEPTED:
            self.waiters.started()
        if (phase is Phase.TERMINAL or phase is Phase.UNKNOWN) and records[-1].seq == state.seq:
            self._end()

    def command_received(self, fact: CommandReceived) -> None:
        """What is for the runtime is put before it, whatever became of the one who sent it (RC-14)."""
        if self.port is not None and isinstance(fact.command.body, Steer | FollowUp | Answer):
            self.port.commands.put(fact.command)

    def stop_requested(self, fact: StopRequested) -> None:
        """The stop is durable: now it acts."""
        self.stop(fact.reason, fact.source)

    def request_opened(self, fact: RequestOpened) -> None:
        """It is closed when its time comes, and the run let go if nothing happens for long."""
        self.expect_expiry(fact.request)
        self.rest()

    def message_whole(self, fact: MessageAdded) -> None:
        """The message is in the transcript: its fragments are superseded."""
        self.partials.drop(fact.message.id)

    def command_answered(self, fact: CommandAnswered) -> None:
        """Whoever waits for the answer is woken."""
        self.waiters.answered(fact.command_id)

    def request_closed(self, _fact: RequestClosed) -> None:
        """Answers to it are returned: whoever waits for one is woken."""
        self.waiters.all_answered()

    def _end(self) -> None:
        """The run has its end, or nobody will write it here: followers and waiters go."""
        if self.over:
            return
        self.over = True
        self.partials.leave()  # so that nothing more is told
        code = _CLOSED.get(self.state.phase, "closing")
        self.writer.close(code)
        if self.port is not None:
            self.port.close(self.writer.closed)
        self.waiters.ended()
        if self.gate.shut:
            self.gate.open()
        self.ring.close()
        if not self.followers:
            self.ring.clear()
        if self.task is not None and not self.zombie and not self.released:
            self._host.outlived.add(self)
        self._host.run_over(self)

    def lost(self, code: str) -> None:
        """The run is no longer ours to write, or its runtime broke the contract: the port closes."""
        if self.port is not None:
            self.port.close(code)
        if code == "fenced":
            self._tell_ownership("elsewhere")
            if self.task is not None and self.task is not asyncio.current_task():
                self.task.cancel()
            self._end()

    def release(self) -> None:
        """Lets go of a run without a fact: the next command claims it again (RC-51)."""
        if self.over:
            return
        self.released = True
        self._end()

    def forget(self) -> None:
        """Nobody asks for the run here any more: no cycle of its parts is left for the collector, 125 objects a run."""
        if self.task is None or self.task.done():
            self.task = self.port = None
            self.writer.forget()

    # At rest

    def rest(self) -> None:
        """Lets the run go once it was at rest for `park_after` (RC-51)."""
        if self._parks and self.state.resting:
            self._rested_at = self.clock.monotonic()
            if not self._parking:
                self._parking = True
                self.agenda.after(self.timing.park_after, weakly(self._park))

    def _park(self) -> None:
        self._parking = False
        if self.over or self.closing or not self.state.resting:
            return
        rested = self.clock.monotonic() - self._rested_at
        if self.writer.busy:
            self.rest()
        elif rested < self.timing.park_after:
            self._parking = True
            self.agenda.after(self.timing.park_after - rested, weakly(self._park))
        else:
            logger.info("run %s is at rest and let go", self.run_id)
            self.let_go()

    def let_go(self) -> None:
        """Releases a run at rest and ends its coroutine; one that does not end is counted as a zombie."""
        self.release()
        if self.task is not None and not self.task.done():
            self.task.cancel()
            self.agenda.after(self.timing.kill_grace, weakly(self._still_there))

    def _still_there(self) -> None:
        if self.task is not None and not self.task.done() and not self.zombie:
            self.zombie = True
            self._host.run_deaf(self)

    def expect_expiry(self, request: Request) -> None:
        """Closes the request at its time, if nobody answered it and the runtime did not close it (RC-25)."""
        if request.expires_at_ms is not None:
            left = (request.expires_at_ms - self.clock.time_ms()) / 1000
            self.agenda.after(max(left, 0.0), weakly(self.expire_due))

    async def expire_due(self) -> None:
        """Closes the requests whose time is over."""
        now = self.clock.time_ms()
        for request in list(self.state.requests.values()):
            due = request.expires_at_ms is not None and request.expires_at_ms <= now
            if due and not self.over and request.id in self.state.requests:
                await self.write_quietly((Draft(RequestClosed(request.id, "expired")), HOST))

    async def write_quietly(self, *drafts: Written) -> None:
        """Writes what may have been overtaken by an end, a loss or the runtime itself."""
        try:
            await self.writer.write(*drafts)
        except RecordRefused as error:
            logger.debug("run %s has no place for %s: %s", self.run_id, drafts[-1][0].fact.kind, error)

    # Driving

    def drive(
        self,
        work: Callable[[Start, Port], Awaitable[None]],
        start: Start,
        *,
        failing: LossCause = "error",
    ) -> None:
        """Begins the one task of the run. `failing` is the cause of loss if it raises before it recorded anything."""
        self.port = Port(self)
        self.task = asyncio.get_running_loop().create_task(
            see_through(self, work(start, self.port), failing), name=f"pilothouse-run-{self.run_id}"
        )
        if start.spec.deadline_ms is not None:
            left = (start.spec.deadline_ms - self.clock.time_ms()) / 1000
            self.agenda.after(max(left, 0.0), weakly(self._deadline))

    async def settle(self, end: tuple[Draft, Lane]) -> None:
        """Records an end that the runtime did not, with the text that was told; whatever comes of it is logged."""
        try:
            await self.writer.write(*self.unsaved(), end)
        except RecordRefused as error:
            logger.debug("the end of run %s was not recorded: %s", self.run_id, error)
        except Exception as error:
            # A definite fault of the store: nothing can be recorded here, so nobody may be left waiting for it.
            foreign = None if isinstance(error, JournalError) else error  # whose place only a traceback tells
            logger.error("the end of run %s cannot be recorded: %s", self.run_id, error, exc_info=foreign)  # noqa: TRY400
            self._tell_ownership("orphaned")
            self.release()

    async def lose(self, cause: LossCause, reason: str) -> None:
        """Records that nobody knows what happens from here on."""
        if self.over:
            return
        await self.settle((Draft(ContinuityLost(self.state.seq, cause, reason[:500])), HOST))

    # Stopping

    @property
    def stoppable(self) -> bool:
        """Whether a stop can still decide how the run ends."""
        return not self.over and self.state.phase not in (Phase.TERMINAL, Phase.UNKNOWN)

    def stop(self, reason: str, source: StopSource) -> None:
        """Fires the scope and arms the stages of a bounded stop (RC-40). The fact is written by the caller."""
        if self.scope.cancelled:
            return
        self.gate.open()
        self.scope.fire(reason, source)
        self.agenda.after(self.timing.stop_grace, weakly(self._stop_harder))

    def outlived(self) -> None:
        """A runtime that goes on after the end of its run is ended (RC §3.8)."""
        if self.task is not None and not self.task.done() and not self.zombie:
            self.task.cancel()
            self.agenda.after(self.timing.kill_grace, weakly(self._still_there))

    def _stop_harder(self) -> None:
        if self.over or self.task is None or self.task.done():
            return
        self.task.cancel()
        self.agenda.after(self.timing.kill_grace, weakly(self._give_up))

    async def _give_up(self) -> None:
        if self.over or self.task is None or self.task.done():
            return
        self.zombie = True
        self._host.run_deaf(self)
        logger.warning("run %s ignored its stop and is given up", self.run_id)
        await self.lose("stop_unconfirmed", "the runtime ignored the stop")

    async def _deadline(self) -> None:
        if self.over or self.state.stop is not None:
            return
        await self.write_quietly(*self.unsaved(), (Draft(StopRequested("deadline", "deadline")), HOST))

    @property
    def late(self) -> bool:
        """Whether its deadline is over and nobody stopped it for that."""
        deadline = self.registration.spec.deadline_ms
        return deadline is not None and deadline <= self.clock.time_ms() and self.state.stop is None

    # Waiting

    @property
    def not_begun(self) -> bool:
        """Whether the runtime has not told anything yet and still may."""
        return not self.over and self.state.phase is Phase.ACCEPTED

    async def wait_started(self, limit: float) -> None:
        """Waits until the runtime began, the run ended or was lost, or `limit` seconds are over."""
        if not self.not_begun:
            return
        waiter = self.waiters.start()
        self.agenda.after(limit, lambda: resolve(waiter))
        await waiter

    async def wait_answered(self, command_id: str, limit: float) -> None:
        """Waits until the command is answered, the run is over, or `limit` seconds are."""
        state = self.state.commands.get(command_id)
        if self.over or state is None or state.state != "received":
            return
        waiter = self.waiters.answer(command_id)
        self.agenda.after(limit, lambda: resolve(waiter))
        await waiter

    async def wait_over(self) -> None:
        """Waits until the run has its end here, was lost or released, or its journal is away."""
        if not self.over and not self.writer.stalled:
            await self.waiters.end()

    def stalled(self, stalled: bool) -> None:
        """The journal is away, or back: waiters are told, commands refused (RC-15)."""
        self._tell_ownership("stalled" if stalled else "here")
        if stalled:
            self.waiters.stalled()

    async def reach_journal(self) -> None:
        """Has a journal that is away tried once more, at once.

        Raises:
            JournalUnavailable: it is still away.
        """
        if self.writer.stalled:
            self.writer.try_again()
            await self.writer.settled()
        if self.writer.stalled:
            raise JournalUnavailable(f"run {self.run_id} waits for its journal")

    def give_up_waiting(self) -> None:
        """The controller closes and the journal is away: what it has decides, as after a crash."""
        self.release()
        self.writer.try_again()
        if self.task is not None:
            self.task.cancel()

    async def write_or_stall(self, *drafts: Written) -> None:
        """Writes for somebody who must not wait for a journal that is away; what was handed over is stored later.

        Raises:
            RecordRefused: nothing was stored.
            JournalUnavailable: the journal is away.
        """
        if self.journal.immediate:
            await self.writer.write(*drafts)
            return
        writing = self.writer.hand_over(drafts)
        stall = self.waiters.stall()
        if self.writer.stalled:
            resolve(stall)
        try:
            await asyncio.wait((writing, stall), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.waiters.forget_stall(stall)
        if not writing.done():
            raise JournalUnavailable(f"run {self.run_id} waits for its journal")
        writing.result()

    async def join(self) -> None:
        """Waits until the run's task is dead, unless it was given up."""
        if self.task is not None and not self.zombie and self.task is not asyncio.current_task():
            await asyncio.wait({self.task})
        await self.writer.drain()


# What the live run does itself when a fact is durable; everybody else is told by publishing.
_ACTS: dict[type, Callable[[LiveRun, Any], None]] = {
    MessageAdded: LiveRun.message_whole,
    CommandReceived: LiveRun.command_received,
    CommandAnswered: LiveRun.command_answered,
    StopRequested: LiveRun.stop_requested,
    RequestOpened: LiveRun.request_opened,
    RequestClosed: LiveRun.request_closed,
}
