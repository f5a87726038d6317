"""Many readers of one run, and many runs that wait (run-controller §3.16)."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc

from pilothouse.commands import Request
from pilothouse.events import Completed, ModelRequested, RunEnded, TextTold, TurnEnded, TurnStarted
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Record, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunLimits, RunTiming
from pilothouse.testing import ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import Ask

from .cases import Row

END = (TurnEnded(1), RunEnded(Completed()))
ITEMS, READERS, RUNS = 100_000, 1_000, 10_000


def _spec(run_id: str) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),))


async def crowds() -> list[Row]:
    """Ratios, counts and bytes."""
    return [*await _never_reading(), await _readers(), *await _waiting()]


async def _never_reading() -> list[Row]:
    """A run of 100,000 items of 2 kB beside the same run with a follower that never reads.

    Its text is not saved: encoding 200 MB of it takes eight times as long as telling it, and as long as the memory wants.
    """
    took: dict[int, float] = {}
    held = 0
    for lazy in (0, 1) * 5:

        async def talk(_start, port) -> None:
            await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
            text = "x" * 2_000
            for number in range(ITEMS):
                port.tell(TextTold("m1", 0, text, number * 2_000))
                if not number % 100:
                    await asyncio.sleep(0)

        limits = RunLimits(partial_bytes=1 << 40, max_fact_bytes=1 << 40, max_run_bytes=1 << 40)
        timing = RunTiming(partial_interval=None)
        async with RunController(ScriptedRuntime(talk, END), limits=limits, timing=timing) as runs:
            gc.collect()
            begin = time.process_time()
            run = await runs.start(_spec("r1"), until="accepted")
            asleep = await run.subscribe() if lazy else None
            await run.wait()
            took[lazy] = min(took.get(lazy, 1e9), time.process_time() - begin)
            if asleep is not None:
                held = max(held, (asleep._ring.end - asleep._ring.first) * 2_200)
                await asleep.aclose()
    return [
        Row("a run's time with a follower that never reads, beside without", "×", took[1] / took[0], 1, 1.25),
        Row("… what that follower keeps", "MB", held / 1e6, 0, 8),
    ]


async def _readers() -> Row:
    """1,000 followers of one run: how many saw another order than the journal's."""
    script = [
        TurnStarted(1),
        (ModelRequested(1, 1, "m1"), *[TextTold("m1", 0, "x", at) for at in range(200)]),
    ]

    async def breathe(_start, _port) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    async with RunController(ScriptedRuntime(script[0], breathe, script[1], breathe, *END)) as runs:
        run = await runs.start(_spec("r1"), until="accepted")

        async def follow() -> list[int]:
            async with run.stream() as items:
                return [item.seq async for item in items if isinstance(item, Record)]

        seen = await asyncio.gather(*[follow() for _ in range(READERS)])
        order = [record.seq for record in await run.events()]
        return Row(
            "1,000 followers: those that saw a gap or another order",
            "",
            sum(each != order for each in seen),
            0,
            0,
        )


async def _waiting() -> list[Row]:
    """10,000 runs that wait for a person: live, and once they were let go."""
    clock = StepClock(passes=2)
    runtime = ScriptedRuntime(TurnStarted(1), Ask(Request("q1", "input", prompt="?")), *END)
    limits = RunLimits(max_live_runs=RUNS + 1)
    async with RunController(runtime, journal=MemoryJournal(), clock=clock, limits=limits) as runs:
        await runs.start(_spec("warm"))
        gc.collect()
        tracemalloc.start()
        for number in range(RUNS):
            await runs.start(_spec(f"r{number}"))
        gc.collect()
        live, _ = tracemalloc.get_traced_memory()
        await clock.advance(301)
        await clock.advance(61)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
        return [
            Row("10,000 runs at rest, each, live", "kB", live / RUNS / 1e3, 0, 20),
            Row("… let go: its facts in the memory journal", "kB", left / RUNS / 1e3, 0, 6),
        ]
