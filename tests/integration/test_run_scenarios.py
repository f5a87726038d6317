"""The handed scenario fixtures of crashes, storage, replay and back-pressure, on runs over a real SQLite file.

141 is in `tests/acceptance/test_sqlite_processes.py`; 121 and 122 are played on the loop (`test_loop_scenarios.py`).
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pilothouse.errors import CursorAhead, OwnedElsewhere, RecordRefused, RunConflict
from pilothouse.events import (
    Completed,
    Delta,
    HistoryCompacted,
    Lagged,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal, SQLiteJournal, export, import_
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.tools import tool
from pilothouse.messages import Message, Text
from pilothouse.records import Parent, Record, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal, ScriptedProvider, ScriptedRuntime
from pilothouse.testing.runtimes import Hold, complete
from pilothouse.testing.scripted import Hold as Stream
from pilothouse.testing.scripted import call
from scenarios import ops_of

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1", text: str = "go", **fields) -> RunSpec:
    fields.setdefault("thread_id", f"t-{run_id}")
    return RunSpec(run_id, input=(Message(f"{run_id}.0", "user", (Text(text),)),), **fields)


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[SQLiteJournal]:
    async with SQLiteJournal(tmp_path / "runs.db", durability="off") as opened:
        yield opened


async def dead(controller: RunController, faulty: FaultyJournal) -> None:
    """What a killed process leaves: nothing more is written, its tasks are gone, its lease is over."""
    faulty.crash(on=("append", "release", "renew", "claim", "put_blob", "create"))
    tasks = {task for task in asyncio.all_tasks() if task.get_name().startswith("pilothouse-")}
    for task in tasks:
        task.cancel()
    for _ in range(
        20
    ):  # passes of the loop, in which they feel it; one that waits for the dead journal waits for good
        await asyncio.sleep(0)
    await faulty.inner.release(controller._fleet.owner)


async def test_one_key_is_one_run_across_repeats_restarts_and_races(journal) -> None:
    """[120], RC-33: same key, other payload: conflict."""
    ops = ops_of("120")
    keys: set[str] = set()
    runtime = ScriptedRuntime(*complete())
    runs = RunController(runtime, journal=journal)
    for op in ops:
        if op["op"] == "start_run":
            conflicts = op["text"] == "pay twice"
            if conflicts:
                with pytest.raises(RunConflict) as caught:
                    await runs.start(spec(op["key"], op["text"]))
                assert caught.value.code
            else:
                run = await runs.start(spec(op["key"], op["text"]))
                assert run.reopened == (op["key"] in keys)
                keys.add(op["key"])
                await run.wait()
        elif op["op"] == "restart":
            await runs.aclose()
            runs = RunController(runtime, journal=journal)
        elif op["op"] == "parallel":
            start = op["do"]
            many = await asyncio.gather(
                *[runs.start(spec(start["key"], start["text"])) for _ in range(op["n"])]
            )
            assert {run.id for run in many} == {start["key"]}
            await many[0].wait()
        elif "runs" in op:
            assert len((await runs.catalog_runs()).items) == op["runs"] == len(runtime.runs)
    await runs.aclose()


async def test_a_crash_between_effect_and_result_is_unknown_and_not_run_again(journal) -> None:
    """[135], EF-1, EF-10: the model is told to check; only a person repeats it."""
    expect = [op for op in ops_of("135") if op["op"] == "expect"]
    charged: list[str] = []

    @tool
    async def charge_card() -> str:
        """Charges."""
        charged.append("c1")
        if len(charged) == 1:
            faulty.crash(on=("append",))  # nothing after the effect is stored
        return "charged"

    provider = ScriptedProvider([call("charge_card", {}, call_id="c1")], "I must check.")
    faulty = FaultyJournal(journal)
    first = RunController(AgentLoop(provider, tools=[charge_card]), journal=faulty)
    await first.start(spec())
    while not faulty._crashed:
        await asyncio.sleep(0.001)
    await dead(first, faulty)
    runs = RunController(AgentLoop(provider, tools=[charge_card]), journal=journal)
    assert (await runs.inspect("r1")).status == expect[0]["run_state"]
    await runs.recover("r1")
    assert (await runs.run("r1").wait()).outcome == Completed()
    assert {name: charged.count(name) for name in charged} == expect[0]["tool_runs"]
    results = [message for message in provider.requests[-1].messages if message.role == "tool"]
    assert "check" in results[0].text.lower()
    await runs.aclose()


async def test_running_on_disk_without_an_owner_is_unknown_and_the_thread_goes_on(journal) -> None:
    """[137], RC-50, RC-64: never `running`, nobody waits for ever; resume works, the next message too."""
    faulty = FaultyJournal(journal)
    first = RunController(ScriptedRuntime(TurnStarted(1), Hold(), END), journal=faulty)
    await first.start(spec())
    await dead(first, faulty)
    runtime = ScriptedRuntime(TurnStarted(1), END)
    async with RunController(runtime, journal=journal) as runs:
        wanted = next(op for op in ops_of("137") if "never" in op)
        assert (await runs.inspect("r1")).status == wanted["run_state"] != wanted["never"]
        assert (await runs.catalog_runs()).items[0].status == wanted["run_state"]
        assert (await runs.wait_for_terminal("r1", timeout=5)).settled is False
        await runs.recover("r1")
        assert (await runs.run("r1").wait()).outcome == Completed()
        keep = (await runs.history("r1"))[-1].message.id
        child = spec("r2", "continue", thread_id="t-r1", parent=Parent("r1", keep))
        assert (await (await runs.start(child, expect_head="r1")).wait()).outcome == Completed()


async def test_a_closed_process_keeps_the_text_and_a_torn_export_is_cut_not_fatal(journal, tmp_path) -> None:
    """[138], RC-19, RC-52, JR-26: the partial is there and marked; of a torn file the whole runs come in."""
    wanted = next(op for op in ops_of("138") if "last_assistant" in op)["last_assistant"]
    provider = ScriptedProvider(["a", "b", Stream()])
    first = RunController(AgentLoop(provider), journal=journal)
    await first.start(spec())
    async for item in first.stream("r1", recent=True):
        if isinstance(item, Delta) and isinstance(item.body, TextTold) and item.body.text.endswith("b"):
            break
    await first.aclose()
    runs = RunController(AgentLoop(ScriptedProvider()), journal=journal)
    last = (await runs.history("r1"))[-1]
    assert (last.message.text, last.complete) == (wanted["text"], False)
    assert (await runs.inspect("r1")).thread_id == "t-r1"
    assert (await journal.verify()).problems == ()
    await runs.aclose()
    whole = tmp_path / "runs.jsonl"
    with whole.open("wb") as file:
        await export(journal, file)
    torn = whole.read_bytes()[: -ops_of("138")[5]["bytes"]]
    (tmp_path / "torn.jsonl").write_bytes(torn)
    async with MemoryJournal() as other:
        with (tmp_path / "torn.jsonl").open("rb") as file:
            found = await import_(other, file)
        assert found.torn
        assert (await other.verify()).problems == ()


async def test_of_two_writers_one_is_refused_and_nothing_is_interleaved(journal) -> None:
    """[140], RC-16, RC-49: by fence, not by clock; the owner's own work does not make it stale."""
    refused: list[str] = []
    go = Hold()

    async def write(_start, port) -> None:
        await go.wait()
        for number in range(10):
            try:
                await port.record(Noted("test/a", {"number": number}))
            except RecordRefused as error:
                refused.append(error.code)
                raise

    a = RunController(ScriptedRuntime(TurnStarted(1), write, END), journal=journal)
    b = RunController(ScriptedRuntime(TurnStarted(1), Noted("test/b"), END), journal=journal)
    await a.start(spec())
    with pytest.raises(OwnedElsewhere):
        await b.recover("r1")
    await journal.release(a._fleet.owner)  # its lease ended while it was frozen
    await b.recover("r1")
    assert (await b.run("r1").wait()).outcome == Completed()
    go.release()
    await a.join("r1")
    facts = await b.events("r1")
    assert [item.seq for item in facts] == list(range(1, len(facts) + 1))
    assert [item.fence for item in facts] == sorted(item.fence for item in facts)
    assert not [item for item in facts if getattr(item.fact, "name", "") == "test/a"]
    assert refused in (["fenced"], [])
    compacting = ScriptedRuntime(TurnStarted(1), HistoryCompacted((), (), "summary"), END)
    own = RunController(compacting, journal=journal)
    keep = (await own.history("r1"))[-1].message.id
    child = await own.start(spec("r2", thread_id="t-r1", parent=Parent("r1", keep)), expect_head="r1")
    assert (await child.wait()).outcome == Completed()
    last = await own.start(spec("r3", "next", thread_id="t-r1", parent=Parent("r2", None)), expect_head="r2")
    assert (await last.wait()).outcome == Completed()
    for controller in (a, b, own):
        await controller.aclose()


