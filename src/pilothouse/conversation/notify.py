"""Telling observers: change first, tell afterwards, in one order, and no callback breaks anything (AC-64 … AC-69)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from ..cancel import LEAVING, is_closing
from .options import CALLBACKS

logger = logging.getLogger("pilothouse.conversation")

Fence = Callable[[], bool]

CHUNK: Final = "on_response_chunk"

JOIN_ABOVE = 1024
"""Waiting notifications of async callbacks above which neighbouring chunks are joined."""


class _Later(NamedTuple):
    """What an async callback returned, to be awaited when its turn comes."""

    name: str
    callback: Callable[..., Any]
    args: tuple[Any, ...]
    fence: Fence | None
    waiting: Awaitable[object]

    def joins(self, fresh: _Later) -> bool:
        """Whether two neighbours are pieces of one send's text for one callback that has not begun."""
        return (
            self.name == fresh.name == CHUNK
            and self.callback == fresh.callback
            and self.fence == fresh.fence
            and inspect.iscoroutinefunction(fresh.callback)
        )

    def drop(self) -> None:
        """It will not be awaited."""
        if inspect.iscoroutine(self.waiting):
            self.waiting.close()


class Notifier:
    """One FIFO of notifications, drained by the outermost call; async callbacks run one after another in one task."""

    __slots__ = ("_draining", "_later", "_observers", "_option", "_queue", "_task")

    def __init__(self, option: Callable[[str], Any]) -> None:
        self._option = option
        self._observers: list[object] = []
        # Both are made at first use: an empty one takes 0.6 kB, and most conversations in memory are at rest.
        self._queue: deque[tuple[str, tuple[Any, ...], Fence | None]] | None = None
        self._draining = False
        self._later: deque[_Later] | None = None
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

    @property
    def observed(self) -> bool:
        """Whether there are observers besides the option's callback."""
        return bool(self._observers)

    def tell_piece(self, option: Callable[..., Any] | None, piece: str, text: str, fence: Fence) -> None:
        """`tell` and `drain` in one, for what is told often: nothing is queued where nothing waits.

        `option` is the callback that is set now.
        """
        if self._draining or self._queue:
            self.tell(CHUNK, piece, text, fence=fence)
            self.drain()
            return
        self._draining = True
        try:
            if option is not None:
                try:
                    result = option(piece, text)
                except LEAVING:
                    raise
                except BaseException as error:  # noqa: BLE001 - a callback cannot break the machine
                    self.failed(error, CHUNK)
                else:
                    if result is not None and inspect.isawaitable(result):
                        self._put_later(_Later(CHUNK, option, (piece, text), fence, result))
            if self._observers:
                self._observe(CHUNK, (piece, text), fence)
        finally:
            self._draining = False
        if self._queue:
            self.drain()

    def tell(self, name: str, *args: Any, fence: Fence | None = None) -> None:
        """Queues a notification; it is dropped if `fence()` is False when its turn comes (AC-65).

        Nothing is queued where nobody is to be told: what stands before it may still change that.
        """
        if self._queue is None:
            if name and not self._observers and not self._draining and self._option(name) is None:
                return
            self._queue = deque()
        self._queue.append((name, args, fence))

    @property
    def draining(self) -> bool:
        """Whether a callback is being called at this moment."""
        return self._draining

    def then(self, action: Callable[[], object]) -> None:
        """Queues something to be done, behind what is to be told before it."""
        self.tell("", action)

    def drain(self) -> None:
        """Delivers what is queued, unless an outer call is doing so."""
        if self._draining or self._queue is None:
            return
        self._draining = True
        try:
            while self._queue:
                name, args, fence = self._queue.popleft()
                if not name:
                    args[0]()
                elif fence is None or fence():
                    self._deliver(name, args, fence)
        finally:
            self._draining = False
            if not self._queue:
                self._queue = None

    def _deliver(self, name: str, args: tuple[Any, ...], fence: Fence | None) -> None:
        option = self._option(name)
        if option is not None:
            self._call(option, name, args, fence)
        if self._observers:
            self._observe(name, args, fence)

    def _observe(self, name: str, args: tuple[Any, ...], fence: Fence | None) -> None:
        for observer in tuple(self._observers):
            callback = getattr(observer, name, None)
            if callback is not None and (fence is None or fence()):
                self._call(callback, name, args, fence)

    def _call(
        self, callback: Callable[..., Any], name: str, args: tuple[Any, ...], fence: Fence | None
    ) -> None:
        try:
            result = callback(*args)
        except LEAVING:
            raise
        except BaseException as error:  # noqa: BLE001 - a callback cannot break the machine
            self.failed(error, name)
            return
        if result is not None and inspect.isawaitable(result):
            self._put_later(_Later(name, callback, args, fence, result))

    def _put_later(self, fresh: _Later) -> None:
        """Awaits it behind those before it; beyond a bound, neighbouring chunks of a send become one."""
        if self._later is None:
            self._later = deque()
        last = self._later[-1] if len(self._later) >= JOIN_ABOVE else None
        if last is not None and last.joins(fresh):
            self._later.pop()
            last.drop()
            fresh.drop()
            args = (last.args[0] + fresh.args[0], fresh.args[1])
            fresh = fresh._replace(args=args, waiting=fresh.callback(*args))
        self._later.append(fresh)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="pilothouse-callbacks")

    async def _run(self) -> None:
        while self._later:
            due = self._later.popleft()
            if due.fence is not None and not due.fence():
                due.drop()
                continue
            try:
                await due.waiting
            except LEAVING:
                raise
            except BaseException as error:
                if is_closing(error, self._task):
                    raise
                self.failed(error, due.name)

    def failed(self, error: BaseException, name: str) -> None:
        """Logged and handed on; an error in the error callback is only logged (AC-66)."""
        logger.error("callback %s failed", name, exc_info=error)
        told = self._option("on_callback_error")
        if told is not None:
            try:
                told(error, name)
            except LEAVING:
                raise
            except BaseException:
                logger.exception("on_callback_error failed")

    @property
    def waiting(self) -> bool:
        """Whether async callbacks are due or running, other than the one that asks."""
        return self._task is not None and not self._task.done() and self._task is not asyncio.current_task()

    async def join(self) -> None:
        """Waits until the async callbacks that are due have run."""
        while (task := self._task) is not None and self.waiting:
            await asyncio.wait({task})

    def cancel(self) -> None:
        """Gives up async callbacks that did not end in time."""
        if self._task is not None:
            self._task.cancel()
