"""Bounded waits of a run controller: starts, commands, stops, deadlines, deaf runtimes (RC-34, RC-38, RC-40, RC-45)."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse.commands import Cancel, Command, FollowUp, InputAnswer, Request, Steer
from pilothouse.errors import (
    OutcomeError,
    RecordRefused,
    RecoveryRefused,
    StartRefused,
    StartUnknown,
)
from pilothouse.events import (
    Cancelled,
    Completed,
    Incomplete,
    ModelRequested,
    Noted,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Descriptor, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import COMMANDS, Ask, Hold, UntilStopped

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1", **fields) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),), **fields)


def words(text: str) -> Message:
    return Message(f"said-{text}", "user", (Text(text),))


async def test_a_runtime_that_does_not_begin_in_time_leaves_the_start_unknown_and_may_still_start() -> None:
    """RC-34: `StartUnknown` after `timing.start`; the run is left alone, a repeat of the start finds it."""
    clock, hold = StepClock(), Hold()
    runtime = ScriptedRuntime(hold, TurnStarted(1), END)
    async with RunController(runtime, clock=clock, timing=RunTiming(start=60)) as runs:
        starting = asyncio.ensure_future(runs.start(spec()))
        await hold.reached()
        await clock.advance(59)
        assert not starting.done()
        await clock.advance(2)
        with pytest.raises(StartUnknown) as caught:
            await starting
        assert caught.value.run_id == "r1"
        assert (await runs.inspect("r1")).status == "accepted"
        hold.release()
        assert (await runs.run("r1").wait()).outcome == Completed()
        assert (await runs.start(spec())).reopened
        assert runtime.runs == ["r1"]


async def test_a_start_that_was_refused_is_refused_again_after_a_restart() -> None:
    """RC-34: the refusal is recorded, so that a repeat gets the same answer; a new try needs a new id."""
    journal = MemoryJournal()
    refusing = ScriptedRuntime(StartRefused("no_seat", "all seats are taken", retryable=True))
    async with RunController(refusing, journal=journal) as runs:
        with pytest.raises(StartRefused):
            await runs.start(spec())
    again = ScriptedRuntime()
    async with RunController(again, journal=journal) as runs:
        with pytest.raises(StartRefused) as caught:
            await runs.start(spec())
        assert (caught.value.code, caught.value.retryable) == ("no_seat", True)
        assert again.runs == []
        assert (await (await runs.start(spec("r2"))).wait()).outcome == Completed()


async def test_a_start_refused_after_the_first_fact_is_a_loss() -> None:
    """RC §3.8: a refusal promises that no work exists; after a fact it cannot."""
    runtime = ScriptedRuntime(TurnStarted(1), StartRefused("late"))
    async with RunController(runtime) as runs:
        result = await (await runs.start(spec())).wait()
        assert isinstance(result.outcome, Unknown)
        assert result.outcome.cause == "error"
        assert result.outcome.reason.startswith("StartRefused after the start")


@pytest.mark.parametrize("raised", [RuntimeError("boom"), RecordRefused("invalid_fact", "why")])
async def test_what_a_runtime_raises_is_a_loss_with_its_type_and_text(raised: Exception) -> None:
    """RC §3.8, RC-46: unknown, never failed."""
    async with RunController(ScriptedRuntime(TurnStarted(1), raised)) as runs:
        outcome = (await (await runs.start(spec())).wait()).outcome
        assert isinstance(outcome, Unknown)
        assert outcome.cause == "error"
        assert outcome.reason.startswith(type(raised).__name__)


async def test_a_task_cancelled_by_somebody_else_is_a_loss() -> None:
    """RC §3.8: cancelled, but not by our stop."""
    runtime = ScriptedRuntime(TurnStarted(1), Hold())
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "pilothouse-run-r1"]
        task.cancel()
        outcome = (await run.wait()).outcome
        assert isinstance(outcome, Unknown)
        assert outcome.cause == "cancelled_outside"


async def test_a_command_that_nobody_answers_comes_back_as_received_and_is_not_forwarded_again() -> None:
    """RC-38: recorded, no error; a repeat waits again; the runtime saw it once."""
    clock, hold = StepClock(), Hold()
    forwarding = Descriptor(
        "forwarding", commands=COMMANDS, inputs="forward", cancel="confirmed", recovery="journal"
    )
    seen: list[str] = []

    async def listen(_start, port) -> None:
        port.commands.on_arrival(lambda command: seen.append(command.id))

    runtime = ScriptedRuntime(listen, TurnStarted(1), hold, END, descriptor=forwarding)
    async with RunController(runtime, clock=clock, timing=RunTiming(command=30)) as runs:
        await runs.start(spec())
        command = Command("c1", "r1", Steer(words("left")))
        for duplicate in (False, True):
            waiting = asyncio.ensure_future(runs.command(command))
            await clock.advance(29)
            assert not waiting.done()
            await clock.advance(2)
            ack = await waiting
            assert (ack.state, ack.duplicate) == ("received", duplicate)
        assert (await runs.command(command, timeout=0.0)).state == "received"
        assert seen == ["c1"]
        assert (await runs.recorded_command("r1", "c1")) == command
        hold.release()
        await runs.run("r1").wait()
        assert (await runs.command_ack("r1", "c1")).state == "returned"


async def test_an_undecided_command_is_offered_to_the_next_attachment() -> None:
    """RC-38, RC-41: a crash between receipt and answer loses nothing and applies it once."""
    hold = Hold()
    offered: list[str] = []

    async def look(_start, port) -> None:
        if (command := port.commands.peek()) is not None:
            offered.append(command.id)

    async def leave_once(_start, _port) -> None:
        if not hold._released.is_set():
            hold.release()
            raise RuntimeError("gone")

    runtime = ScriptedRuntime(TurnStarted(1), hold, look, leave_once, END)
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await hold.reached()
        assert (await run.follow_up(words("and then"), id="c1")).state == "accepted"
        hold._released.clear()
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "pilothouse-run-r1"]
        task.cancel()
        await run.wait()
        hold.release()
        await run.recover()
        await run.wait()
        assert offered == ["c1"]
        assert (await runs.command_ack("r1", "c1")).state == "returned"


async def test_a_deaf_runtime_is_given_up_fenced_and_counted() -> None:
    """RC-40, RC-47, RC-54: cancel after `stop_grace`, unknown after `kill_grace`; its late facts are refused."""
    clock, deaf = StepClock(), Hold(deaf=True)
    late: list[str] = []

    async def too_late(_start, port) -> None:
        port.tell(TextTold("m9", 0, "late"))
        try:
            await port.record(Noted("test/late"))
        except RecordRefused as error:
            late.append(error.code)
            raise

    runtime = ScriptedRuntime(TurnStarted(1), deaf, too_late)
    timing = RunTiming(stop_grace=10, kill_grace=5, keep_finished=60)
    runs = RunController(runtime, clock=clock, timing=timing)
    run = await runs.start(spec())
    await deaf.reached()
    waiting = asyncio.ensure_future(run.wait())
    assert (await run.cancel("enough")).state == "applied"
    assert (await run.inspect()).status == "stopping"
    await clock.advance(14)
    assert not waiting.done()
    await clock.advance(2)
    result = await waiting
    assert result.outcome == Unknown("stop_unconfirmed", "the runtime ignored the stop")
    assert (result.settled, runs.stats().zombies) == (False, 1)
    with pytest.raises(RecoveryRefused) as caught:
        await run.recover()
    assert caught.value.code == "still_running"
    seq = (await run.inspect()).last_seq
    deaf.release()
    await clock.advance(1)
    assert late == ["unknown"]
    assert (await run.inspect()).last_seq == seq
    assert (await run.abandon("it is gone", by="me")).status == "unknown"
    await runs.aclose()


async def test_the_end_of_an_in_process_runtime_after_our_stop_is_the_evidence() -> None:
    """RC-40: `confirmed` only; of a `best_effort` runtime the end must be told."""
    for level, expected in (("confirmed", Cancelled("enough")), ("best_effort", None)):
        descriptor = Descriptor("stopping", commands=COMMANDS, cancel=level)
        runtime = ScriptedRuntime(TurnStarted(1), UntilStopped(), descriptor=descriptor)
        async with RunController(runtime) as runs:
            run = await runs.start(spec())
            await run.cancel("enough")
            outcome = (await run.wait()).outcome
            if expected is not None:
                assert outcome == expected
            else:
                assert isinstance(outcome, Unknown)
                assert outcome.cause == "eof"


async def test_a_runtime_that_returns_without_an_end_is_lost_at_any_place() -> None:
    """RC §3.8: before it told anything, and behind a fact."""

    async def nothing(*_: object) -> None:
        pass

    for told in (nothing, TurnStarted(1)):
        async with RunController(ScriptedRuntime(told)) as runs:
            run = await runs.start(spec(), until="accepted")
            outcome = (await run.wait()).outcome
            assert outcome == Unknown("eof", "the runtime returned without an end")


async def test_a_deadline_stops_and_ends_incomplete() -> None:
    """RC-45: at its time a stop with source `deadline`; the end is a limit, not a cancellation."""
    clock = StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), UntilStopped())
    async with RunController(runtime, clock=clock) as runs:
        run = await runs.start(spec(deadline_ms=clock.time_ms() + 5_000))
        waiting = asyncio.ensure_future(run.wait())
        await clock.advance(4)
        assert not waiting.done()
        await clock.advance(2)
        result = await waiting
        assert result.outcome == Incomplete("limit", "deadline")
        with pytest.raises(OutcomeError):
            result.raise_for_outcome()
        stops = [item.fact for item in await run.events() if item.fact.kind == "stop_requested"]
        assert [(stop.reason, stop.source) for stop in stops] == [("deadline", "deadline")]


async def test_a_deadline_that_passed_while_nobody_drove_the_run_stops_it_before_it_is_resumed() -> None:
    """RC-45, RC-53: the scope has fired before `resume` is entered."""
    clock = StepClock()
    entered: list[bool] = []

    async def look(_start, port) -> None:
        entered.append(port.scope.cancelled)

    runtime = ScriptedRuntime(TurnStarted(1), RuntimeError("gone"))
    async with RunController(runtime, clock=clock) as runs:
        run = await runs.start(spec(deadline_ms=clock.time_ms() + 5_000))
        await run.wait()
        await clock.advance(10)
        runtime.script = (TurnStarted(1), look)
        await run.recover()
        assert (await run.wait()).outcome == Incomplete("limit", "deadline")
        assert entered == [True]


async def test_a_runtime_that_goes_on_after_the_end_writes_nothing() -> None:
    """RC §3.8, RC-29: its drafts are refused; an exact repeat of the end keeps its number."""
    refused: list[object] = []

    async def go_on(_start, port) -> None:
        from pilothouse.records import Draft

        refused.append(await port.record(Draft(RunEnded(Completed()), event_id="step:1:1")))
        with pytest.raises(RecordRefused) as caught:
            await port.record(TurnStarted(2))
        refused.append(caught.value.code)

    async with RunController(ScriptedRuntime(TurnStarted(1), END, go_on)) as runs:
        run = await runs.start(spec())
        await run.wait()
        await runs.join("r1")
        assert refused == [(await run.inspect()).last_seq, "ended"]


async def test_a_runtime_that_does_not_return_after_the_end_is_cancelled() -> None:
    """RC §3.8, RC-47: after `stop_grace` its task is cancelled."""
    clock, hold = StepClock(), Hold()
    runtime = ScriptedRuntime(TurnStarted(1), END, hold)
    async with RunController(runtime, clock=clock, timing=RunTiming(stop_grace=10)) as runs:
        run = await runs.start(spec())
        await run.wait()
        await clock.advance(11)
        assert [t for t in asyncio.all_tasks() if t.get_name() == "pilothouse-run-r1"] == []


async def test_a_cancel_after_the_first_is_applied_to_it() -> None:
    """RC-39: the first stop gives reason and source; a cancel whose caller left still acts (RC-14)."""
    hold = Hold(deaf=True)
    async with RunController(ScriptedRuntime(TurnStarted(1), hold, UntilStopped())) as runs:
        run = await runs.start(spec())
        first = await run.cancel("first")
        second = await run.command(Command("c2", "r1", Cancel("second", "parent")))
        assert (first.state, second.state) == ("applied", "applied")
        assert first.applied_seq == second.applied_seq
        hold.release()
        assert (await run.wait()).outcome == Cancelled("first")


async def test_a_request_that_expires_is_closed_at_its_time() -> None:
    """RC-25: no answer is taken, the writer closes it; a follower sees the closing."""
    clock = StepClock()
    request = Request("q1", "input", prompt="?", expires_at_ms=clock.time_ms() + 5_000)
    runtime = ScriptedRuntime(TurnStarted(1), Ask(request), UntilStopped())
    async with RunController(runtime, clock=clock) as runs:
        run = await runs.start(spec())
        await clock.advance(4.9)
        assert len((await run.inspect()).requests) == 1
        await clock.advance(0.2)
        closed = [item.fact for item in await run.events() if item.fact.kind == "request_closed"]
        assert [(fact.request_id, fact.reason) for fact in closed] == [("q1", "expired")]
        ack = await run.answer("q1", InputAnswer("late"))
        assert (ack.state, ack.code) == ("rejected", "request_not_pending")
        await run.cancel("done")
        await run.wait()


async def test_a_request_that_both_sides_close_in_the_same_moment_is_closed_once() -> None:
    """RC-13, RC-25: the runtime looks at the clock too; who is second is told the number of the first."""
    from pilothouse.events import RequestClosed

    clock = StepClock()
    request = Request("q1", "input", prompt="?", expires_at_ms=clock.time_ms() + 5_000)
    seqs: list[int] = []

    async def close_late(_start, port) -> None:
        from pilothouse.events import RequestOpened

        await port.record(RequestOpened(request))
        await clock.sleep(6)
        seqs.append(await port.record(RequestClosed("q1", "expired")))

    async with RunController(ScriptedRuntime(TurnStarted(1), close_late, END), clock=clock) as runs:
        run = await runs.start(spec())
        await clock.advance(7)
        assert (await run.wait()).outcome == Completed()
        (closed,) = [item for item in await run.events() if item.fact.kind == "request_closed"]
        assert (closed.lane, seqs) == ("host", [closed.seq])


async def test_a_stop_in_a_model_call_leaves_no_task() -> None:
    """RC-47: a stop in a model call leaves no task of the run behind."""
    runtime = ScriptedRuntime(TurnStarted(1), (ModelRequested(1, 1, "m"), TextTold("m", 0, "ha")), Hold())
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.cancel("enough")
        assert (await run.wait()).outcome == Cancelled("enough")
        await runs.join("r1")
        assert [t for t in asyncio.all_tasks() if t.get_name().startswith("pilothouse-run")] == []
        assert (await run.history())[-1].message.text == "ha"
        assert (await run.command(Command("c", "r1", FollowUp(words("x"))))).code == "ended"
