"""The real clock; tests move `pilothouse.testing.StepClock` instead."""

from __future__ import annotations

import asyncio
import time
from typing import final


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


__all__ = ["SystemClock"]
