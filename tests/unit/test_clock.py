"""Time, real and stepped."""

from __future__ import annotations

import asyncio
import time

from pilothouse.clock import SystemClock
from pilothouse.testing import StepClock


async def test_the_system_clock_is_the_systems() -> None:
    clock = SystemClock()
    assert abs(clock.time_ms() - time.time() * 1000) < 1000
    before = clock.monotonic()
    await clock.sleep(0.001)
    assert clock.monotonic() >= before + 0.001


async def test_a_step_clock_stands_still_until_it_is_moved() -> None:
    clock = StepClock(1_000)
    assert (clock.time_ms(), clock.monotonic()) == (1_000, 0.0)
    await clock.advance(2.5)
    assert (clock.time_ms(), clock.monotonic()) == (3_500, 2.5)


async def test_sleepers_wake_in_order_each_at_its_own_time() -> None:
    """A sleeper that sleeps again is met again on the way, before later ones."""
    clock = StepClock()
    seen: list[tuple[str, float]] = []

    async def ticker(name: str, every: float) -> None:
        while True:
            await clock.sleep(every)
            seen.append((name, clock.monotonic()))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ticker("a", 2)), group.create_task(ticker("b", 3))]
        await clock.until_sleeping(2)
        await clock.advance(6)
        for task in tasks:
            task.cancel()
    assert seen == [("a", 2), ("b", 3), ("a", 4), ("b", 6), ("a", 6)]
    assert clock.sleeping == 0


async def test_steps_do_not_drift() -> None:
    clock = StepClock(0)
    for _ in range(1000):
        await clock.advance(0.1)
    assert clock.time_ms() == 100_000


async def test_a_cancelled_sleeper_is_passed_by() -> None:
    clock = StepClock()
    gone = asyncio.create_task(clock.sleep(1))
    await clock.until_sleeping()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    kept = asyncio.create_task(clock.sleep(2))
    await clock.until_sleeping()
    await clock.advance(5)
    assert kept.done()


async def test_who_waits_for_sleepers_is_told_when_they_are_enough() -> None:
    clock = StepClock()
    waiting = asyncio.create_task(clock.until_sleeping(2))
    sleepers = [asyncio.create_task(clock.sleep(1))]
    await clock.until_sleeping(1)
    assert not waiting.done()
    sleepers.append(asyncio.create_task(clock.sleep(1)))
    await waiting
    await clock.advance(1)
    await asyncio.gather(*sleepers)


async def test_sleeping_for_nothing_gives_way_once() -> None:
    await asyncio.wait_for(StepClock().sleep(0), 5)
