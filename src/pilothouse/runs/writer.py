"""The one writer of a live run: judge, append, fold, publish; one at a time, in order of arrival (RC-10).

It is an object, not a task. An append goes one of three ways, by what its journal can do:

| the journal | the way | where it is judged | who applies it |
|---|---|---|---|
| answers at once (memory) | `put`: plain calls in the caller's step | on the state itself, which is its own look-ahead | the caller |
| takes what is handed over, and nobody stands in line | `_fly`, then `_land`: no task | on a copy | `_land`, when the loop hears of the commit |
| any other case | `hand_over`: a task that takes its turn, then `_write` | on a copy | that task |

So a caller who is cancelled leaves and what was handed over is still applied (RC-14), and nobody sees a fact that is not
durable. Each way leaves for the same few ends as soon as there is more to do than to append:

| what stands in the way | where it ends |
|---|---|
| the run is closed here | `_closed`: a repeat of what is stored has its number, all else is refused |
| the rules | `_illegal`: a repeat is left out, the host's is refused, the runtime's own is a violation (`_violated`) |
| an event id that is taken | `_repeated`: an exact repeat is left out (`_without`), other content is a conflict |
| the journal is away, full or busy, or nobody knows what it did | `_append_through`: the same records again, until it is back |
| another owner | `_append_through`: fenced, and the run lost to us |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from ..contracts import Clock, Journal
from ..core.batch import NotLegal, Room, Written, make
from ..core.canonical import NotJSON, digest, draft_digest, encode
from ..core.rules import Refused, Violation
from ..core.run import HOST, RUNTIME, RunState
from ..core.settling import event_id_of
from ..errors import (
    DuplicateConflict,
    FenceConflict,
    JournalBusy,
    JournalError,
    JournalFull,
    JournalUnavailable,
    ProtocolViolation,
    RecordRefused,
    SeqConflict,
)
from ..events import ContinuityLost, Lane, RequestClosed, ViolationRecorded
from ..records import Appended, Draft, Head, Record
from .agenda import Agenda, DelayLine, weakly
from .inline import inline
from .port import resolve
from .timing import RESERVED_FACTS, RunLimits, RunTiming

logger = logging.getLogger("pilothouse.runs")


_PASSING = (JournalBusy, JournalFull, JournalUnavailable)
"""What may be over when it is tried again."""


def _log_failure(task: asyncio.Task[int]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("an append was not made: %s", error)


def _pass_on(done: asyncio.Task[int], landing: asyncio.Future[int]) -> None:
    """Gives a task's end to who waits for it, if anybody does."""
    if landing.done():
        return
    if done.cancelled():
        landing.cancel()
    elif (error := done.exception()) is not None:
        landing.set_exception(error)
    else:
        landing.set_result(done.result())


def _is_same(record: Record, draft: Draft, lane: Lane) -> bool:
    """Whether a draft is an exact repeat of a record (RC-13)."""
    event_id = draft.event_id or event_id_of(draft.fact, 0, lane)
    if (record.event_id, record.lane) != (event_id, lane):
        return False
    try:
        return record.digest == draft_digest(draft.fact, event_id, draft.causation, draft.source)
    except NotJSON:
        return False


class Owner(Protocol):
    """Whom a writer writes for: the live run."""

    def stored(self, records: Sequence[Record], /) -> None:
        """These facts of one append are durable and folded; called in order."""

    def lost(self, code: str, /) -> None:
        """The port must close."""

    def stalled(self, stalled: bool, /) -> None:
        """The journal is away, or back."""

    def unsaved(self) -> list[Written]:
        """The text that must stand in front of a loss."""
        ...

    async def reload(self) -> RunState:
        """The run, folded from the journal anew."""
        ...


class _Nobody:
    """Nobody is told any more: the run was let go of."""

    def stored(self, _records: Sequence[Record], /) -> None:
        pass

    def lost(self, _code: str, /) -> None:
        pass

    def stalled(self, _stalled: bool, /) -> None:
        pass

    def unsaved(self) -> list[Written]:
        return []

    async def reload(self) -> RunState:
        raise RuntimeError("the run was let go of")


_NOBODY = _Nobody()


