"""Time, real and stepped."""

from __future__ import annotations

import asyncio
import time
from math import inf

import pytest

from pilothouse.clock import SystemClock, wait_any, within
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


@pytest.fixture(params=[SystemClock, StepClock])
def clock(request: pytest.FixtureRequest):
    return request.param()


class Deaf:
    """Work that goes on when it is cancelled, until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.cancelled = False
        self.over = asyncio.Event()

    async def work(self) -> None:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                self.cancelled = True
        self.over.set()


async def told(answer: object) -> object:
    await asyncio.sleep(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


@pytest.mark.parametrize("seconds", [5.0, inf])
async def test_work_that_ends_in_time_says_what_it_came_to(clock, seconds: float) -> None:
    assert await within(clock, seconds, told("done")) == "done"
    with pytest.raises(LookupError, match="nothing there"):
        await within(clock, seconds, told(LookupError("nothing there")))


async def test_a_limit_holds_for_work_that_does_not_let_itself_be_cancelled() -> None:
    """The caller goes on at its time; the work was cancelled, and is not waited for."""
    clock, deaf = StepClock(), Deaf()
    bounded = asyncio.create_task(within(clock, 2.5, deaf.work()))
    await clock.until_sleeping()
    await clock.advance(2.4)
    assert not bounded.done()
    await clock.advance(0.1)
    with pytest.raises(TimeoutError, match=r"within 2.5 s"):
        await bounded
    await asyncio.sleep(0)
    assert deaf.cancelled
    assert not deaf.over.is_set()
    assert clock.sleeping == 0
    deaf.let_go.set()
    await deaf.over.wait()


async def test_a_limit_on_the_real_clock_is_kept() -> None:
    deaf = Deaf()
    with pytest.raises(TimeoutError):
        await within(SystemClock(), 0.001, deaf.work())
    deaf.let_go.set()
    await deaf.over.wait()


async def test_who_leaves_takes_the_work_along(clock) -> None:
    deaf = Deaf()
    bounded = asyncio.create_task(within(clock, 60, deaf.work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    bounded.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bounded
    deaf.let_go.set()
    await deaf.over.wait()
    assert deaf.cancelled


async def test_what_is_waited_for_is_not_cancelled(clock) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    tasks = [asyncio.create_task(event.wait()) for event in (first, second)]
    assert not await wait_any(clock, 0, *tasks)
    second.set()
    assert await wait_any(clock, 60, *tasks)
    assert [task.done() for task in tasks] == [False, True]
    first.set()
    assert await wait_any(clock, inf, tasks[0])
