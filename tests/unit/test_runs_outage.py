"""A journal that fails, hangs or lies about a commit: nothing lost, nothing twice, nobody left hanging (RC-14, RC-15)."""

from __future__ import annotations

import asyncio
from typing import Self

import pytest

from pilothouse.commands import Cancel, Command, Steer
from pilothouse.errors import InvalidCommand, JournalCorrupt, JournalFull, JournalUnavailable
from pilothouse.events import (
    Cancelled,
    Completed,
    Delta,
    Noted,
    OwnershipTold,
    RunEnded,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal, ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import Hold, UntilStopped

END = (TurnEnded(1), RunEnded(Completed()))
TIMING = RunTiming(append_alarm=10)


def spec(run_id: str = "r1") -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),))


async def passes(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Place:
    """A controller over a journal that fails on demand, with one run that waits before its last steps."""

    def __init__(self, *script) -> None:
        self.clock = StepClock()
        self.journal = FaultyJournal(MemoryJournal())
        self.hold = Hold()
        self.runtime = ScriptedRuntime(*(script or (TurnStarted(1), self.hold, Noted("test/x"), END)))
        self.runs = RunController(self.runtime, journal=self.journal, clock=self.clock, timing=TIMING)
        self.run = self.runs.run("r1")

    async def __aenter__(self) -> Self:
        await self.runs.start(spec())
        await passes()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.journal.heal()
        await self.runs.aclose()

    async def kinds(self) -> list[str]:
        return [item.fact.kind for item in await self.run.events()]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 3])
async def test_an_append_that_failed_or_is_uncertain_is_stored_once(when: str, times: int) -> None:
    """RC-15, JR-2 [130]: the same records again are a duplicate if they had been stored after all."""
    async with Place() as place:
        place.journal.fail(at=1, times=times, when=when)
        place.hold.release()
        await passes()
        assert "noted" not in await place.kinds() or when == "after"
        await place.clock.advance(5)
        assert (await place.run.wait()).outcome == Completed()
        kinds = await place.kinds()
        assert kinds.count("noted") == kinds.count("run_ended") == 1
        assert (await place.journal.verify()).problems == ()


async def test_a_long_outage_stalls_the_run_tells_who_waits_and_loses_nothing() -> None:
    """RC-15: after `append_alarm` waiters get unknown, not settled; commands raise; the kept facts are stored later."""
    async with Place() as place:
        told: list[str] = []

        async def watch() -> None:
            async for item in place.run.stream():
                if type(item) is Delta and isinstance(item.body, OwnershipTold):
                    told.append(item.body.ownership)

        watching = asyncio.ensure_future(watch())
        waiting = asyncio.ensure_future(place.run.wait())
        await passes()
        place.journal.fail(times=None, on=("append",))
        place.hold.release()
        await place.clock.advance(9)
        assert not waiting.done()
        await place.clock.advance(7)
        result = await waiting
        assert result.outcome == Unknown("journal_unavailable", "the run waits for its journal")
        assert (result.settled, result.view.ownership) == (False, "stalled")
        assert (await place.run.wait()).settled is False  # who comes now does not hang either
        with pytest.raises(JournalUnavailable):
            await place.run.steer("left", id="c1")
        assert await place.runs.recorded_command("r1", "c1") is None
        place.journal.heal()
        await place.clock.advance(6)
        assert (await place.run.wait()).outcome == Completed()
        await watching
        assert told == ["stalled", "here"]
        kinds = await place.kinds()
        assert kinds.count("noted") == 1


async def test_an_append_that_never_answers_sounds_the_alarm_too() -> None:
    """RC-15: a hung connection is an outage."""
    async with Place() as place:
        fault = place.journal.hang(on=("append",))
        place.hold.release()
        await fault.reached.wait()
        await place.clock.advance(11)
        assert (await place.run.inspect()).ownership == "stalled"
        assert (await place.run.wait()).settled is False
        fault.release()
        await passes()
        assert (await place.run.wait()).outcome == Completed()


async def test_a_full_disk_stalls_at_once() -> None:
    """RC-15: a definite error needs no alarm."""
    async with Place() as place:
        place.journal.fail(error=JournalFull("cannot append: the disk is full"), times=None, on=("append",))
        place.hold.release()
        await passes()
        assert (await place.run.inspect()).ownership == "stalled"
        place.journal.heal()
        await place.clock.advance(1)
        assert (await place.run.wait()).outcome == Completed()


async def test_a_cancel_during_an_outage_fires_the_scope_and_is_recorded_when_the_journal_is_back() -> None:
    """RC-15, RC-39: a stop waits for no disk; it is recorded once, in order, and the run ends by it."""
    hold = Hold()
    async with Place(TurnStarted(1), hold, Noted("test/x"), UntilStopped()) as place:
        place.journal.fail(times=None, on=("append",))
        hold.release()
        await place.clock.advance(16)
        live = place.runs._fleet.live["r1"]
        assert not live.scope.cancelled
        command = Command("c1", "r1", Cancel("enough"))
        with pytest.raises(JournalUnavailable):
            await place.runs.command(command)
        assert live.scope.cancelled
        with pytest.raises(JournalUnavailable):
            await place.runs.command(command)
        place.journal.heal()
        await place.clock.advance(6)
        assert (await place.run.wait()).outcome == Cancelled("enough")
        kinds = await place.kinds()
        assert kinds.count("stop_requested") == kinds.count("noted") == 1
        assert (await place.runs.command(command)).duplicate


