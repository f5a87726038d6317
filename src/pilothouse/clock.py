"""The real clock; tests move `pilothouse.testing.StepClock` instead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

if TYPE_CHECKING:
    from .contracts import Clock


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


__all__ = ["SystemClock", "call_later"]
