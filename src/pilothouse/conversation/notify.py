"""Telling observers: change first, tell afterwards, in one order, and no callback breaks anything (AC-64 … AC-69)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from .options import CALLBACKS

logger = logging.getLogger("pilothouse.conversation")

Fence = Callable[[], bool]

JOIN_ABOVE = 1024
"""Waiting notifications of async callbacks above which neighbouring chunks are joined."""


class Notifier:
    """One FIFO of notifications, drained by the outermost call; async callbacks run one after another in one task."""

    def __init__(self, option: Callable[[str], Any]) -> None:
        self._option = option
        self._observers: list[object] = []
        self._queue: deque[tuple[str, tuple[Any, ...], Fence | None]] = deque()
        self._draining = False
        self._later: deque[tuple[str, Callable[..., Any], tuple[Any, ...], Fence | None]] = deque()
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, observer: object) -> Callable[[], None]:
        """Adds an observer behind the option's callback.

        Raises:
            TypeError: it has none of the six methods.
        """
        if not any(callable(getattr(observer, name, None)) for name in CALLBACKS):
            raise TypeError(f"an observer has at least one of: {', '.join(CALLBACKS)}")
        self._observers.append(observer)

        def remove() -> None:
            if observer in self._observers:
                self._observers.remove(observer)

        return remove

    def wants(self, name: str) -> bool:
        """Whether anybody would be told."""
        return self._option(name) is not None or bool(self._observers)

    def tell(self, name: str, *args: Any, fence: Fence | None = None) -> None:
        """Queues a notification; it is dropped if `fence()` is False when its turn comes (AC-65)."""
        self._queue.append((name, args, fence))

    def drain(self) -> None:
        """Delivers what is queued, unless an outer call is doing so."""
        if self._draining:
            return
        self._draining = True
        try:
            while self._queue:
                name, args, fence = self._queue.popleft()
                if fence is None or fence():
                    self._deliver(name, args, fence)
        finally:
            self._draining = False

    def _deliver(self, name: str, args: tuple[Any, ...], fence: Fence | None) -> None:
        callbacks = [self._option(name)]
        callbacks += [getattr(observer, name, None) for observer in self._observers]
        for callback in callbacks:
            if callback is None or (fence is not None and not fence()):
                continue
            if inspect.iscoroutinefunction(callback):
                self._put_later(name, callback, args, fence)
                continue
            try:
                result = callback(*args)
            except Exception as error:  # noqa: BLE001 - a callback cannot break the machine
                self._failed(error, name)
            else:
                if inspect.isawaitable(result):
                    self._put_later(name, _already(result), args, fence)

    def _put_later(
        self, name: str, callback: Callable[..., Any], args: tuple[Any, ...], fence: Fence | None
    ) -> None:
        later = self._later
        if len(later) >= JOIN_ABOVE and name == "on_response_chunk" and later[-1][0] == name:
            last = later[-1]
            if last[1] is callback and last[3] is fence:
                later[-1] = (name, callback, (last[2][0] + args[0], args[1]), fence)
                return
        later.append((name, callback, args, fence))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pilothouse-callbacks")

    async def _run(self) -> None:
        while self._later:
            name, callback, args, fence = self._later.popleft()
            if fence is not None and not fence():
                continue
            try:
                await callback(*args)
            except Exception as error:  # noqa: BLE001 - a callback cannot break the machine
                self._failed(error, name)

    def _failed(self, error: Exception, name: str) -> None:
        """Logged and handed on; an error in the error callback is only logged (AC-66)."""
        logger.error("callback %s failed", name, exc_info=error)
        told = self._option("on_callback_error")
        if told is not None:
            try:
                told(error, name)
            except Exception:
                logger.exception("on_callback_error failed")

    async def join(self) -> None:
        """Waits until the async callbacks that are due have run."""
        while self._task is not None and not self._task.done() and self._task is not asyncio.current_task():
            await asyncio.wait({self._task})

    def cancel(self) -> None:
        """Gives up async callbacks that did not end in time."""
        if self._task is not None:
            self._task.cancel()


def _already(result: Awaitable[object]) -> Callable[..., Awaitable[object]]:
    """A plain callback that returned an awaitable: only the waiting is left."""

    async def wait(*_: object) -> object:
        return await result

    return wait