class WriterSetup:
    """What the writers of a controller have in common: where they write, and by which limits; made once.

    Attributes:
        append: the journal's append in a plain call, for one that answers at once.
        late: writers whose append may take too long by then.
        take: the journal's `hand_over`, where it has one.
        room: how much one run may hold.
        turn: one for all, where nobody ever waits for it: of a journal that answers at once.
    """

    __slots__ = (
        "agenda",
        "append",
        "clock",
        "immediate",
        "journal",
        "late",
        "room",
        "take",
        "timing",
        "turn",
    )

    def __init__(
        self, journal: Journal, clock: Clock, agenda: Agenda, timing: RunTiming, limits: RunLimits
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.agenda = agenda
        self.timing = timing
        self.late = DelayLine(agenda, timing.append_alarm, Writer.watch)
        self.immediate = journal.immediate
        self.append: Callable[..., Appended] = getattr(journal, "append_now", None) or partial(
            _appended, journal
        )
        self.take: Callable[..., None] | None = getattr(journal, "hand_over", None)
        self.turn = asyncio.Lock() if self.immediate else None
        self.room = Room(limits.max_run_facts - RESERVED_FACTS, limits.max_run_bytes, limits.max_fact_bytes)


def _appended(journal: Journal, *args: Any, **kwargs: Any) -> Appended:
    """An append of a journal that answers at once."""
    return inline(journal.append(*args, **kwargs))


class Writer:
    """Serialises all appends of one run under one fence. `owner` is told what becomes of them."""

    __slots__ = (
        "__weakref__",
        "_again",
        "_began",
        "_outbox",
        "_owner",
        "_publishing",
        "_setup",
        "_tasks",
        "_tried",
        "_turn",
        "_watched",
        "closed",
        "fence",
        "stalled",
        "state",
    )

    def __init__(self, setup: WriterSetup, state: RunState, fence: int, owner: Owner) -> None:
        self.state = state
        self.fence = fence
        self.stalled = False
        self.closed = ""
        self._setup = setup
        self._owner: Owner = owner
        self._began: float | None = None  # when the append that is under way was begun
        self._watched = False
        self._tried: list[asyncio.Future[None]] = []
        self._again: asyncio.Event | None = None  # set by who knows that the journal is back
        self._turn = setup.turn or asyncio.Lock()
        self._tasks: set[asyncio.Future[Any]] = set()  # what is handed over and not applied
        self._outbox: list[list[Record]] = []  # what observers caused to be written
        self._publishing = False

    async def write(self, *drafts: Written) -> int:
        """Stores these facts in one append and returns the last seq once it is durable.

        Raises:
            RecordRefused: nothing was stored; the run goes on.
            ProtocolViolation: the runtime broke the contract; the run is unknown now.
            JournalError: the store has a definite fault.
        """
        if self._setup.immediate:
            return await self._write(drafts)
        if not self._tasks and (landing := self._fly(drafts)) is not None:
            return await landing
        return await asyncio.shield(self.hand_over(drafts))

    def put(self, drafts: Sequence[Written], *, named: bool = True) -> int | Coroutine[Any, Any, int]:
        """What `write` does, without a coroutine where nothing is to be waited for: the last seq, or what leads to it.

        What comes back is to be awaited at once, before anything else is written. `named`: some of them may have an event
        id, so that they may be repeats.
        """
        if not self._setup.immediate:
            return self.write(*drafts)
        if not drafts:
            return self.state.seq
        if self.closed:
            return self._closed(drafts)
        for place, (draft, lane) in enumerate(drafts) if named else ():  # asking costs less than folding anew
            if draft.event_id is not None and (seq := inline(self._stored_already(draft, lane))):
                return self._without(drafts, place, seq)
        # A journal that answers at once cannot be overtaken: the state itself is the look-ahead, without a copy.
        state = self.state
        before = Head(state.seq, state.chain)
        try:
            made = self._made(state, drafts)
        except BaseException as error:  # noqa: BLE001 - raised again there
            return self._undone(before, error)
        if isinstance(made, NotLegal):
            return self._not_made(made, drafts, before)
        try:
            appended = self._setup.append(
                state.run_id, made, expected=before, fence=self.fence, summary=state.summary()
            )
        except (DuplicateConflict, JournalError):  # tried again, where each has its answer
            return self._store(drafts, made, before, state)
        except BaseException as error:  # noqa: BLE001 - raised again there
            return self._undone(before, error)
        if appended.head.chain != state.chain:
            return self._applied(drafts, made, before, state, stored=False)
        self._publish(made)
        return made[-1].seq

    def write_nowait(self, *drafts: Written) -> None:
        """Takes the next place in the order of appends before it returns; a failure is logged."""
        if self._setup.immediate:
            done = self.put(drafts)
            if type(done) is not int:
                inline(done)  # type: ignore[arg-type]
        else:
            self.hand_over(drafts).add_done_callback(_log_failure)

    def hand_over(self, drafts: Sequence[Written]) -> asyncio.Task[int]:
        """Takes the next place in the order of appends; the task ends when it is durable, and is not to be cancelled."""
        return self._spawn(self._in_turn(drafts))

    def _spawn(self, work: Coroutine[Any, Any, int]) -> asyncio.Task[int]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[int]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller who left does not leave a warning behind

    @property
    def busy(self) -> bool:
        """Whether something is handed over and not applied yet."""
        return bool(self._tasks)

    def fault_of(self, drafts: Sequence[Written]) -> str:
        """Why these facts could not be the next ones; empty if they could. Writes nothing."""
        found = self._made(self.state.fork(), drafts)
        return f"{found.verdict.code}: {found.verdict.why}" if isinstance(found, NotLegal) else ""

    async def drain(self) -> None:
        """Waits until everything handed over is applied."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _in_turn(self, drafts: Sequence[Written]) -> int:
        async with self._turn:
            return await self._write(drafts)

    def _fly(self, drafts: Sequence[Written]) -> asyncio.Future[int] | None:
        """Hands an append over and takes the turn until it lands; to be called where nobody stands in line.

        Without a task and its shield a durable append takes two passes of the event loop instead of five: one that hears
        of the commit and applies it, one that wakes who waits. None where more is to be done than to wait: then the task
        does it from the beginning.
        """
        take = self._setup.take
        if take is None or self.closed or not drafts:
            return None
        before, ahead = Head(self.state.seq, self.state.chain), self.state.fork()
        made = self._made(ahead, drafts)
        if isinstance(made, NotLegal):
            return None
        loop = asyncio.get_running_loop()
        flight, landing = loop.create_future(), loop.create_future()
        land = partial(self._land, flight, landing, drafts, made, before, ahead)
        try:
            take(ahead.run_id, made, expected=before, fence=self.fence, summary=ahead.summary(), tell=land)
        except JournalError:
            return None
        inline(self._turn.acquire())
        self._begin_try()
        self._tasks.add(flight)
        return landing

    def _land(
        self,
        flight: asyncio.Future[None],
        landing: asyncio.Future[int],
        drafts: Sequence[Written],
        made: list[Record],
        before: Head,
        ahead: RunState,
        stored: Appended | None,
        failed: BaseException | None,
    ) -> None:
        """Applies what is durable now. Anything else is found out by a task: the same records again are a duplicate.

        The flight is the writer's and ends here; the landing is the waiter's, who may have left.
        """
        self._tasks.discard(flight)
        flight.set_result(None)
        if stored is None or stored.head.chain != ahead.chain:
            late = self._spawn(self._land_late(drafts, made, before, ahead, failed))
            late.add_done_callback(lambda late: _pass_on(late, landing))
            return
        self._end_try()
        self.state = ahead
        try:
            self._publish(made)
        finally:
            self._turn.release()
            if not landing.done():
                landing.set_result(made[-1].seq)

    async def _land_late(
        self,
        drafts: Sequence[Written],
        made: list[Record],
        before: Head,
        ahead: RunState,
        failed: BaseException | None,
    ) -> int:
        try:
            stored = await self._append(made, before, ahead, failed)
            return await self._applied(drafts, made, before, ahead, stored=stored)
        finally:
            self._turn.release()

    async def _write(self, drafts: Sequence[Written]) -> int:
        """One append, with what may have to be done about it."""
        if self._setup.immediate:
            done = self.put(drafts)
            return done if type(done) is int else await done  # type: ignore[misc]
        if not drafts:
            return self.state.seq
        if self.closed:
            return await self._closed(drafts)
        before, ahead = Head(self.state.seq, self.state.chain), self.state.fork()
        made = self._made(ahead, drafts)
        if isinstance(made, NotLegal):
            return await self._illegal(made, drafts)
        return await self._store(drafts, made, before, ahead)

    async def _store(
        self, drafts: Sequence[Written], made: list[Record], before: Head, ahead: RunState
    ) -> int:
        try:
            stored = await self._append(made, before, ahead)
        except BaseException:
            await self._take_back(before)
            raise
        return await self._applied(drafts, made, before, ahead, stored=stored)

    async def _not_made(self, problem: NotLegal, drafts: Sequence[Written], before: Head) -> int:
        await self._take_back(before)
        return await self._illegal(problem, drafts)

    async def _undone(self, before: Head, error: BaseException) -> int:
        await self._take_back(before)
        raise error

    async def _applied(
        self, drafts: Sequence[Written], made: list[Record], before: Head, ahead: RunState, *, stored: bool
    ) -> int:
        if not stored:
            await self._take_back(before)
            return await self._repeated(drafts)
        self.state = ahead
        self._publish(made)
        return made[-1].seq

    async def _take_back(self, before: Head) -> None:
        """Folds the run anew where it was its own look-ahead."""
        if self.state.seq != before.seq:
            self.state = await self._owner.reload()

    def _publish(self, made: list[Record]) -> None:
        """Shows what is durable, in order: what an observer causes to be written is shown behind what caused it."""
        if self._publishing:
            self._outbox.append(made)
            return
        self._publishing = True
        try:
            self._owner.stored(made)
            while self._outbox:
                self._owner.stored(self._outbox.pop(0))
        finally:
            self._publishing = False

    @property
    def full(self) -> bool:
        """Whether only what settles and ends the run is still taken."""
        return self._setup.room.full(self.state)

    def _made(self, ahead: RunState, drafts: Sequence[Written]) -> list[Record] | NotLegal:
        """The next records, folded into `ahead`; a clock that was put back does not put the run back."""
        at_ms = max(self._setup.clock.time_ms(), ahead.updated_at_ms)
        return make(ahead, drafts, at_ms=at_ms, fence=self.fence, room=self._setup.room)

    async def _append(
        self, made: list[Record], before: Head, ahead: RunState, failed: BaseException | None = None
    ) -> bool:
        """Appends, through outages: what was handed over is stored once the journal is back (RC-15).

        False if an event id among them is in the run already, with the same content or another.
        """
        self._begin_try()
        try:
            return await self._append_through(made, before, ahead, failed)
        finally:
            self._end_try()

    def _begin_try(self) -> None:
        """An append is under way, from its first try on."""
        if self._began is None:
            self._began = self._setup.clock.monotonic()
        if not self._watched and not self._setup.immediate:
            self._watched = True
            self._setup.late.add(self)

    def _end_try(self) -> None:
        self._began = None
        self._wake_tried()
        if self.stalled:
            self.stalled = False
            self._owner.stalled(False)

    def watch(self) -> None:
        """Sounds the alarm for an append that takes too long; looked for once, however many appends there are meanwhile."""
        self._watched = False
        if self._began is None or self.stalled:
            return
        waited = self._setup.clock.monotonic() - self._began
        if waited >= self._setup.timing.append_alarm:
            self._stall("no answer")
        else:
            self._watched = True
            self._setup.agenda.after(self._setup.timing.append_alarm - waited, weakly(self.watch))

    def _stall(self, why: object) -> None:
        if not self.stalled:
            self.stalled = True
            logger.warning("run %s waits for its journal: %s", self.state.run_id, why)
            self._owner.stalled(True)

    def try_again(self) -> None:
        """Ends the pause between two tries: somebody reached the journal."""
        if self._again is not None:
            self._again.set()

    async def settled(self) -> None:
        """Waits until the append that is under way was stored, or failed once more."""
        if self._began is not None:
            tried = asyncio.get_running_loop().create_future()
            self._tried.append(tried)
            await tried

    def _wake_tried(self) -> None:
        waiters, self._tried = self._tried, []
        for waiter in waiters:
            resolve(waiter)

    async def _pause(self, seconds: float) -> None:
        self._again = asyncio.Event()
        pause = asyncio.ensure_future(self._setup.clock.sleep(seconds))
        again = asyncio.ensure_future(self._again.wait())
        try:
            await asyncio.wait((pause, again), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            again.cancel()

    async def _append_through(
        self, made: list[Record], before: Head, ahead: RunState, failed: BaseException | None
    ) -> bool:
        """`failed` is what a first try came to, if there was one."""
        delay = 0.05
        while True:
            if isinstance(failed, _PASSING):
                # Uncertain or refused: the same records again are a duplicate if they had been stored after all.
                self._wake_tried()
                if isinstance(failed, JournalFull) or self._overdue():
                    self._stall(failed)
                await self._pause(delay)
                if self.closed:  # fenced meanwhile, or given up
                    raise RecordRefused(self.closed) from failed
                delay = min(delay * 2, 5.0)
            try:
                appended = await self._setup.journal.append(
                    ahead.run_id, made, expected=before, fence=self.fence, summary=ahead.summary()
                )
            except DuplicateConflict:
                return False
            except (FenceConflict, SeqConflict) as error:
                self.close("fenced")
                self._owner.lost("fenced")
                raise RecordRefused("fenced", str(error)) from error
            except _PASSING as error:
                failed = error
            else:
                return appended.head.chain == ahead.chain

    def _overdue(self) -> bool:
        assert self._began is not None
        return self._setup.clock.monotonic() - self._began >= self._setup.timing.append_alarm

    def forget(self) -> None:
        """Lets go of the live run: it is over, and nobody writes or looks here any more."""
        self._owner = _NOBODY

    def close(self, code: str) -> None:
        """Refuses everything from now on."""
        self.closed = self.closed or code

    async def _closed(self, drafts: Sequence[Written]) -> int:
        """Nothing is written any more; what was stored keeps its number, also after the end (RC-29)."""
        if self.closed in ("ended", "unknown"):
            seqs = [await self._stored_already(draft, lane) for draft, lane in drafts]
            if all(seqs):
                return max(seq or 0 for seq in seqs)
        raise RecordRefused(self.closed)

    async def _illegal(self, problem: NotLegal, drafts: Sequence[Written]) -> int:
        verdict, place, made = problem
        draft, lane = drafts[place]
        if verdict.code == "invalid_fact":
            raise RecordRefused(verdict.code, verdict.why)
        if (seq := await self._stored_already(draft, lane)) is not None:
            return await self._without(drafts, place, seq)
        if any(_is_same(record, draft, lane) for record in made):  # twice in one append
            return await self._without(drafts, place, 0)
        if isinstance(draft.fact, RequestClosed) and (seq := await self._closed_already(draft.fact, lane)):
            return await self._without(drafts, place, seq)
        if isinstance(draft.fact, RequestClosed) and lane == HOST:
            raise RecordRefused("illegal", verdict.why)  # the runtime was first
        if isinstance(verdict, Refused):
            raise RecordRefused(verdict.code, verdict.why)
        if lane == HOST:
            raise RuntimeError(f"the controller broke its own rules: {verdict.why}")
        await self._violated(verdict, draft)
        raise ProtocolViolation(verdict.code, verdict.why)

    async def _stored_already(self, draft: Draft, lane: Lane) -> int | None:
        """The seq of an exact repeat of a stored fact, in any state (RC-13)."""
        event_id = draft.event_id or event_id_of(draft.fact, 0, lane)
        stored = await self._setup.journal.find(self.state.run_id, event_id)
        return stored.seq if stored is not None and _is_same(stored, draft, lane) else None

    async def _closed_already(self, fact: RequestClosed, lane: Lane) -> int | None:
        """The seq of the same closing by the other lane: both look at the clock, one is first (RC-25)."""
        other = HOST if lane == RUNTIME else RUNTIME
        stored = await self._setup.journal.find(self.state.run_id, event_id_of(fact, 0, other))
        return stored.seq if stored is not None and stored.fact == fact else None

    async def _without(self, drafts: Sequence[Written], place: int, seq: int) -> int:
        """Writes the others of an append: a repeat changes nothing, for them neither (RC-13). The last seq of all is told."""
        rest = [*drafts[:place], *drafts[place + 1 :]]
        return max(seq, await self._write(rest)) if rest else seq

    async def _repeated(self, drafts: Sequence[Written]) -> int:
        """An event id is taken: by an exact repeat, which is left out, or by other content."""
        here: dict[str, Written] = {}
        for place, (draft, lane) in enumerate(drafts):
            event_id = draft.event_id or event_id_of(draft.fact, -place, lane)
            if (seq := await self._stored_already(draft, lane)) is not None:
                return await self._without(drafts, place, seq)
            if here.get(event_id) == (draft, lane):
                return await self._without(drafts, place, 0)
            if event_id in here or await self._setup.journal.find(self.state.run_id, event_id) is not None:
                return await self._conflict(draft, lane, event_id)
            here[event_id] = draft, lane
        raise DuplicateConflict(self.state.run_id, "of a fact that the controller adds")

    async def _conflict(self, draft: Draft, lane: Lane, event_id: str) -> int:
        """One event id for two contents: the host's mistake, or a violation of the runtime (RC-13)."""
        if lane == HOST:
            raise DuplicateConflict(self.state.run_id, event_id)
        why = f"event {event_id} stands for other content"
        await self._violated(Violation("duplicate_conflict", why), draft)
        raise ProtocolViolation("duplicate_conflict", why)

    async def _violated(self, verdict: Violation, draft: Draft) -> None:
        """Keeps the evidence and gives the run up as unknown, in one append."""
        try:
            body = encode(draft.fact)
        except NotJSON as error:
            body = str(error).encode()
        shown = body.decode("utf-8", "replace")
        evidence = ViolationRecorded(
            verdict.code, verdict.why, shown if len(shown) <= 4096 else shown[:4096], digest(body)
        )
        lost = ContinuityLost(self.state.seq, "violation", verdict.why)
        self._owner.lost("violation")
        await self._write((*self._owner.unsaved(), (Draft(evidence), HOST), (Draft(lost), HOST)))
