"""Stops, threads and loops: a stop that any thread may ask for (contracts.CancelToken), what is no failure, whose loop it is."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from .errors import UsageError

logger = logging.getLogger("pilothouse")

ENDING: Final = (KeyboardInterrupt, SystemExit)
"""These end the process, whoever raises them. A function that waits for nothing raises nothing else that is no failure."""

LEAVING: Final = (asyncio.CancelledError, *ENDING)
"""Out of a user's code these are passed on (AC-66). Everything else is a failure of it, also what is no `Exception`."""


def is_closing(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether `error` closes the coroutine that sees it in `task`, and did not come out of what that awaits.

    Who gets it has to leave at once. A coroutine is run by its task, and closed by whoever throws it away: `GeneratorExit`
    is all that it sees of either.
    """
    if not isinstance(error, GeneratorExit):
        return False
    try:
        return asyncio.current_task() is not task
    except RuntimeError:  # no loop runs any more
        return True


def check_on(loop: asyncio.AbstractEventLoop, action: str, what: str = "a conversation") -> None:
    """Refuses a caller that does not run on that loop.

    Raises:
        UsageError: it is on another thread, or on none that has a loop; or the loop has ended.
    """
    if loop.is_closed():
        raise _ended(action, what)
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise UsageError(f"cannot {action} from another thread: use loop.call_soon_threadsafe")


def bound(known: asyncio.AbstractEventLoop | None, action: str, what: str) -> asyncio.AbstractEventLoop:
    """The loop that owns something: the first that used it, which must be the running one (AC-121).

    Raises:
        UsageError: another one runs.
    """
    loop = asyncio.get_running_loop()
    if known is None or known is loop:
        return loop
    if known.is_closed():
        raise _ended(action, what)
    raise UsageError(f"cannot {action} on another event loop: use asyncio.run_coroutine_threadsafe")


def _ended(action: str, what: str) -> UsageError:
    return UsageError(
        f"cannot {action} on another event loop: the one that it was used on has ended, so make {what} in each "
        "asyncio.run()"
    )


def tell(callbacks: Iterable[Callable[[], object]]) -> None:
    """Calls those who asked to hear of a stop, in order; what one of them raises is logged."""
    for callback in callbacks:
        try:
            callback()
        except LEAVING:
            raise
        except BaseException:
            logger.exception("a cancel callback failed")


class Token:
    """Set once; `reason` says why. Callbacks run in the thread that sets it; their exceptions are logged."""

    __slots__ = ("_callbacks", "_lock", "_set", "reason")

    def __init__(self) -> None:
        self.reason = ""
        self._set = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], object]] = []

    def is_set(self) -> bool:
        """Whether a stop was asked for."""
        return self._set

    def set(self, reason: str = "") -> bool:
        """Asks for the stop; True if this was the first time."""
        with self._lock:
            if self._set:
                return False
            self._set, self.reason = True, reason
            callbacks, self._callbacks = self._callbacks, []
        tell(callbacks)
        return True

    def on_set(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when set, at once if it is; the returned function takes this back."""
        with self._lock:
            if not self._set:
                self._callbacks.append(callback)
                return lambda: self._forget(callback)
        callback()
        return lambda: None

    def _forget(self, callback: Callable[[], object]) -> None:
        with self._lock:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

    async def wait(self) -> None:
        """Waits until set."""
        if self._set:
            return
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        def wake() -> None:
            loop.call_soon_threadsafe(resolve)

        forget = self.on_set(wake)
        try:
            await done
        finally:
            forget()

    def raise_if_set(self) -> None:
        """Raises `asyncio.CancelledError` if set."""
        if self._set:
            raise asyncio.CancelledError(self.reason)
