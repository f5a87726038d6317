"""Letting go of an await without a task and without touching the task's own cancellation."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse.clock import SystemClock
from pilothouse.loop.interrupt import GRACE, Interrupted, Interruptible
from pilothouse.testing import StepClock


async def test_what_does_not_wait_just_returns() -> None:
    async def work() -> int:
        return 7

    assert await Interruptible(SystemClock()).run(work()) == 7


async def test_an_interruption_is_felt_where_the_code_waits_and_leaves_the_task_alone() -> None:
    """LP-46: the task was not cancelled, so nothing of that is left behind."""
    region = Interruptible(SystemClock())
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    asyncio.get_running_loop().call_soon(region.interrupt)
    with pytest.raises(Interrupted):
        await region.run(work())
    task = asyncio.current_task()
    assert task is not None
    assert (cleaned, task.cancelling()) == ([True], 0)
    await asyncio.sleep(0)  # no cancellation is pending


async def test_asked_while_it_runs_it_ends_at_its_next_wait() -> None:
    region = Interruptible(SystemClock())

    async def work() -> None:
        region.interrupt()
        region.interrupt()
        await asyncio.sleep(3600)

    with pytest.raises(Interrupted):
        await region.run(work())


async def test_a_cancellation_from_outside_passes_through() -> None:
    """LP-46: a task cancellation from outside is never swallowed, not even beside an interruption."""
    for interrupted in (False, True):
        region = Interruptible(SystemClock())

        async def work(region: Interruptible = region) -> None:
            await region.run(asyncio.sleep(3600))

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        if interrupted:
            region.interrupt()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_code_that_ignores_it_is_left_after_the_grace() -> None:
    """LP-51: a trip closes the stream whether the provider obeys or not."""
    clock = StepClock()
    region = Interruptible(clock)
    ignored = 0

    async def deaf() -> None:
        nonlocal ignored
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ignored += 1

    async def work() -> str:
        try:
            await region.run(deaf())
        except Interrupted:
            return "left"
        return "?"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    region.interrupt()
    await clock.advance(GRACE / 2)
    assert (ignored, task.done()) == (1, False)
    await clock.advance(GRACE)
    assert await task == "left"


async def test_an_own_error_of_the_code_is_its_own() -> None:
    region = Interruptible(SystemClock())

    async def work() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError):
        await region.run(work())


async def test_a_cancellederror_born_inside_is_no_interruption() -> None:
    """[160]"""

    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await Interruptible(SystemClock()).run(work())


async def test_a_value_that_is_there_all_the_same_is_returned() -> None:
    """Code that swallows the interruption and finishes has finished."""
    region = Interruptible(SystemClock())

    async def work() -> int:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return 3
        return 4

    asyncio.get_running_loop().call_soon(region.interrupt)
    assert await region.run(work()) == 3


async def test_others_can_wait_until_it_is_left() -> None:
    region = Interruptible(SystemClock())
    task = asyncio.create_task(_swallow(region))
    await asyncio.sleep(0)
    assert region.waiting
    region.interrupt()
    await region.left()
    assert await task
    await region.left()


async def _swallow(region: Interruptible) -> bool:
    try:
        await region.run(asyncio.sleep(3600))
    except Interrupted:
        return True
    return False


async def test_a_limit_interrupts_by_itself() -> None:
    clock = StepClock()
    task = asyncio.create_task(_swallow(Interruptible(clock, limit=2.0)))
    await clock.until_sleeping()
    await clock.advance(2.0)
    assert await task