async def test_a_replay_and_what_comes_meanwhile_are_one_gap_free_order(journal) -> None:
    """[145], RC-63: live facts wait behind the replay; each once."""
    first, cursor, more = (op.get("n", op.get("after_seq")) for op in ops_of("145")[:3])
    go, seen = Hold(), asyncio.Event()

    async def emit(_start, port) -> None:
        await port.record(TurnStarted(1))
        while port.state.seq < first:
            await port.record(Noted("test/n"))
        seen.set()
        await go.wait()
        while port.state.seq < first + more:
            await port.record(Noted("test/n"))

    async with RunController(ScriptedRuntime(emit, END), journal=journal) as runs:
        run = await runs.start(spec())
        await seen.wait()
        got: list[int] = []
        async for item in run.stream(after=cursor, deltas=False):
            assert isinstance(item, Record)
            got.append(item.seq)
            if len(got) == 5:
                go.release()
            if len(got) < 30:
                await asyncio.sleep(0.001)  # a slow replay
        low, high = next(op["received_seq"] for op in ops_of("145") if "received_seq" in op)
        assert got[: high - low + 1] == list(range(low, high + 1))
        assert got == list(range(low, (await run.inspect()).last_seq + 1))


async def test_who_never_reads_costs_bounded_memory_and_slows_nobody(journal) -> None:
    """[147], RC-62, RC-75: the slow one is told that it lagged and heals; the other gets all."""
    wanted = ops_of("147")
    count, size = wanted[2]["n"], wanted[2]["bytes_each"]

    async def emit(_start, port) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        text = "x" * size
        for number in range(count):
            port.tell(TextTold("m1", 0, text))
            if number % 50 == 0:
                await asyncio.sleep(0)
        await port.record(ModelAttemptEnded(1, 1, "failed"))

    timing = RunTiming(partial_interval=None)
    begin = Hold()
    async with RunController(ScriptedRuntime(begin, emit, END), journal=journal, timing=timing) as runs:
        run = await runs.start(spec(), until="accepted")
        slow = await run.subscribe()
        before = resident()

        follower = run.stream()

        async def read() -> int:
            got = 0
            async for item in follower:
                if isinstance(item, Delta):
                    assert not isinstance(item.body, Lagged)
                    got += 1
            return got

        reading = asyncio.ensure_future(read())
        while not follower.idle:  # it has caught up, and goes with the run from here on
            await asyncio.sleep(0.001)
        begin.release()
        assert (await run.wait()).outcome == Completed()
        assert await reading == count
        assert resident() - before < wanted[3]["server_rss_growth_lt_mb"] * 2**20
        first = await anext(slow)
        assert isinstance(first, Delta)
        assert isinstance(first.body, Lagged)
        healed = [item async for item in run.stream(after=1, deltas=False)]
        assert healed[-1].fact.kind == "run_ended"
        await slow.aclose()


