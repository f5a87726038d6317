"""The real clock; tests move `pilothouse.testing.StepClock` instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

if TYPE_CHECKING:
    from .contracts import Clock

T = TypeVar("T")


@final
class SystemClock:
    """Implements `contracts.Clock` with the system's clocks and the event loop's timer."""

    __slots__ = ()

    def time_ms(self) -> int:
        """Wall clock, epoch milliseconds."""
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    """Seconds that never go back. Asked at each wait, so without a call of our own around it."""

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)


_sleepers: Final[set[asyncio.Task[None]]] = set()
"""Strong references: the event loop itself keeps only weak ones to tasks."""


def call_later(clock: Clock, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
    """Calls back once after so many seconds of that clock; returns a function that takes this back.

    On the system clock this is a timer of the event loop. Any other clock is slept on in a task of its own.
    """
    if isinstance(clock, SystemClock):
        return asyncio.get_running_loop().call_later(seconds, callback).cancel

    async def sleep() -> None:
        await clock.sleep(seconds)
        callback()

    task = asyncio.get_running_loop().create_task(sleep())
    _sleepers.add(task)
    task.add_done_callback(_sleepers.discard)

    def cancel() -> None:
        task.cancel()

    return cancel


async def wait_any(clock: Clock, seconds: float, *futures: asyncio.Future[Any]) -> bool:
    """Waits until one of them is done, at most so many seconds of that clock; False if none is. Cancels none of them."""
    if seconds == inf or isinstance(clock, SystemClock):
        timeout = None if seconds == inf else max(seconds, 0.0)
        await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    else:
        limit = asyncio.ensure_future(clock.sleep(max(seconds, 0.0)))
        try:
            await asyncio.wait((*futures, limit), return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
    return any(future.done() for future in futures)


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """What the work comes to; `inf` seconds are no limit.

    It has a task of its own, which is cancelled with its time and with the caller, and not waited for then: a limit
    holds for work that ignores being cancelled too. `asyncio.timeout` would wait for it.

    Raises:
        TimeoutError: it did not end within so many seconds of that clock.
    """
    if seconds == inf:
        return await work
    task = asyncio.ensure_future(work)
    try:
        if not await wait_any(clock, seconds, task):
            raise TimeoutError(f"not done within {seconds:g} s")
        return task.result()
    finally:
        task.cancel()


__all__ = ["SystemClock", "call_later", "wait_any", "within"]