async def test_a_command_under_way_when_the_journal_goes_is_told_so_and_applied_once() -> None:
    """RC-14, RC-15: its caller leaves with an error; what was handed over is stored, put before the runtime, and a
    repeat of the command finds it."""
    async with Place() as place:
        fault = place.journal.hang(on=("append",))
        commanding = asyncio.ensure_future(place.run.steer("left", id="c1"))
        await fault.reached.wait()
        await place.clock.advance(11)
        with pytest.raises(JournalUnavailable):
            await commanding
        fault.release()
        await passes()
        port = place.runs._fleet.live["r1"].port
        assert port.commands.peek("steer").id == "c1"
        known = await place.runs.recorded_command("r1", "c1")
        assert (await place.runs.command(known)).duplicate
        place.hold.release()
        await place.run.wait()


async def test_the_caller_of_a_command_leaves_and_it_acts_all_the_same() -> None:
    """RC-14: acting hangs on the append, not on who asked for it."""
    async with Place() as place:
        fault = place.journal.hang(on=("append",))
        said = Message("said", "user", (Text("left"),))
        commanding = asyncio.ensure_future(place.runs.command(Command("c1", "r1", Steer(said))))
        await fault.reached.wait()
        commanding.cancel()
        await asyncio.gather(commanding, return_exceptions=True)
        stopping = asyncio.ensure_future(place.run.cancel("enough"))
        await passes()
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        fault.release()
        assert (await place.run.wait()).outcome == Cancelled("enough")
        assert (await place.runs.command_ack("r1", "c1")).state == "returned"


async def test_a_stalled_run_can_be_abandoned_once_its_journal_answers() -> None:
    """RC-60: what was kept for the journal is stored first, then the loss and the decision."""
    async with Place(TurnStarted(1), hold := Hold(), Noted("test/x"), Hold(deaf=False)) as place:
        with pytest.raises(InvalidCommand):
            await place.run.abandon("it is healthy")
        place.journal.fail(times=None, on=("append",))
        hold.release()
        await place.clock.advance(16)
        with pytest.raises(JournalUnavailable):
            await place.run.abandon("no use")
        place.journal.heal()
        view = await place.run.abandon("no use", by="me")
        assert view.outcome == Unknown("owner_lost", "no use", settled=True, by="me")
        kinds = await place.kinds()
        assert kinds[-3:] == ["noted", "continuity_lost", "run_abandoned"]


@pytest.mark.parametrize("fault", [JournalCorrupt("r1", 3), OSError("of somebody's own journal")])
async def test_a_fault_of_the_store_that_no_retry_mends_leaves_nobody_hanging(fault: Exception) -> None:
    """RC-64, RC §3.8: the run is let go without a fact; who waits is told that it is unknown."""
    async with Place() as place:
        waiting = asyncio.ensure_future(place.run.wait())
        await passes()
        place.journal.fail(error=fault, times=None, on=("append",))
        place.hold.release()
        result = await asyncio.wait_for(waiting, 5)
        assert isinstance(result.outcome, Unknown)
        assert result.view.ownership == "orphaned"


async def test_a_stolen_run_is_fenced_and_its_waiters_go_on_with_the_new_owner() -> None:
    """RC-16 [140]: the port is closed, nothing more is published from here, the end comes from the journal."""
    async with Place() as place:
        waiting = asyncio.ensure_future(place.run.wait())
        await passes()
        fault = place.journal.steal()
        place.hold.release()
        await fault.reached.wait()
        await passes()
        assert not waiting.done()
        assert (await place.run.inspect()).ownership == "elsewhere"
        assert [t for t in asyncio.all_tasks() if t.get_name() == "pilothouse-run-r1"] == []
        await place.journal.inner.release(_owner("thief"))
        other = RunController(ScriptedRuntime(TurnStarted(1), END), journal=place.journal.inner)
        async with other:
            await other.recover("r1")
            assert (await other.run("r1").wait()).outcome == Completed()
        assert (await waiting).outcome == Completed()


def _owner(name: str):
    from pilothouse.records import Owner

    return Owner(name)


async def test_closing_while_the_journal_is_away_ends() -> None:
    """RC-52: what the journal has decides, as after a crash."""
    place = Place()
    async with place:
        place.journal.fail(times=None, on=("append", "release"))
        place.hold.release()
        await place.clock.advance(16)
        closing = asyncio.ensure_future(place.runs.aclose())
        await place.clock.advance(40)
        await asyncio.wait_for(closing, 5)
        place.journal.heal()
        later = RunController(ScriptedRuntime(), journal=place.journal.inner, clock=place.clock)
        assert (await later.inspect("r1")).status in ("unknown", "running")
        await later.aclose()


async def test_a_reader_is_not_ahead_of_the_run_it_reads() -> None:
    """RC-10, RC-63: what is committed and not folded yet is given when it is: who acts on it meets a run that knows."""
    async with Place() as place:
        fault = place.journal.hang(when="after", on=("append",))
        place.hold.release()
        await fault.reached.wait()
        seen: list[str] = []
        states: list[int] = []

        async def read() -> None:
            async for item in place.run.stream(deltas=False):
                seen.append(item.fact.kind)
                states.append((await place.run.inspect()).last_seq - item.seq)

        reading = asyncio.ensure_future(read())
        await passes()
        assert "noted" not in seen
        fault.release()
        await reading
        assert seen[-1] == "run_ended"
        assert min(states) >= 0