async def test_a_lost_reader_is_no_stop(journal) -> None:
    """[148], RC-65: the run goes on; who comes back has the whole text once."""
    wanted = ops_of("148")[-1]
    hold = Stream()
    async with RunController(AgentLoop(ScriptedProvider(["a", hold, "b"])), journal=journal) as runs:
        run = await runs.start(spec())
        async with runs.stream("r1", recent=True) as reader:
            async for item in reader:
                if isinstance(item, Delta) and isinstance(item.body, TextTold):
                    break
        assert (await run.inspect()).status == "running"
        hold.release()
        assert (await run.wait()).outcome == Completed()
        added = [
            item.fact.message.text
            async for item in run.stream(0)
            if isinstance(item, Record) and item.fact.kind == "message_added"
        ]
        assert added == [wanted["text"]]


async def test_a_cursor_from_before_a_restart_works_or_says_resync(journal) -> None:
    """[151], RC-61: never a silent gap, never another run's numbers."""
    cursor = ops_of("151")[0]["after_seq"]

    async def emit(_start, port) -> None:
        await port.record(TurnStarted(1))
        while port.state.seq < cursor + 10:
            await port.record(Noted("test/n"))

    async with RunController(ScriptedRuntime(emit, END), journal=journal) as runs:
        await (await runs.start(spec())).wait()
    async with RunController(ScriptedRuntime(emit, END), journal=journal) as runs:
        first = await anext(runs.stream("r1", cursor))
        assert isinstance(first, Record)
        assert first.seq == ops_of("151")[3]["received_from"]
        tag = (await runs.inspect("r1")).tag
    async with RunController(ScriptedRuntime(TurnStarted(1), END)) as empty:
        run = await empty.start(spec())
        await run.wait()
        with pytest.raises(CursorAhead):
            await anext(run.stream(cursor))
        assert (await run.inspect()).tag != tag  # another lifetime of the id


async def test_thousands_of_runs_leave_nothing_behind(journal) -> None:
    """[165], RC-73: no tasks, no runs, no growth."""
    count = ops_of("165")[0]["n"]
    wanted = ops_of("165")[1]
    provider = ScriptedProvider("yyyyyyyyyy", repeat=True)
    loop = AgentLoop(provider)
    async with RunController(loop, journal=journal, timing=RunTiming(keep_finished=0.0)) as runs:

        async def some(first: int, number: int) -> None:
            for each in range(first, first + number):
                await (await runs.start(spec(f"r{each}"))).wait()
            provider.requests.clear()

        await some(0, 300)
        gc.collect()
        before = resident()
        await some(300, count)
        while runs.stats().finished or runs.stats().live:
            await asyncio.sleep(0.01)
        gc.collect()
        assert resident() - before < wanted["rss_growth_lt_mb"] * 2**20
        await asyncio.sleep(0)  # the task of the last one is a pass behind its run
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert [name for name in names if name.startswith("pilothouse-run")] == []
        assert runs.stats().live == wanted["live_runs"]


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
