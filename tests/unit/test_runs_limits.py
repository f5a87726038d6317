"""Limits and memory of runs (RC §3.12): spill, full runs, inboxes, live runs, what followers can do to a run."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from pilothouse.commands import Command, FollowUp, Request, Steer
from pilothouse.errors import InvalidCommand, InvalidSpec, RecordRefused, Unsupported
from pilothouse.events import (
    CallFinished,
    CallProposed,
    CallStarted,
    Cancelled,
    Completed,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    OutputAdded,
    RequestOpened,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal, SQLiteJournal
from pilothouse.messages import ArtifactRef, File, Message, Structured, Text
from pilothouse.records import Descriptor, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RESERVED_FACTS, RunLimits, RunTiming
from pilothouse.testing import ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import COMMANDS, Hold, Leave

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1", **fields) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),), **fields)


def said(name: str, text: str = "more") -> Message:
    return Message(name, "user", (Text(text),))


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    opened = (
        MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "j.db", durability="off")
    )
    async with opened:
        yield opened


async def test_large_content_becomes_artifacts_with_a_preview(journal) -> None:
    """RC-71: text, data and media spill, largest first; blobs are durable, equal ones stored once; a repeat is one."""
    long = "wörd " * 100_000
    parts = (
        Text("small"),
        Text(long),
        Structured({"rows": list(range(60_000))}),
        File("application/pdf", data=b"x" * 300_000),
    )
    message = Message("m1", "assistant", parts)
    seqs: list[int] = []

    async def work(_start, port) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        await port.record(ModelAttemptEnded(1, 1, "answered"))
        seqs.append(await port.record(MessageAdded(message, 1)))
        seqs.append(await port.record(MessageAdded(message, 1)))
        await port.record(CallProposed("c1", "t"), CallStarted("c1", 1, "t", "d", "read"))
        await port.record(CallFinished("c1", "succeeded", (Text(long),), attempt=1))

    async with RunController(ScriptedRuntime(work, END), journal=journal) as runs:
        run = await runs.start(spec())
        assert (await run.wait()).outcome == Completed()
        assert seqs[0] == seqs[1]
        facts = await run.events()
        assert max(len(item.body) for item in facts) <= RunLimits().max_fact_bytes
        (added,) = [item.fact for item in facts if isinstance(item.fact, MessageAdded)]
        small, text, data, file = added.message.parts
        assert small == Text("small")
        assert isinstance(text, ArtifactRef)
        assert (text.media_type, text.preview) == ("text/plain", long[:2000])
        assert (await journal.get_blob(text.digest)).decode() == long
        assert isinstance(data, ArtifactRef)
        assert isinstance(file, File)
        assert file.data is None
        assert await journal.get_blob(file.artifact.digest) == b"x" * 300_000
        (result,) = [item.fact for item in facts if isinstance(item.fact, CallFinished)]
        assert result.content[0].digest == text.digest
        assert (await journal.verify()).problems == ()


async def test_characters_that_nobody_can_write_do_not_fail_what_is_measured(journal) -> None:
    """RC-71, RC-4: they are replaced, as in a fact that nobody measures."""
    parts = (Text("a\ud83dz"), Structured({"\ud83d": "x\ude00"}), Text("\ud83d" * 300_000))

    async def work(_start, port) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        await port.record(ModelAttemptEnded(1, 1, "answered"))
        await port.record(MessageAdded(Message("m1", "assistant", parts), 1))

    async with RunController(ScriptedRuntime(work, END), journal=journal) as runs:
        run = await runs.start(spec())
        assert (await run.wait()).outcome == Completed()
        (added,) = [item.fact for item in await run.events() if isinstance(item.fact, MessageAdded)]
        small, data, long = added.message.parts
        assert (small, data) == (Text("a\ufffdz"), Structured({"\ufffd": "x\ufffd"}))
        assert (await journal.get_blob(long.digest)).decode() == "\ufffd" * 300_000


async def test_what_cannot_spill_is_refused_and_the_run_goes_on() -> None:
    """RC §3.12: `too_large`; nothing is stored of it."""
    codes: list[str] = []

    async def work(_start, port) -> None:
        await port.record(TurnStarted(1))
        for fact in (Noted("test/x", {"big": "x" * 300_000}), OutputAdded("o", "out", "x" * 300_000)):
            with pytest.raises(RecordRefused) as caught:
                await port.record(fact)
            codes.append(caught.value.code)
        with pytest.raises(RecordRefused) as caught:
            await port.put_artifact(b"x" * 2_000, "text/plain")
        codes.append(caught.value.code)

    limits = RunLimits(max_artifact_bytes=1_000)
    async with RunController(ScriptedRuntime(work, END), limits=limits) as runs:
        run = await runs.start(spec())
        assert (await run.wait()).outcome == Completed()
        assert codes == ["too_large"] * 3
        assert not {"noted", "output_added"} & {item.fact.kind for item in await run.events()}


@pytest.mark.parametrize(
    "limits", [RunLimits(max_run_facts=RESERVED_FACTS + 8), RunLimits(max_run_bytes=2_500)]
)
async def test_a_full_run_takes_no_more_work_and_can_always_be_stopped(limits: RunLimits) -> None:
    """RC §3.12: `run_full`; what is kept back lets it be settled, stopped and ended, its text included."""
    full = asyncio.Event()
    codes: list[str] = []

    async def work(_start, port) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        port.tell(TextTold("m1", 0, "half"))
        try:
            for number in range(100):
                await port.record(Noted("test/n", {"number": number}))
        except RecordRefused as error:
            codes.append(error.code)
        full.set()
        await port.scope.wait()

    async with RunController(ScriptedRuntime(work), limits=limits) as runs:
        run = await runs.start(spec())
        await full.wait()
        assert codes == ["run_full"]
        ack = await run.steer("left")
        assert (ack.state, ack.code) == ("rejected", "run_full")
        assert (await run.cancel("enough")).state == "applied"
        assert (await run.wait()).outcome == Cancelled("enough")
        assert (await run.history())[-1].message.text == "half"


async def test_an_inbox_and_the_open_requests_are_bounded() -> None:
    """RC §3.12, RC-24: `queue_full` without a trace, whichever way inputs are taken; `max_pending` refused."""
    for inputs in ("queue", "forward"):
        descriptor = Descriptor(
            "x", commands=COMMANDS, requests=("input",), inputs=inputs, cancel="confirmed"
        )
        codes: list[str] = []

        async def ask(_start, port, codes=codes) -> None:
            await port.record(TurnStarted(1))
            try:
                for number in range(5):
                    await port.record(RequestOpened(Request(f"q{number}", "input", blocking=False)))
            except RecordRefused as error:
                codes.append(error.code)

        limits = RunLimits(max_inbox=2, max_pending=3)
        runtime = ScriptedRuntime(ask, Hold(), descriptor=descriptor)
        async with RunController(runtime, limits=limits) as runs:
            run = await runs.start(spec())
            for number in range(2):
                body = FollowUp(said(f"s{number}"))
                ack = await runs.command(Command(f"c{number}", "r1", body), timeout=0.0)
                assert ack.state == ("accepted" if inputs == "queue" else "received")
            seq = (await run.inspect()).last_seq
            ack = await runs.command(Command("c9", "r1", Steer(said("s9"))), timeout=0.0)
            assert (ack.state, ack.code) == ("rejected", "queue_full")
            assert (await run.inspect()).last_seq == seq
            assert codes == ["max_pending"]
            assert len((await run.inspect()).requests) == 3
            await run.cancel("enough")
            await run.wait()


async def test_extensions_and_commands_are_bounded() -> None:
    """RC §3.12: of a spec `InvalidSpec`, of a command `InvalidCommand`; nothing is written."""
    big = {"test/x": "x" * 20_000}
    async with RunController(ScriptedRuntime(TurnStarted(1), Hold())) as runs:
        with pytest.raises(InvalidSpec) as spec_error:
            await runs.start(spec(extensions=big))
        assert spec_error.value.code == "extensions"
        assert not await runs.has_run("r1")
        run = await runs.start(spec())
        seq = (await run.inspect()).last_seq
        for command, code in (
            (Command("c1", "r1", Steer(said("s1")), big), "extensions"),
            (Command("c1", "r1", Steer(said("s1", "x" * 300_000))), "too_large"),
        ):
            with pytest.raises(InvalidCommand) as caught:
                await runs.command(command)
            assert caught.value.code == code
        assert (await run.inspect()).last_seq == seq
        await run.cancel("enough")
        await run.wait()


async def test_live_runs_are_bounded_and_reads_go_on() -> None:
    """RC §3.12: `too_many_runs`; ended ones do not count."""
    hold = Hold()
    async with RunController(
        ScriptedRuntime(TurnStarted(1), hold, END), limits=RunLimits(max_live_runs=2)
    ) as runs:
        for name in ("a", "b"):
            await runs.start(spec(name))
        with pytest.raises(Unsupported) as caught:
            await runs.start(spec("c"))
        assert caught.value.code == "too_many_runs"
        assert not await runs.has_run("c")
        assert (await runs.inspect("a")).status == "running"
        hold.release()
        for name in ("a", "b"):
            await runs.run(name).wait()
        assert (await (await runs.start(spec("c"))).wait()).outcome == Completed()


async def test_a_follower_that_never_reads_or_raises_changes_nothing_of_the_run() -> None:
    """RC-62, RC-74, RC-75 [147]: a bounded ring; the error of an observer is logged, the others are told."""
    told: list[object] = []

    def broken(_item) -> None:
        raise RuntimeError("mine")

    async def talk(_start, port) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        for _ in range(5_000):
            port.tell(TextTold("m1", 0, "x" * 2_000))
        await port.record(ModelAttemptEnded(1, 1, "failed"))

    hold = Hold()
    async with RunController(ScriptedRuntime(hold, talk, END), follower_buffer=64) as runs:
        run = await runs.start(spec(), until="accepted")
        runs.observe("r1", broken)
        runs.observe("r1", told.append)
        lazy = await run.subscribe()
        live = runs._fleet.live["r1"]
        hold.release()
        assert (await run.wait()).outcome == Completed()
        assert len(told) > 5_000
        assert live.ring.end - live.ring.first <= 128
        first = await anext(lazy)
        assert first.body.__struct_config__.tag == "lagged"
        assert first.body.deltas + first.body.facts > 4_900
        await lazy.aclose()


async def test_ended_and_lost_runs_leave_memory_whole() -> None:
    """RC-73 [165]: no object, task or future of them is alive after `keep_finished`."""
    clock = StepClock()
    gone: list[weakref.ref] = []
    runtime = ScriptedRuntime(TurnStarted(1), END)
    async with RunController(runtime, clock=clock, timing=RunTiming(keep_finished=60)) as runs:
        for number in range(40):
            if number == 20:
                runtime.script = (TurnStarted(1), Leave())
            run = await runs.start(spec(f"r{number}"))
            gone.append(weakref.ref(runs._fleet.live[f"r{number}"]))
            await run.wait()
        del run
        await clock.advance(61)
        await clock.advance(61)
        gc.collect()
        assert [ref() for ref in gone if ref() is not None] == []
        assert len(asyncio.all_tasks()) <= 2
        assert (await runs.inspect("r30")).status == "unknown"


@pytest.mark.parametrize("last", [RunEnded(Completed()), Leave()])
async def test_a_run_that_is_over_can_be_subscribed_to_and_publishes_nothing(journal, last) -> None:
    """RC-62, RC-63: whether it still is in memory or not, a subscription that comes too late is empty."""
    runtime = ScriptedRuntime(TurnStarted(1), TurnEnded(1), last)
    async with RunController(runtime, journal=journal) as runs:
        run = await runs.start(spec())
        await run.wait()
        await runs.join("r1")
        async with await run.subscribe() as late:
            assert [item async for item in late] == []
            assert late.last_seq == (await run.events())[-1].seq


async def test_what_is_over_and_cannot_leave_memory_yet_is_not_counted_as_live() -> None:
    """RC-73, RC §3.12: a follower that stays, or a task that goes on, takes no place of a run that could begin."""
    clock, hold = StepClock(), Hold()
    hold.deaf = True
    runtime = ScriptedRuntime(TurnStarted(1), END, hold)
    timing = RunTiming(keep_finished=10, stop_grace=1, kill_grace=1)
    async with RunController(runtime, clock=clock, timing=timing, limits=RunLimits(max_live_runs=1)) as runs:
        await (await runs.start(spec("deaf"))).wait()
        for _ in range(20):
            await clock.advance(1)
        assert (runs.stats().live, runs.stats().finished, runs.stats().zombies) == (0, 1, 1)
        hold.release()
        await (await runs.start(spec("next"))).wait()
        for _ in range(20):
            await clock.advance(1)
        assert (runs.stats().live, runs.stats().finished) == (0, 0)
        follower = await (await runs.start(spec("followed"))).subscribe()
        for _ in range(20):
            await clock.advance(1)
        assert (runs.stats().live, runs.stats().finished) == (0, 1)
        await follower.aclose()
        for _ in range(20):
            await clock.advance(1)
        assert (runs.stats().live, runs.stats().finished) == (0, 0)


async def test_who_follows_a_run_that_nothing_is_kept_of_does_not_keep_the_process_busy() -> None:
    """RC-73: with `keep_finished=0`, what still is followed is looked at now and then, not without a pause."""
    clock = StepClock()
    timing = RunTiming(keep_finished=0)
    async with RunController(ScriptedRuntime(TurnStarted(1), END), clock=clock, timing=timing) as runs:
        follower = await (await runs.start(spec(), until="accepted")).subscribe()
        assert (await runs.run("r1").wait()).outcome == Completed()
        await clock.advance(5)
        assert runs.stats().finished == 1
        await follower.aclose()
        await clock.advance(5)
        assert runs.stats().finished == 0
