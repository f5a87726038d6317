"""Calling what a host plugged in: in order, in the context of the send, bounded in time, stoppable (TC-96)."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from math import inf
from time import perf_counter
from typing import Any, Final

from ..contracts import Clock
from ..errors import HookError, HookTimeout
from ..loop.timers import call_later

logger = logging.getLogger("pilothouse.conversation")

SLOW_S: Final = 0.1
"""Seconds for which a sync hook may hold the event loop before that is logged."""

GRACE_S: Final = 1.0
"""Seconds that a cancelled hook may take to end; then it is left behind."""


class Halted(Exception):
    """The send was stopped: nothing more of it is called."""


class HookCaller:
    """Calls the hooks of one send, one after another.

    Attributes:
        context: what hooks, the run and its tools run in: a hook's context variables reach the tools.
        task: of the async hook in progress.
    """

    __slots__ = ("_clock", "_halt", "_limit", "_wake", "context", "task")

    def __init__(self, context: Context, clock: Clock, limit: float) -> None:
        self.context = context
        self._clock = clock
        self._limit = limit
        self._halt: BaseException | None = None
        self._wake: Callable[[], object] | None = None
        self.task: asyncio.Task[Any] | None = None

    def halt(self, why: BaseException) -> None:
        """What is in progress is cancelled, and nothing is called after it; a sync hook returns first."""
        if self._halt is None:
            self._halt = why
        if self._wake is not None:
            self._wake()

    def go_on(self) -> None:
        """Hooks are called again: those of the end."""
        self._halt = None

    def check(self) -> None:
        """Raises what the send was halted by."""
        if self._halt is not None:
            raise self._halt

    async def wait(self, future: asyncio.Future[None]) -> None:
        """Waits for something else than a hook.

        Raises:
            What the send was halted by.
        """

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        outer, self._wake = self._wake, wake
        try:
            self.check()
            await future
        finally:
            self._wake = outer
        self.check()

    async def call(self, key: str, hook: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls one hook and returns what it gives, awaited.

        Raises:
            HookTimeout: it took too long and was cancelled. HookError: it was cancelled although nobody asked for that.
            Whatever it raises; and what the send was halted by meanwhile.
        """
        self.check()
        began = perf_counter()
        try:
            result = function(*args)
        except asyncio.CancelledError as error:
            raise _cancelled(key, hook) from error
        finally:
            held = perf_counter() - began
            if held > SLOW_S:
                logger.warning("%s held the event loop for %.2f s", _named(key, hook), held)
        if inspect.isawaitable(result):
            result = await self._awaited(key, hook, result)
        self.check()
        return result

    async def _awaited(self, key: str, hook: str, result: Awaitable[Any]) -> Any:
        loop = asyncio.get_running_loop()
        outer = self.task, self._wake
        task = self.task = loop.create_task(_run(result), name=_named(key, hook), context=self.context)
        done = loop.create_future()
        timers: list[Callable[[], object]] = []
        late = False

        def over(_: object = None) -> None:
            if not done.done():
                done.set_result(None)

        def cancel() -> None:
            task.cancel()
            timers.append(call_later(self._clock, GRACE_S, over))

        def expire() -> None:
            nonlocal late
            late = True
            cancel()

        if asyncio.iscoroutine(result):  # never begun where the task is cancelled before its first step
            task.add_done_callback(lambda _: result.close())
        task.add_done_callback(over)
        if self._limit != inf:
            timers.append(call_later(self._clock, self._limit, expire))
        self._wake = cancel
        try:
            await done
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(_silently)
            raise
        finally:
            self.task, self._wake = outer
            for stop in timers:
                stop()
        return self._outcome(key, hook, task, late=late)

    def _outcome(self, key: str, hook: str, task: asyncio.Task[Any], *, late: bool) -> Any:
        """What an async hook that is over, or was given up, comes to."""
        if not task.done():
            logger.warning("%s goes on although it was cancelled", _named(key, hook))
            task.add_done_callback(_silently)
        elif not task.cancelled() and task.exception() is None and isinstance(task.result(), _Ends):
            raise task.result().error
        self.check()
        if late:
            raise HookTimeout(key, hook, self._limit)
        if task.cancelled():
            raise _cancelled(key, hook)
        return task.result()


class _Ends:
    """What ends the process: raised by who called the hook, once the send is settled; a task would raise it at once."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


async def _run(result: Awaitable[Any]) -> Any:
    try:
        return await result
    except (KeyboardInterrupt, SystemExit) as error:
        return _Ends(error)


def _silently(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


def _cancelled(key: str, hook: str) -> HookError:
    return HookError(f"{_named(key, hook)} raised CancelledError although nobody cancelled it")


def _named(key: str, hook: str) -> str:
    return f"{hook} of {key}" if key else hook
