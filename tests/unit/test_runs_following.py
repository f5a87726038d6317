"""Following and telling at awkward moments: nobody is ahead of the run it reads, nothing is held while others hang."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse.commands import Answer, Cancel, Command, InputAnswer, Request, Steer
from pilothouse.contracts import RunPort
from pilothouse.errors import CommandNotFound, RunNotFound
from pilothouse.events import (
    Cancelled,
    Completed,
    Delta,
    ModelRequested,
    Noted,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Descriptor, Record, RunSpec, Start
from pilothouse.runs.controller import RunController
from pilothouse.runs.follow import Follower
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal, ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import Ask, Hold, Leave

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1") -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),))


async def passes(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def followed(runs: RunController) -> list[tuple[str, str, int]]:
    """What a reader sees of a run that begins, and where the run stands for whoever acts on it."""
    seen = []
    async for item in runs.stream("r1", deltas=False):
        view = await runs.inspect("r1")
        seen.append((item.fact.kind, view.status, view.last_seq - item.seq))
    return seen


async def test_who_follows_a_run_before_its_start_is_heard_of_sees_all_of_it() -> None:
    """RC-63, RC-64: committed by the store and not live yet, it is not an orphan: the stream goes on to its end."""
    journal = FaultyJournal(MemoryJournal())
    async with RunController(ScriptedRuntime(), journal=journal) as runs:
        slow = journal.hang(when="after", on=("create",))
        starting = asyncio.ensure_future(runs.start(spec()))
        await slow.reached.wait()
        following = asyncio.ensure_future(followed(runs))
        await passes()
        assert not following.done()
        slow.release()
        await starting
        assert (await following)[-1] == ("run_ended", "completed", 0)


async def test_a_page_that_was_read_while_the_run_came_to_life_is_not_ahead_of_it() -> None:
    """RC-10, RC-63: a stream that ended finds a run that has ended, on a store whose answers overtake each other."""
    journal = FaultyJournal(MemoryJournal())
    async with RunController(ScriptedRuntime((TurnStarted(1), *END)), journal=journal) as runs:
        creating = journal.hang(when="after", on=("create",))
        starting = asyncio.ensure_future(runs.start(spec()))
        await creating.reached.wait()
        reading = journal.hang(when="before", on=("read",))
        following = asyncio.ensure_future(followed(runs))
        await reading.reached.wait()
        ending = journal.hang(at=1, when="after", on=("append",))
        creating.release()
        await ending.reached.wait()
        reading.release()
        await passes()
        ending.release()
        await starting
        seen = await following
        assert [kind for kind, _, _ in seen] == [item.fact.kind for item in await runs.events("r1")]
        assert min(ahead for _, _, ahead in seen) == 0
        assert seen[-1] == ("run_ended", "completed", 0)


async def test_a_loss_at_the_end_of_a_page_that_is_full_by_bytes_does_not_end_a_stream() -> None:
    """RC-63, RC-64, JR-5: a page of 4 MiB has few facts; what follows is in the next one."""
    journal = MemoryJournal()
    async with RunController(ScriptedRuntime(), journal=journal) as runs:

        async def lost_after(run_id: str, fill: int) -> int:
            notes = [Noted("test/x", str(number) + "x" * 200_000) for number in range(20)]
            runs.runtime.script = (TurnStarted(1), *notes, Noted("test/fill", "x" * fill), Leave())
            await (await runs.start(spec(run_id))).wait()
            return sum(len(record.body) for record in await runs.events(run_id))

        small = await lost_after("r0", 100)
        run, fill = runs.run("r1"), 100 + 4 * 1024 * 1024 - small - 50
        await lost_after("r1", fill)
        runs.runtime.script = (*runs.runtime.script[:-1], END)
        await run.recover()
        assert (await run.wait()).outcome == Completed()
        page = await journal.read("r1")
        assert page.more
        assert page.records[-1].fact.kind == "continuity_lost"  # else this shows nothing
        facts = await run.events()
        assert [item.seq async for item in run.stream(deltas=False)] == [item.seq for item in facts]


@pytest.mark.parametrize("way", ["ends", "lost", "fenced"])
async def test_a_delta_is_there_when_it_was_told_and_none_comes_behind_an_end(way: str) -> None:
    """RC-18: told in one step, without an append; after an end, a loss or a lost fence it is dropped."""
    journal = FaultyJournal(MemoryJournal())
    ports: list[RunPort] = []
    woken: list[bool] = []

    async def tell(start: Start, port: RunPort) -> None:
        ports.append(port)
        before = len(journal.calls)
        port.tell(TextTold("m1", 0, "one"))
        item = follower.take_nowait()  # in the same step
        assert isinstance(item, Delta)
        waiting = asyncio.ensure_future(follower.wait())
        await passes()
        assert not waiting.done()
        port.tell(TextTold("m1", 0, "two"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        woken.append(waiting.done())
        assert {name for name, _ in journal.calls[before:]} <= {"renew"}

    last = {"ends": RunEnded(Completed()), "lost": Leave(), "fenced": Noted("test/x")}[way]
    hold = Hold()
    runtime = ScriptedRuntime(TurnStarted(1), ModelRequested(1, 1, "m1"), hold, tell, TurnEnded(1), last)
    runs = RunController(runtime, journal=journal, clock=StepClock())
    await runs.start(spec())
    follower = await runs.subscribe("r1")
    await hold.reached()
    if way == "fenced":
        journal.steal(at=2)
    hold.release()
    told = [item async for item in follower]
    assert woken == [True]
    assert [item.body.text for item in told if isinstance(getattr(item, "body", None), TextTold)] == ["two"]
    ports[0].tell(TextTold("m1", 0, "late"))
    assert follower.take_nowait() is None
    late = await runs.subscribe("r1") if way != "fenced" else follower
    assert late.take_nowait() is None
    await runs.aclose()


class Deaf:
    """A runtime that is stuck in handling a command, and says when it is."""

    def __init__(self) -> None:
        self.stuck = asyncio.Event()
        self.go = asyncio.Event()

    def describe(self) -> Descriptor:
        return Descriptor(
            "deaf",
            commands=("steer", "cancel"),
            inputs="forward",
            cancel="confirmed",
            recovery=None,
            thread_reuse="parallel",
        )

    async def run(self, start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(1))
        if start.spec.run_id != "r1":
            await port.record(TurnEnded(1), RunEnded(Completed()))
            return
        await port.commands.wait("steer")
        assert port.commands.take("steer") is not None
        self.stuck.set()
        await self.go.wait()


async def test_while_a_runtime_hangs_in_a_command_everything_else_answers() -> None:
    """RC-11: reads, waiting, a cancel of that run, other starts, other runs: nothing is held meanwhile."""
    clock = StepClock()
    runtime = Deaf()
    async with RunController(runtime, clock=clock, timing=RunTiming(stop_grace=10)) as runs:
        run = await runs.start(spec())
        steering = asyncio.ensure_future(run.steer("left", id="c1"))
        await runtime.stuck.wait()
        assert (await run.inspect()).status == "running"
        assert (await run.events())[-1].fact.kind == "command_received"
        assert (await runs.command_ack("r1", "c1")).state == "received"
        assert (await (await runs.start(spec("r2"))).wait()).outcome == Completed()
        waiting = asyncio.ensure_future(run.wait())
        await passes()
        assert not steering.done()
        assert (await run.cancel("enough")).state == "applied"
        await clock.advance(11)  # it is deaf: its task is cancelled
        assert (await waiting).outcome == Cancelled("enough")
        assert (await steering).state == "returned"


async def test_a_command_is_read_in_every_state_and_nothing_is_written() -> None:
    """RC-44: from memory or journal, before and behind the end, under another contract; reading attaches nothing."""
    journal = FaultyJournal(MemoryJournal())
    clock = StepClock()
    question = Ask(Request("q1", "input", prompt="?"))
    answer = Command("c2", "r1", Answer("q1", InputAnswer("yes")))
    steer = Command("c1", "r1", Steer(Message("s", "user", (Text("left"),))))
    script = (TurnStarted(1), question, Hold(), END)
    runtime = ScriptedRuntime(*script)

    async def look(runs: RunController, states: tuple[str, str]) -> None:
        before, head = len(journal.calls), await journal.head("r1")
        assert await runs.recorded_command("r1", "c1") == steer
        assert await runs.recorded_command("r1", "c2") == answer
        assert await runs.recorded_command("r1", "c9") is None
        assert (
            (await runs.command_ack("r1", "c1")).state,
            (await runs.command_ack("r1", "c2")).state,
        ) == states
        with pytest.raises(CommandNotFound):
            await runs.command_ack("r1", "c9")
        for call in (runs.recorded_command("ghost", "c1"), runs.command_ack("ghost", "c1")):
            with pytest.raises(RunNotFound):
                await call
        assert await journal.head("r1") == head
        assert not {name for name, _ in journal.calls[before:]} & {"create", "append", "claim", "release"}

    dead = RunController(runtime, journal=journal, clock=clock)
    await dead.start(spec())
    await passes()
    await dead.command(steer)
    assert (await dead.command(answer)).state == "applied"
    await look(dead, ("accepted", "applied"))  # running, live here
    other = RunController(ScriptedRuntime(descriptor=Descriptor("other")), "other", journal=journal)
    await look(other, ("accepted", "applied"))  # live elsewhere, under another contract
    await dead.aclose()
    await look(other, ("accepted", "applied"))  # unknown
    async with RunController(ScriptedRuntime(*script[:2], END), journal=journal) as runs:
        await look(runs, ("accepted", "applied"))
        assert (await runs.inspect("r1")).status == "unknown"
        assert runs.runtime.resumes == []
        await runs.command(Command("c3", "r1", Cancel("enough")))
        await runs.run("r1").wait()
        await look(runs, ("returned", "applied"))
    await look(other, ("returned", "applied"))  # ended
    assert isinstance((await other.events("r1"))[0], Record)
    await other.aclose()


async def test_two_tasks_that_read_one_follower_share_what_comes() -> None:
    """RC-62, RC-63: each item is given once, to one of them, in order, however they are woken."""
    gate = Hold()
    pieces = [TextTold("m1", 0, f"{number};") for number in range(300)]

    async def talk(_start: Start, port: RunPort) -> None:
        say = port.flow("m1", 0)  # type: ignore[attr-defined]
        for piece in pieces:
            say(piece.text)
            if len(piece.text) == 3:
                await asyncio.sleep(0)

    async with RunController(ScriptedRuntime(TurnStarted(1), gate, talk, *END)) as runs:
        run = await runs.start(spec(), until="accepted")
        told: list[str] = []
        facts: list[int] = []

        async def read(items: Follower) -> None:
            async for item in items:
                if isinstance(item, Record):
                    facts.append(item.seq)
                elif isinstance(item.body, TextTold):
                    told.append(item.body.text)
                    await asyncio.sleep(0)

        async with run.stream() as items:
            readers = [asyncio.ensure_future(read(items)) for _ in range(2)]
            await passes()
            gate.release()
            await asyncio.wait(readers)
        assert sorted(told, key=lambda text: int(text[:-1])) == [piece.text for piece in pieces]
        assert facts == [record.seq for record in await run.events()]


async def test_a_follower_that_is_closed_while_it_waits_gives_nothing_more() -> None:
    """RC-65: what is told behind that goes to nobody, and the one who waited is told that it is over."""
    gate = asyncio.Event()

    async def talk(_start: Start, port: RunPort) -> None:
        say = port.flow("m1", 0)  # type: ignore[attr-defined]
        say("one")
        await gate.wait()
        say("two")

    async with RunController(ScriptedRuntime(TurnStarted(1), talk, *END)) as runs:
        run = await runs.start(spec(), until="accepted")
        items = run.stream()
        while not (isinstance(item := await anext(items), Delta) and isinstance(item.body, TextTold)):
            pass
        waiting = asyncio.ensure_future(anext(items, None))
        await passes()
        await items.aclose()
        gate.set()
        assert await waiting is None
        await run.wait()
