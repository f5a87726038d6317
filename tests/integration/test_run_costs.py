"""What many runs and many readers cost, as counts and bytes: none of it depends on how fast the machine is."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import tracemalloc
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import FrameType

import pytest

from pilothouse import AgentController
from pilothouse.commands import Request
from pilothouse.conversation.reply import Reply
from pilothouse.errors import DeadReply, UsageError
from pilothouse.events import (
    Completed,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunLimits, RunTiming
from pilothouse.testing import FaultyJournal, Meter, ScriptedProvider, ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import Ask, Hold
from pilothouse.testing.scripted import call

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),))


def told(count: int, size: int = 6) -> tuple[TextTold, ...]:
    return tuple([TextTold("m1", 0, "x" * size) for _ in range(count)])


ANSWERED = (
    (ModelAttemptEnded(1, 1, "answered"), MessageAdded(Message("m1", "assistant", (Text("done"),)), 1)),
    END,
)


async def test_a_thousand_runs_at_once_end_and_leave_nothing_behind() -> None:
    """RC-80: one task a run, one a running call, none left; the loop gets its turn all the while."""

    async def look(n: int) -> int:
        """Look.

        Args:
            n: a number
        """
        await asyncio.sleep(0)
        return n

    provider = ScriptedProvider(
        *[[call("look", {"n": each})] for each in range(1_000)], *["fine"] * 1_000
    )  # each response is one request's, whosever it is
    before = len(asyncio.all_tasks())
    most = 0
    async with RunController(AgentLoop(provider, tools=[look])) as runs:
        async with Meter() as meter:
            started = [await runs.start(spec(f"r{number}"), until="accepted") for number in range(1_000)]
            waiting = [asyncio.ensure_future(run.wait()) for run in started]
            while not all(each.done() for each in waiting):
                most = max(most, len(asyncio.all_tasks()))
                await asyncio.sleep(0)
        assert Counter(type(each.result().outcome).__name__ for each in waiting) == {"Completed": 1_000}
        # One task a run and one a call, and one of the test for each it waits for, and the agenda.
        assert meter.tasks <= 3 * 1_000 + 10
        assert most <= before + 3 * 1_000 + 5
        assert runs.stats().live == 0
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before + 1  # the agenda of what is due later
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_a_thousand_followers_see_one_order_without_a_gap() -> None:
    """RC-62, RC-63, RC-76: whenever each came; one that keeps up reads the journal when it comes, and not again."""
    gates = [Hold() for _ in range(4)]
    script = [TurnStarted(1), (ModelRequested(1, 1, "m1"),)]
    for gate in gates:
        script += [gate, *told(20)]
    journal = FaultyJournal(MemoryJournal(), immediate=True)
    async with RunController(ScriptedRuntime(*script, *ANSWERED), journal=journal) as runs:
        run = await runs.start(spec("r1"))

        async def follow() -> tuple[list[int], str]:
            seqs, text = [], ""
            async with run.stream() as items:
                async for item in items:
                    if isinstance(item, Record):
                        seqs.append(item.seq)
                    elif isinstance(item.body, TextTold):
                        text += item.body.text
            return seqs, text

        tasks: list[asyncio.Task[tuple[list[int], str]]] = []
        for gate in gates:
            await gate.reached()
            tasks += [asyncio.ensure_future(follow()) for _ in range(250)]
            for _ in range(5):
                await asyncio.sleep(0)
            gate.release()
        await run.wait()
        seen = [await each for each in tasks]
        facts = [record.seq for record in await run.events()]
        assert {tuple(seqs) for seqs, _ in seen} == {tuple(facts)}
        assert [len(text) for _, text in seen[:1]] == [4 * 20 * 6]
        reads = Counter(name for name, _ in journal.calls)["read"]
        assert reads <= len(tasks) + 5
        assert runs.stats().live == 0


async def test_deltas_cost_no_access_to_the_journal() -> None:
    """RC-77: text is saved by bytes or by time, whole pieces together; told by the hundred thousand it costs few appends."""
    journal, clock = FaultyJournal(MemoryJournal(), immediate=True), StepClock()
    runtime = ScriptedRuntime(TurnStarted(1), (ModelRequested(1, 1, "m1"),), *told(1_000), *ANSWERED)
    limits = RunLimits(partial_bytes=2_000)
    async with RunController(runtime, journal=journal, clock=clock, limits=limits) as runs:
        run = await runs.start(spec("r1"))
        assert (await run.wait()).outcome == Completed()
        calls = Counter(name for name, _ in journal.calls)
        assert calls["append"] <= 5 + 1_000 * 6 // 2_000
        fragments = [record for record in await run.events() if record.fact.kind == "partial_saved"]
        assert 1 <= len(fragments) <= 3


async def test_runs_at_rest_are_few_bytes_and_then_none() -> None:
    """RC-51, RC-73, §3.16: 2,000 runs that wait for a person, held and then let go; what they asked is still answerable."""
    clock, count = StepClock(passes=2), 2_000
    question = Request("q1", "input", prompt="?")
    runtime = ScriptedRuntime(TurnStarted(1), Ask(question), *END)
    journal = MemoryJournal()
    limits = RunLimits(max_live_runs=count + 1)
    timing = RunTiming(park_after=300, keep_finished=60)
    async with RunController(runtime, journal=journal, clock=clock, limits=limits, timing=timing) as runs:
        await runs.start(spec("warm"))
        gc.collect()
        tracemalloc.start()
        try:
            for number in range(count):
                await runs.start(spec(f"r{number}"))
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            assert held < count * 20_000  # 18 kB each, of which 5 are its facts in the memory journal
            await clock.advance(301)
            await clock.advance(61)
            gc.collect()
            assert runs.stats().live == 0
            assert len(asyncio.all_tasks()) <= 3
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert (held - left) / count > 4_000  # what is left is the journal's
        view = await runs.inspect("r7")
        assert (view.status, view.ownership, len(view.requests)) == ("waiting", "parked", 1)


async def test_an_ended_run_leaves_no_cycle_for_the_collector() -> None:
    """RC-73, §3.16: its parts go with their last holder, at its end and when it leaves memory; so no pause grows with traffic."""

    async def look(n: int) -> int:
        """Look.

        Args:
            n: a number
        """
        await asyncio.sleep(0)
        return n

    clock = StepClock(passes=2)
    provider = ScriptedProvider(*[step for _ in range(3) for step in ([call("look", {"n": 1})], "done")])
    async with RunController(AgentLoop(provider, tools=[look]), clock=clock) as runs:

        async def turn(run_id: str) -> str:
            run = await runs.start(spec(run_id))
            async with run.stream() as items:
                async for _ in items:
                    pass
            return (await run.wait()).view.status

        assert await turn("warm") == "completed"
        await clock.advance(61)
        gc.collect()
        gc.disable()
        try:
            assert await turn("left at its end") == "completed"
            assert gc.collect() == 0
            await clock.advance(61)
            assert gc.collect() == 0
        finally:
            gc.enable()
        assert runs.stats().live == 0


async def test_a_start_in_a_new_thread_reads_nothing() -> None:
    """RC-35, JR-28: what is known of its thread is compared by the store; only a wrong guess is looked into."""
    journal, loop = FaultyJournal(MemoryJournal()), AgentLoop(ScriptedProvider("a", "b", "c"))

    def reads() -> list[str]:
        found = [name for name, _ in journal.calls if name in ("thread_head", "head", "read", "list")]
        journal.calls.clear()
        return found

    async def run(runs: RunController, run_id: str) -> str:
        run = await runs.start(RunSpec(run_id, "t", spec(run_id).input))
        return (await run.wait()).view.status

    async with RunController(loop, journal=journal) as runs:
        assert [await run(runs, "r1"), await run(runs, "r2")] == ["completed", "completed"]
        assert reads() == []
    async with RunController(loop, journal=journal) as runs:
        assert await run(runs, "r3") == "completed"  # here nobody knows the thread
        assert reads() == ["head"]
        page = await runs.catalog_runs()
        assert [entry.run_id for entry in page.items] == ["r3", "r2", "r1"]


async def test_a_controller_that_is_dropped_unclosed_stays_for_its_runs_and_no_longer() -> None:
    """RC-73: what is due later keeps nothing alive that drives nothing; a run that goes on is driven to its end."""
    goes_on, journal = asyncio.Event(), MemoryJournal()

    async def look() -> str:
        """Look."""
        await goes_on.wait()
        return "seen"

    loop = AgentLoop(ScriptedProvider("at once"))
    runs = RunController(loop, journal=journal)
    run = await runs.start(spec("ended"))
    assert (await run.wait()).view.status == "completed"
    gone = weakref.ref(loop)  # whatever the controller holds
    del runs, run, loop
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None
    runs = RunController(
        AgentLoop(ScriptedProvider([call("look", {})], "done"), tools=[look]), journal=journal
    )
    await runs.start(spec("going on"))
    del runs
    gc.collect()
    goes_on.set()
    while (head := await journal.head("going on")) is None or head.summary.state != "terminal":
        await asyncio.sleep(0)
    assert head.summary.status == "completed"


async def test_a_conversation_that_nobody_holds_leaves_nothing_for_the_collector() -> None:
    """AC-87, §3.16: closed or not, whether its last reply is held or not; so no pause grows with conversations."""

    async def talk(*, close: bool) -> Reply:
        agent = AgentController(ScriptedProvider("a", "b"))
        for prompt in ("1", "2"):
            reply = await agent.send(prompt)
            await reply.result()
        if close:
            await reply.wait_closed()
            await agent.aclose()
        return reply

    await talk(close=True)
    gc.collect()
    gc.disable()
    try:
        for close in (True, False):
            reply = await talk(close=close)
            for _ in range(3):  # the last run's task ends
                await asyncio.sleep(0)
            assert gc.collect() == 0
            assert (reply.text, reply.abort()) == ("b", False)
            await reply.aclose()
            with pytest.raises(DeadReply):
                reply.update_state({"a": 1})
            del reply
            assert gc.collect() == 0
    finally:
        gc.enable()


async def test_a_conversation_in_memory_keeps_the_bytes_of_what_was_said_and_little_more() -> None:
    """§3.16: 20 messages of 200 characters with the record of their ten runs; ended runs leave memory with their task."""
    count, turns = 40, 10
    provider = ScriptedProvider(*["y" * 200] * (turns * (count + 2)))
    kept: list[AgentController] = []

    async def talk() -> None:
        agent = AgentController(provider)
        for _ in range(turns):
            reply = await agent.send("x" * 200)
            await reply.wait_closed()
        kept.append(agent)

    await talk()
    gc.collect()
    tracemalloc.start()
    try:
        await talk()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            await talk()
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    assert each < 75_000  # 58 kB; 180 kB before ended runs left with their task and were packed
    assert kept[-1].runs.stats().finished == 0


async def test_closing_waits_for_nothing_where_nothing_is_under_way() -> None:
    """RC-52: no task and no pass of the event loop; closing again, or twice at once, is the same."""
    runs = RunController(AgentLoop(ScriptedProvider("done")))
    run = await runs.start(spec("r1"))
    assert (await run.wait()).view.status == "completed"
    for _ in range(2):
        with pytest.raises(StopIteration):
            runs.aclose().send(None)
    with pytest.raises(UsageError):
        await runs.start(spec("r2"))


async def test_a_send_costs_the_same_however_long_its_conversation_is() -> None:
    """LP-12, LP-40, LP-50: a message is measured, checked and hashed once in its thread, not once a send."""

    async def answer(messages: Sequence[Message]) -> AsyncIterator[str]:
        yield "done"

    agent = AgentController(answer, max_messages=1000)

    async def send(count: int) -> int:
        for _ in range(count - 1):
            await (await agent.send("and?")).result()
        calls = 0

        def count_calls(_frame: object, event: str, _arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count_calls)
        try:
            await (await agent.send("and?")).result()
        finally:
            sys.setprofile(None)
        return calls

    early = await send(10)
    late = await send(200)
    assert late - early < 100  # for 400 more messages; it was 22 calls for each two
    assert len(agent.messages) == 420


async def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


async def own_calls(work: Callable[[], Awaitable[object]]) -> int:
    """Calls of this package's functions for one piece of work, once its caches are filled."""
    for _ in range(3):
        await work()
    calls = 0

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call" and "/pilothouse/" in frame.f_code.co_filename

    sys.setprofile(count)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return calls


async def test_a_turn_a_send_and_a_tool_call_are_few_calls() -> None:
    """RC-77, LP-12: what they cost, in a measure that no machine changes; `benchmarks/steps.py` says where it goes."""
    calls = [[call("add", {"a": at, "b": 2}, call_id=f"c{at}")] for at in range(4)]
    plain = RunController(AgentLoop(ScriptedProvider(*["ok"] * 4)))
    able = RunController(AgentLoop(ScriptedProvider(*[*calls, "ok"] * 4), tools=[add]))

    def turn(runs: RunController) -> Callable[[], Awaitable[object]]:
        numbers = itertools.count()

        async def work() -> None:
            run = await runs.start(spec(f"r{next(numbers)}"), until="accepted")
            assert (await run.wait()).outcome == Completed()

        return work

    async def send() -> None:
        agent = AgentController(ScriptedProvider("ok"))
        await (await agent.send("hi")).result()
        await agent.aclose()

    bare = await own_calls(turn(plain))
    assert bare <= 445
    assert await own_calls(send) <= 735
    assert (await own_calls(turn(able)) - bare) / 4 <= 490  # with the model's turn
    await plain.aclose()
    await able.aclose()
