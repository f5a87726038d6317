"""The soft yield of a tool phase: running tools are told that a person has something to say (LP-26).

It asks and does not cancel. It fires on the first of: a queued steer, an item of `steering_notifications`, a true
`has_pending_steering`. Tasks exist only where a host has given one of the latter two, and not longer than the phase.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Self, final

from ..contracts import Clock, CommandInbox
from .config import LoopConfig

logger: Final = logging.getLogger("pilothouse.loop")


@final
class Notifier:
    """Tells running loops that steering has arrived; give it as `steering_notifications`.

    Each loop that listens has its own subscription and hears of what comes from then on.
    """

    def __init__(self) -> None:
        self._waiting: set[asyncio.Event] = set()

    def notify(self) -> None:
        """Tells everybody who listens. To be called on the event loop."""
        for event in self._waiting:
            event.set()

    def __aiter__(self) -> AsyncIterator[None]:
        return _Subscription(self._waiting)


@final
class _Subscription:
    def __init__(self, waiting: set[asyncio.Event]) -> None:
        self._waiting = waiting
        self._event = asyncio.Event()
        waiting.add(self._event)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> None:
        await self._event.wait()
        self._event.clear()

    async def aclose(self) -> None:
        """Ends the subscription."""
        self._waiting.discard(self._event)


@final
class YieldWatch:
    """Watches for steering during a phase; `on_fired` is called once a phase.

    Attributes:
        fired: steering has arrived in this phase, or there is none to watch for.
    """

    def __init__(
        self, config: LoopConfig, inbox: CommandInbox, clock: Clock, on_fired: Callable[[], object]
    ) -> None:
        self._config = config
        self._clock = clock
        self._inbox = inbox
        self._on_fired = on_fired
        self._tasks: list[asyncio.Task[None]] = []
        self._watching = False
        self.fired = False

    def start(self) -> None:
        """Begins to watch; fires at once if a steer is queued already."""
        self.fired, self._watching = False, True
        self.arrived()
        config = self._config
        if self.fired or (config.steering_notifications is None and config.has_pending_steering is None):
            return
        loop = asyncio.get_running_loop()
        if (items := self._subscribed()) is not None:
            self._tasks.append(loop.create_task(self._listen(items)))
        if config.has_pending_steering is not None:
            self._tasks.append(loop.create_task(self._probe(config.has_pending_steering)))

    def _subscribed(self) -> AsyncIterator[Any] | None:
        source = self._config.steering_notifications
        try:
            return None if source is None else aiter(source)
        except Exception:
            logger.exception("steering_notifications failed: polling at turn boundaries goes on")
            return None

    def arrived(self) -> None:
        """A command has arrived: fires if it steers."""
        if self._watching and self._inbox.peek("steer") is not None:
            self._fire()

    def _fire(self) -> None:
        if self._watching and not self.fired:
            self.fired = True
            self._on_fired()

    async def _listen(self, items: AsyncIterator[Any]) -> None:
        try:
            await anext(items)
        except StopAsyncIteration:
            return
        except Exception:
            logger.exception("steering_notifications failed: polling at turn boundaries goes on")
            return
        finally:
            close = getattr(items, "aclose", None)
            if close is not None:
                await close()
        self._fire()

    async def _probe(self, pending: Callable[[], Awaitable[bool]]) -> None:
        while self._watching and not self.fired:
            try:
                if await pending():
                    self._fire()
                    return
            except Exception:
                logger.exception("has_pending_steering failed: polling at turn boundaries goes on")
                return
            await self._clock.sleep(self._config.yield_probe_interval)

    async def stop(self) -> None:
        """Ends the watch, and waits until nothing of it is left."""
        self._watching = False
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
