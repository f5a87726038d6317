"""The run controller: many isolated runs of one runtime under one binding, for the life of a process (seed 001).

A façade. Starting, commanding, recovering and following have a module each; what they share is `Fleet`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final

from ..clock import SystemClock, within
from ..cluster import Dispatcher
from ..commands import Ack, Cancel, Command, FollowUp, Replace, Steer, StopSource
from ..contracts import Clock, GatePoint, Journal, Runtime
from ..core.run import Phase
from ..core.transcript import Transcript
from ..errors import CursorAhead, JournalError, OwnedElsewhere, RecordRefused, UsageError
from ..events import Noted, Unknown
from ..messages import JSON, UNSET, Message, Unset
from ..records import (
    Accept,
    DescribedRuntime,
    HistoryMessage,
    Page,
    Record,
    RunEntry,
    RunHead,
    RunQuery,
    RunResult,
    RunSpec,
    RunView,
    StatusAnswer,
)
from .fleet import Fleet
from .handle import Run
from .inline import inline
from .live import LiveRun
from .ordering import Orders
from .recovering import Recovery
from .ring import Observer, Ring, Subscription
from .starting import Starter
from .timing import RunLimits, RunStats, RunTiming

if TYPE_CHECKING:
    from .dispatched import Dispatched
    from .follow import Follower
    from .published import PublishedRun

logger = logging.getLogger("pilothouse.runs")

Screen: TypeAlias = Callable[[RunSpec, Command], Awaitable[Command]]
"""Sees what is said to a run of a thread before it is recorded, and may replace or refuse it."""


def random_id() -> str:
    """32 hex digits."""
    return os.urandom(16).hex()  # half the cost of a UUID, which nobody asked for


@final
class RunController:
    """Hosts durable runs of one runtime; an async context manager.

    Args:
        runtime: what does the work; its descriptor never changes for the life of the controller.
        binding: the host's stable name for this runtime configuration.
        journal: where facts go; None keeps them in memory. A journal that was given is not closed.
        follower_buffer: items a run that are kept for followers.
        auto_recover: when lost runs are taken up again by themselves: never, when a command comes for one, or all
            on entering the controller.
        dispatcher: gives runs to the processes that `work`; those that are started here may be driven elsewhere then.
    """

    def __init__(
        self,
        runtime: Runtime,
        binding: str = "default",
        *,
        journal: Journal | None = None,
        follower_buffer: int = 256,
        auto_recover: Literal["never", "on_command", "on_open"] = "on_command",
        timing: RunTiming | None = None,
        limits: RunLimits | None = None,
        clock: Clock | None = None,
        new_id: Callable[[], str] | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self._own_journal = journal is None
        if journal is None:
            from ..journal.memory import MemoryJournal

            journal = MemoryJournal()
        self._fleet = Fleet(
            runtime,
            binding,
            journal=journal,
            follower_buffer=follower_buffer,
            timing=timing or RunTiming(),
            limits=limits or RunLimits(),
            clock=clock or SystemClock(),
            new_id=new_id or random_id,
            dispatcher=dispatcher,
        )
        self._auto_recover = auto_recover
        self._starter = Starter(self._fleet)
        self._recovery = Recovery(self._fleet)
        self._orders = Orders(self._fleet, self._recovery, auto_recover)
        self._dispatched: Dispatched | None = None
        self._closing: asyncio.Future[None] | None = None
        self._screen: Screen | None = getattr(runtime, "screen", None)

    @property
    def descriptor(self) -> DescribedRuntime:
        """The runtime's contract with its digest."""
        return self._fleet.described

    @property
    def runtime(self) -> Runtime:
        """What does the work."""
        return self._fleet.runtime

    @property
    def journal(self) -> Journal:
        """The store."""
        return self._fleet.journal

    @property
    def binding(self) -> str:
        """The host's name for this runtime configuration."""
        return self._fleet.binding

    def new_id(self) -> str:
        """A fresh id."""
        return self._fleet.new_id()

    def run(self, run_id: str) -> Run:
        """A handle; no I/O, the run need not exist."""
        return Run(self, run_id)

    async def start(
        self,
        spec: RunSpec,
        *,
        until: Literal["accepted", "started"] = "started",
        expect_head: str | Unset | None = UNSET,
    ) -> Run:
        """Starts, or idempotently reopens, one immutable run, consumed in the background.

        Raises:
            InvalidSpec, Unsupported: no run can be made of this; no trace of it is left.
            RunConflict: the id stands for other content.
            ThreadConflict: the head of the thread is not `expect_head`.
            StartRefused: the runtime promised that no work exists.
            StartUnknown: it was registered but did not begin in time; it may still start.
        """
        _, reopened = await self._starter.start(spec, until=until, expect_head=expect_head)
        return Run(self, spec.run_id, reopened=reopened)

    # Reading

    async def inspect(self, run_id: str) -> RunView:
        """The bounded view of a run."""
        return await self._fleet.view(run_id)

    async def initial_input(self, run_id: str) -> tuple[Message, ...]:
        """The immutable input, from the registration alone (RC-84)."""
        return (await self._fleet.paths.registration(run_id)).spec.input

    async def run_extensions(self, run_id: str) -> Mapping[str, JSON]:
        """The immutable extensions, from the registration alone (RC-84)."""
        return (await self._fleet.paths.registration(run_id)).spec.extensions

    async def registered(self, run_id: str) -> RunSpec:
        """The immutable specification."""
        return (await self._fleet.paths.registration(run_id)).spec

    async def history(self, run_id: str) -> Sequence[HistoryMessage]:
        """From the root of the thread to this run, interrupted messages included and marked (RC-68)."""
        return await self._fleet.paths.history(run_id)

    async def front(self, run_id: str) -> Sequence[HistoryMessage]:
        """What stands in front of a run: its path without its own input and messages."""
        return (await self._fleet.paths.front(await self.registered(run_id))).entries

    async def own_messages(self, run_id: str) -> Sequence[HistoryMessage]:
        """The messages of this run alone, its input first."""
        transcript = Transcript(await self.registered(run_id))
        for record in await self._fleet.paths.facts(run_id):
            transcript.add(record)
        return transcript.messages()

    async def thread_head(self, thread_id: str) -> str | None:
        """The run created last in a thread, or None."""
        return await self._fleet.journal.thread_head(thread_id)

    async def catalog_runs(
        self, query: RunQuery | None = None, *, cursor: str | None = None, limit: int = 50
    ) -> Page[RunEntry]:
        """Runs from the journal itself, newest first."""
        from .catalog import catalog

        return await catalog(self._fleet, query or RunQuery(), cursor, limit)

    async def can_control_run(self, run_id: str) -> bool:
        """Whether the run was registered under this controller's contract (RC-85). False for an unknown id."""
        head = await self._fleet.journal.head(run_id)
        return head is not None and self._fleet.why_not(head.registration) is None

    async def has_run(self, run_id: str) -> bool:
        """Whether there is such a run."""
        return await self._fleet.journal.head(run_id) is not None

    async def events(self, run_id: str, after: int = 0, *, limit: int | None = None) -> list[Record]:
        """Facts with seq > after, ascending, from the journal.

        Raises:
            ValueError: `after` is negative.
            CursorAhead: the run has not come so far.
        """
        if after < 0:
            raise ValueError(f"after must not be negative, got {after}")
        head = await self._fleet.head(run_id)
        if after > head.head.seq:
            raise CursorAhead(run_id, after, head.head.seq)
        found = await self._fleet.paths.facts(run_id, after)
        return found if limit is None else found[:limit]

    async def subscribe(self, run_id: str) -> Subscription:
        """What is published after this returned; call `events` after it, not before (RC-63). Of a run that is over: nothing.

        Raises:
            RunNotFound, OwnedElsewhere: what it does is not published here; use `stream`.
        """
        if run_id in self._fleet.starting:
            await self._fleet.settled(run_id)
        if self._fleet.hub is not None:
            await self._fleet.hub.attend(run_id)
        live = self._fleet.live.get(run_id) or self._fleet.mirror(run_id)
        if live is None:
            head = await self._fleet.head(run_id)
            if head.summary.state not in ("terminal", "unknown") or head.owner_alive:
                raise OwnedElsewhere(run_id, head.owner or "nobody")
            over = Ring(1, 1, run_id, head.head.seq)
            over.close()
            return Subscription(run_id, over, head.head.seq, lambda _: None)
        return self._subscribe(live)

    def _subscribe(self, live: PublishedRun) -> Subscription:
        def closed(_: Subscription) -> None:
            live.followers -= 1
            if live.over and not live.followers:
                live.ring.clear()

        live.followers += 1
        return Subscription(live.run_id, live.ring, live.state.seq, closed)

    def stream(
        self,
        run_id: str,
        after: int = 0,
        *,
        deltas: bool = True,
        through_unknown: bool = False,
        recent: bool = False,
    ) -> Follower:
        """Facts from a cursor on, each once and in order, then live, with deltas in between (RC-63, RC-64).

        `recent` also gives the deltas that are kept from before, behind the facts that the journal had: for readers
        that know by offset (RC-20) what of them they have.
        """
        from .follow import Follower, Source

        fleet = self._fleet

        async def changed(name: str, seq: int) -> int:
            return await fleet.journal.changed(name, seq, timeout=fleet.timing.lease)

        attend = None if fleet.hub is None else fleet.hub.attend
        source = Source(
            run_id, fleet.head, fleet.read, changed, self._shown, self._subscribe, fleet.ownership, attend
        )
        return Follower(source, after, deltas=deltas, through_unknown=through_unknown, recent=recent)

    def _live(self, run_id: str) -> LiveRun | None:
        live = self._fleet.live.get(run_id)
        return None if live is None or live.over else live

    def _shown(self, run_id: str) -> PublishedRun | None:
        """What publishes the run here, wherever it is driven."""
        return self._live(run_id) or self._fleet.mirror(run_id)

    def observe(self, run_id: str, observer: Observer) -> Callable[[], None] | None:
        """Calls back, in the step that publishes it, with each fact and delta of a run that is live here.

        For the floors above that must act before anything else does; exceptions are logged. Returns a function that
        takes this back, or None if the run is not live here.
        """
        shown = self._shown(run_id)
        if shown is None:
            return None
        shown.observers.append(observer)

        def take_back() -> None:
            for publishes in (shown, self._shown(run_id)):  # it may be driven here since
                if publishes is not None and observer in publishes.observers:
                    publishes.observers.remove(observer)

        return take_back

    def gate(self, run_id: str, *, shut: Sequence[GatePoint]) -> None:
        """Shuts these gates of a live run, or opens all if none is named; nothing where it is not live here (RC-83)."""
        live = self._live(run_id)
        if live is None:
            return
        if shut:
            live.gate.pause(*shut)
        else:
            live.gate.open()

    def is_elsewhere(self, run_id: str) -> bool:
        """Whether the run is shown here and goes on in another process, or waits for one; no I/O."""
        return self._live(run_id) is None and self._fleet.mirror(run_id) is not None

    @property
    def may_move(self) -> bool:
        """Whether what is started here may be driven by another process."""
        return self._fleet.moving

    # Commanding

    async def command(self, command: Command, *, timeout: float | None = None) -> Ack:
        """Records, forwards once and projects one idempotent command.

        Returns when the runtime answered, or after `timeout` seconds (None: `timing.command`) with state `received`.

        Raises:
            InvalidCommand, RunNotFound, NotControllable, OwnedElsewhere, CommandConflict: mistakes of the caller.
            JournalUnavailable: the journal is away. A stop acts all the same, and is stored once it is back.
        """
        if self._screen is not None and isinstance(command.body, Steer | FollowUp | Replace):
            live = self._fleet.live.get(command.run_id)
            registration = (
                await self._fleet.paths.registration(command.run_id) if live is None else live.registration
            )
            command = await self._screen(registration.spec, command)
        return await self._orders.command(command, timeout)

    async def note(self, run_id: str, note: Noted) -> None:
        """Records a remark on a run that is live here, in the name of its runtime.

        Raises:
            RecordRefused: it has ended.
            OwnedElsewhere: it has not, and is not driven here.
        """
        live = self._live(run_id)
        if live is not None and live.port is not None:
            await live.port.record(note)
            return
        head = await self._fleet.journal.head(run_id)
        if head is None or head.summary.state == "terminal":
            raise RecordRefused("ended")
        raise OwnedElsewhere(run_id, head.owner or "nobody")

    @property
    def limits(self) -> RunLimits:
        """Size limits."""
        return self._fleet.limits

    async def cancel(self, run_id: str, reason: str, *, source: StopSource = "user") -> Ack:
        """Stops a run, with a fresh command id. For retry-safe ids build a `Command`.

        Returns when the stop is on the record; `wait_for_terminal` waits for the end. Raises as `command` does.
        """
        return await self._orders.command(Command(self.new_id(), run_id, Cancel(reason, source)), None)

    def cancel_nowait(self, run_id: str, reason: str, *, source: StopSource = "user") -> bool:
        """Stops a run that is live here before it returns; the stop is recorded in order. False if none is live."""
        return self._orders.cancel_nowait(Command(self.new_id(), run_id, Cancel(reason, source)))

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is being: no run lives here any more, or will."""
        return self._fleet.closed

    def stoppable(self, run_id: str) -> bool:
        """Whether a run is live here and its end is not decided yet."""
        live = self._fleet.live.get(run_id) or self._fleet.mirror(run_id)
        return live is not None and live.stoppable

    def is_driven_by(self, task: asyncio.Task[Any], run_id: str) -> bool:
        """Whether that is the task in which the runtime works on a run here."""
        live = self._fleet.live.get(run_id)
        return live is not None and live.task is task

    def at_rest(self, run_id: str) -> bool:
        """Whether an observed run was let go while it waits, and is taken up again by the next command."""
        return run_id in self._fleet.watched

    async def reach_journal(self, run_id: str) -> None:
        """Where a run that is live here waits for its journal, that is tried once more.

        Raises:
            JournalUnavailable: it is still away.
        """
        live = self._live(run_id)
        if live is not None:
            await live.reach_journal()

    async def join(self, run_id: str) -> None:
        """Waits until no task of a run is alive here and all it handed over is stored."""
        live = self._fleet.live.get(run_id)
        if live is not None:
            await live.join()

    async def recorded_command(self, run_id: str, command_id: str) -> Command | None:
        """The immutable command, also after the end; writes nothing."""
        return await self._orders.recorded(run_id, command_id)

    async def command_ack(self, run_id: str, command_id: str) -> Ack:
        """Its ack, from facts.

        Raises:
            CommandNotFound: no such command.
        """
        return await self._orders.ack(run_id, command_id)

    def stats(self) -> RunStats:
        """Counts of this process."""
        fleet = self._fleet
        return RunStats(len(fleet.live) - len(fleet.finished), len(fleet.finished), fleet.zombies)

    # Recovering

    async def recover(self, run_id: str, *, accept: Accept | None = None) -> RunView:
        """Takes a lost run up again, by the level that the runtime declares; returns its view as it is then.

        A run that is live here is left as it is. `accept` holds a person's reasons where some are needed: a violation, a
        changed configuration. It returns once the restore is on the record, not at the run's end.

        Raises:
            Unsupported: the runtime cannot recover.
            RunNotFound, NotControllable, OwnedElsewhere: it is not this controller's to recover.
            RecoveryMismatch, RecoveryRefused: it stays unknown; nothing changed but perhaps the claim.
        """
        if self._fleet.dispatcher is not None and not self._fleet.live_here(run_id):
            return await self._orders.ask_to_recover(run_id, accept or Accept())
        return await self._recovery.recover(run_id, accept=accept)

    async def check_status(self, run_id: str) -> StatusAnswer:
        """Asks the runtime where an unknown run stands, and records an end that it proves.

        Raises:
            Unsupported: the runtime cannot be asked.
            RecoveryMismatch: what it tells is not legal; nothing was written.
        """
        return await self._recovery.check_status(run_id)

    async def abandon(self, run_id: str, reason: str, *, by: str = "") -> RunView:
        """Ends an unknown, orphaned or stalled run on the record: nobody will know what became of it.

        Raises:
            InvalidCommand: a blank reason, or the run is healthy or has ended.
            RunNotFound, OwnedElsewhere: there is none, or a living process drives it.
            NotControllable: its facts are of a newer vocabulary. Another binding or contract is no obstacle.
        """
        return await self._recovery.abandon(run_id, reason, by)

    # Working for a dispatcher

    def work(
        self,
        *,
        accept: Accept | None = None,
        principal: int | None = None,
        thread: int | None = None,
    ) -> None:
        """From now on runs that the dispatcher has for this binding and contract are driven here; then start it.

        `accept`: the declared rule for runs that began under another configuration. None: they are left to workers of
        theirs, or to a person. `principal` and `thread` bound how many runs of one are driven at once on all workers.

        Raises:
            UsageError: there is no dispatcher.
        """
        fleet = self._fleet
        if fleet.dispatcher is None or fleet.journal.relay is None:
            raise UsageError("cannot work without a dispatcher: give RunController(dispatcher=…)")
        if self._dispatched is None:
            from .dispatched import Dispatched

            self._dispatched = Dispatched(
                fleet,
                self._recovery,
                self._orders,
                fleet.journal.relay,
                fleet.dispatcher,
                accept or Accept(),
                principal=principal,
                thread=thread,
            )
            self._dispatched.open()

    # Waiting, opening, closing

    async def wait_for_terminal(
        self, run_id: str, *, timeout: float | None = None, through_unknown: bool = False
    ) -> RunResult:
        """Waits until the run has its end; unknown is returned as such, never guessed (RC-64).

        Raises:
            TimeoutError: after `timeout` seconds.
        """
        if timeout is None:
            return await self._wait(run_id, through_unknown=through_unknown)
        waiting = self._wait(run_id, through_unknown=through_unknown)
        try:
            return await within(self._fleet.clock, timeout, waiting)
        except TimeoutError:
            raise TimeoutError(f"run {run_id} did not end within {timeout:g} s") from None

    async def _wait(self, run_id: str, *, through_unknown: bool) -> RunResult:
        while True:
            live = self._live(run_id)
            if live is not None and not through_unknown:
                await live.wait_over()
                if live.writer.stalled and not live.over:
                    away = Unknown("journal_unavailable", "the run waits for its journal")
                    return RunResult(away, await self.inspect(run_id), settled=False)
            if live is None or through_unknown or live.released:
                await self._wait_following(run_id, through_unknown=through_unknown)
            if live is not None and live.state.phase is Phase.TERMINAL:  # it may have left memory meanwhile
                state, view = self._fleet.seen_live(live)
            else:
                state, view = await self._fleet.seen(run_id)
            if state.outcome is not None:  # with its whole text; a view is bounded
                return RunResult(state.outcome, view)
            if (unknown := view.unknown) is not None and not through_unknown:
                return RunResult(Unknown(unknown.cause, unknown.reason), view, settled=False)

    async def _wait_following(self, run_id: str, *, through_unknown: bool) -> None:
        """Waits for the end of a run that is not live here, or not all the time."""
        head: RunHead = await self._fleet.head(run_id)
        if head.summary.state != "terminal":
            follower = self.stream(run_id, head.head.seq, deltas=False, through_unknown=through_unknown)
            async with follower:
                async for _ in follower:
                    pass

    async def __aenter__(self) -> Self:
        """Opens; with `auto_recover="on_open"` lost runs are recovered first."""
        if self._auto_recover == "on_open" and self._fleet.dispatcher is None:
            await self._recovery.recover_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def aclose(self, *, timeout: float = 10.0) -> None:
        """Ends the life of this process's runs without deciding theirs (RC-52); idempotent.

        Text is flushed and model connections are closed; results of what had started are stored within `timeout`
        seconds; runs at rest are released as they are, others are recorded as lost by a shutdown, to be recovered.
        """
        if self._closing is None:
            loop = asyncio.get_running_loop()
            if self._fleet.idle and self._dispatched is None:  # nothing is waited for
                inline(self._aclose(timeout))
                self._closing = loop.create_future()
                self._closing.set_result(None)
            else:
                self._closing = loop.create_task(self._aclose(timeout))
        await asyncio.shield(self._closing)

    async def _aclose(self, seconds: float) -> None:
        fleet = self._fleet
        fleet.closed = True
        begun = {*[each.task for each in fleet.starting.values()], *fleet.recovering.values()}
        await self._end_all(begun, seconds)  # what they make live is closed with the others
        living = [live for live in fleet.live.values() if not live.over]
        for live in living:
            if not live.writer.stalled:
                await live.save_partials()
            live.closing = True
        for live in living:
            if live.state.resting:
                live.let_go()
            else:
                live.gate.open()
                live.scope.fire("the controller was closed", "shutdown")
        await self._join(living, seconds)
        for live in living:
            if live.writer.stalled:
                live.give_up_waiting()
            elif not live.over and live.state.phase not in (Phase.TERMINAL, Phase.UNKNOWN):
                if live.moves:
                    live.let_go()
                else:
                    await live.lose("shutdown", "the controller was closed")
        if self._dispatched is not None:
            await self._dispatched.aclose()
        if fleet.hub is not None:
            await fleet.hub.aclose()
        await fleet.agenda.aclose()
        await self._end_all(set(fleet.releasing.values()), seconds)
        try:
            if fleet.claims:
                await fleet.journal.release(fleet.owner)
        except JournalError as error:
            logger.warning("the claims end with their leases: %s", error)
        if fleet.dispatcher is not None:
            for live in living:
                if live.released and not live.state.resting:  # at once, not when its lease would have ended
                    await fleet.hand_to_dispatcher(live.registration, live.writer.fence)
        if self._own_journal:
            await fleet.journal.aclose()

    async def _join(self, living: list[LiveRun], seconds: float) -> None:
        """Waits for the runs' tasks; those that do not end in time are cancelled, then left."""
        await self._end_all({live.task for live in living if live.task is not None}, seconds)

    async def _end_all(self, found: Collection[asyncio.Task[Any]], seconds: float) -> None:
        tasks = {task for task in found if not task.done()}
        for limit_s in (seconds, 1.0):
            if not tasks:
                return
            with suppress(TimeoutError):
                await within(self._fleet.clock, limit_s, _all_done(tasks))
            tasks = {task for task in tasks if not task.done()}
            for task in tasks:
                task.cancel()


async def _all_done(tasks: set[asyncio.Task[Any]]) -> None:
    await asyncio.wait(tasks)
