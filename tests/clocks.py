"""Clocks of machines that are not well."""

from __future__ import annotations

import asyncio

from pilothouse.clock import SystemClock


class MachineClock:
    """The clock of one machine: so many hours off, and standing still while the machine is frozen."""

    def __init__(self, hours: float = 0.0) -> None:
        self._system = SystemClock()
        self._off_ms = int(hours * 3_600_000)
        self._goes = asyncio.Event()
        self._goes.set()

    def time_ms(self) -> int:
        return self._system.time_ms() + self._off_ms

    def monotonic(self) -> float:
        return self._system.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self._system.sleep(seconds)
        await self._goes.wait()

    def freeze(self) -> None:
        """Nothing that waits for a time is woken any more."""
        self._goes.clear()

    def thaw(self) -> None:
        """Everything whose time is over is woken now."""
        self._goes.set()
