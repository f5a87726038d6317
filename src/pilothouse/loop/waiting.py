"""What the task of a run waits for when it waits for several things: a future that any of them wakes."""

from __future__ import annotations

import asyncio
from typing import final

from ..contracts import CancelScope, Clock
from .timers import call_later


@final
class Wakeup:
    """Wakes one waiting task. A wake-up that nobody waits for is kept for the next wait."""

    __slots__ = ("_future", "_rang")

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None
        self._rang = False

    def ring(self, *_: object) -> None:
        """Wakes the waiter; may be used as a callback of anything. To be called on the event loop."""
        self._rang = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Returns at the next ring, at once if there was one since the last wait."""
        if not self._rang:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        self._rang = False


async def sleep(seconds: float, *, clock: Clock, scope: CancelScope) -> None:
    """Waits so long, or until the run is stopped."""
    if seconds <= 0 or scope.cancelled:
        return
    wakeup = Wakeup()
    take_back_timer = call_later(clock, seconds, wakeup.ring)
    take_back_scope = scope.on_cancel(wakeup.ring)
    try:
        await wakeup.wait()
    finally:
        take_back_timer()
        take_back_scope()
