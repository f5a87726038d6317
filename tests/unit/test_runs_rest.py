"""Runs at rest: let go after a while, claimed again by the next command; waiters keep waiting (RC-50 … RC-52)."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from pilothouse.commands import InputAnswer, Request
from pilothouse.events import Cancelled, Completed, Incomplete, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import MemoryJournal, SQLiteJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import Ask, Hold

QUESTION = Request("q1", "input", prompt="Go on?")
END = (TurnEnded(1), RunEnded(Completed()))
TIMING = RunTiming(park_after=300, lease=30)


def spec(run_id: str = "r1", **fields) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),), **fields)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    opened = (
        MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "j.db", durability="off")
    )
    async with opened:
        yield opened


async def asked(runs: RunController, run_id: str = "r1") -> None:
    async with runs.stream(run_id, deltas=False) as items:
        async for item in items:
            if type(item) is Record and item.fact.kind == "request_opened":
                return


async def released(journal, run_id: str = "r1") -> None:
    while (head := await journal.head(run_id)) is None or head.owner is not None:
        await asyncio.sleep(0)


async def test_a_run_at_rest_is_let_go_and_the_answer_takes_it_up_again(journal) -> None:
    """RC-51: released, coroutine ended, no loss in its facts; waiters and followers keep waiting through it."""
    clock = StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
    async with RunController(runtime, journal=journal, clock=clock, timing=TIMING) as runs:
        run = await runs.start(spec())
        await asked(runs)
        waiting = asyncio.ensure_future(run.wait())
        seen: list[int] = []

        async def follow() -> None:
            async for item in run.stream(deltas=False):
                seen.append(item.seq)

        following = asyncio.ensure_future(follow())
        await clock.advance(299)
        assert (await run.inspect()).ownership == "here"
        await clock.advance(2)
        await released(journal)
        view = await run.inspect()
        assert (view.status, view.ownership, len(view.requests)) == ("waiting", "parked", 1)
        assert runs.stats().live == 0
        assert [t for t in asyncio.all_tasks() if t.get_name() == "pilothouse-run-r1"] == []
        assert not waiting.done()
        assert (await run.answer("q1", InputAnswer("yes"))).state == "applied"
        assert (await waiting).outcome == Completed()
        await following
        facts = await run.events()
        assert seen == [item.seq for item in facts]
        assert "continuity_lost" not in [item.fact.kind for item in facts]
        assert (runtime.runs, runtime.resumes) == (["r1"], ["r1"])
        assert facts[-1].fence == 2


async def test_a_parked_run_leaves_memory() -> None:
    """RC-51, RC-72: nothing of it is alive here."""
    clock = StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
    async with RunController(runtime, clock=clock, timing=TIMING) as runs:
        await runs.start(spec())
        await asked(runs)
        gone = weakref.ref(runs._fleet.live["r1"])
        await clock.advance(301)
        assert "r1" not in runs._fleet.live
        await clock.advance(40)  # what the agenda still held of it is due
        gc.collect()
        assert gone() is None


async def test_a_parked_run_is_stopped_by_a_cancel() -> None:
    """RC-51, RC-53: for a cancel the scope has fired before `resume` is entered."""
    clock = StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
    async with RunController(runtime, clock=clock, timing=TIMING, auto_recover="never") as runs:
        run = await runs.start(spec())
        await asked(runs)
        await clock.advance(301)
        assert (await run.cancel("enough")).state == "applied"
        assert (await run.wait()).outcome == Cancelled("enough")
        kinds = [item.fact.kind for item in await run.events()]
        assert kinds[-2:] == ["request_closed", "run_ended"]
        assert "continuity_lost" not in kinds


async def test_what_is_not_at_rest_or_has_a_deadline_is_not_let_go() -> None:
    """RC-51, RC-45: something in flight could be lost; a deadline has to stop it in time."""
    clock = StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
    busy = ScriptedRuntime(TurnStarted(1), Hold(), END)
    async with RunController(busy, clock=clock, timing=TIMING) as runs:
        await runs.start(spec())
        await clock.advance(1000)
        assert (await runs.inspect("r1")).ownership == "here"
        await runs.cancel("r1", "enough")
        await runs.run("r1").wait()
    async with RunController(runtime, clock=clock, timing=TIMING) as runs:
        run = await runs.start(spec("r2", deadline_ms=clock.time_ms() + 900_000))
        await asked(runs, "r2")
        await clock.advance(500)
        assert (await run.inspect()).ownership == "here"
        await clock.advance(500)
        assert (await run.wait()).outcome == Incomplete("limit", "deadline")


async def test_a_deaf_runtime_at_rest_is_let_go_and_counted() -> None:
    """RC-40, RC-51: its run can be taken up elsewhere; here its old task is a zombie."""
    clock, deaf = StepClock(), Hold(deaf=True)

    async def ask_and_be_deaf(_start, port) -> None:
        from pilothouse.events import RequestOpened

        await port.record(RequestOpened(QUESTION))
        await deaf.wait()

    runtime = ScriptedRuntime(TurnStarted(1), ask_and_be_deaf)
    journal = MemoryJournal()
    async with RunController(runtime, journal=journal, clock=clock, timing=TIMING) as runs:
        await runs.start(spec())
        await clock.advance(320)
        assert runs.stats().zombies == 1
        assert (await runs.inspect("r1")).ownership == "parked"
        other = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
        async with RunController(other, journal=journal, clock=clock) as later:
            await later.run("r1").cancel("enough")
            assert (await later.run("r1").wait()).outcome == Cancelled("enough")
        deaf.release()
        await clock.advance(1)


async def test_an_expired_request_of_a_parked_run_is_closed_at_the_next_attachment() -> None:
    """RC-25: and a command that would answer it is refused."""
    clock = StepClock()
    question = Request("q1", "input", prompt="?", expires_at_ms=clock.time_ms() + 400_000)
    other = Request("q2", "input", prompt="?")
    runtime = ScriptedRuntime(TurnStarted(1), _open(question), Ask(other), END)
    async with RunController(runtime, clock=clock, timing=TIMING) as runs:
        run = await runs.start(spec())
        await clock.advance(301)
        assert (await run.inspect()).ownership == "parked"
        await clock.advance(200)
        assert (await run.answer("q1", InputAnswer("late"))).code == "request_not_pending"
        closed = [item.fact for item in await run.events() if item.fact.kind == "request_closed"]
        assert [(fact.request_id, fact.reason) for fact in closed] == [("q1", "expired")]
        await run.answer("q2", InputAnswer("yes"))
        assert (await run.wait()).outcome == Completed()


def _open(request: Request):
    from pilothouse.events import RequestOpened

    return RequestOpened(request)


async def test_closing_lets_go_of_runs_at_rest_and_their_waiters_in_other_processes_go_on(journal) -> None:
    """RC-52, RC-64: a waiter elsewhere waits through the change of owners."""
    runtime = ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END)
    first = RunController(runtime, journal=journal)
    second = RunController(ScriptedRuntime(TurnStarted(1), Ask(QUESTION), END), journal=journal)
    await first.start(spec())
    await asked(first)
    waiting = asyncio.ensure_future(second.wait_for_terminal("r1"))
    await first.aclose()
    assert not waiting.done()
    await second.run("r1").answer("q1", InputAnswer("yes"))
    assert (await waiting).outcome == Completed()
    await second.aclose()
