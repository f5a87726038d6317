"""A clock that stands still until the test moves it.

Nothing here reads real time. A sleeper is woken at exactly its due time, in order of due time and then of arrival, and
what it does next (more sleeps included) happens before the clock moves on to the next sleeper.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import Final, final

START_MS: Final = 1_800_000_000_000
"""Where a step clock begins, epoch milliseconds: a round figure that no real test run meets by accident."""

SETTLE_PASSES: Final = 20
"""Loop passes that a woken task gets before time moves on: enough for a chain of plain awaits, no real I/O."""


@final
class StepClock:
    """Implements `contracts.Clock`; `await advance(seconds)` is the only thing that moves it.

    Args:
        start_ms: where the wall clock begins.
        passes: loop passes that each woken sleeper gets before the next one is woken.
    """

    def __init__(self, start_ms: int = START_MS, *, passes: int = SETTLE_PASSES) -> None:
        self._start_ms = start_ms
        self._passes = passes
        self._now_us = 0  # whole microseconds: adding tenths of a second a thousand times must not drift
        self._order = 0
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._watchers: list[tuple[int, asyncio.Future[None]]] = []

    def time_ms(self) -> int:
        """Wall clock, epoch milliseconds."""
        return self._start_ms + self._now_us // 1000

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now_us / 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Waits until the test has moved the clock so far; zero or less only gives way once."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._order += 1
        heappush(self._sleepers, (self._now_us + round(seconds * 1_000_000), self._order, woken))
        self._tell_watchers()
        await woken

    @property
    def sleeping(self) -> int:
        """How many wait at the moment; cancelled sleepers do not count."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    async def until_sleeping(self, count: int = 1) -> None:
        """Waits until at least `count` sleepers wait: then `advance` will meet them."""
        if self.sleeping >= count:
            return
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append((count, enough))
        await enough

    async def advance(self, seconds: float) -> None:
        """Moves the clock, waking each sleeper on the way at its own time and letting it go on before the next."""
        target = self._now_us + round(seconds * 1_000_000)
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, woken = heappop(self._sleepers)
            if woken.done():  # its task was cancelled meanwhile
                continue
            self._now_us = max(self._now_us, due)
            woken.set_result(None)
            await self._settle()
        self._now_us = max(self._now_us, target)
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(self._passes):
            await asyncio.sleep(0)

    def _tell_watchers(self) -> None:
        if not self._watchers:
            return
        count = self.sleeping
        for wanted, enough in self._watchers:
            if wanted <= count and not enough.done():
                enough.set_result(None)
        self._watchers = [watcher for watcher in self._watchers if not watcher[1].done()]


__all__ = ["SETTLE_PASSES", "START_MS", "StepClock"]
