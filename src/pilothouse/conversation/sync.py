"""The one bridge for code that is not async: scripts, notebooks, worker threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ..errors import UsageError

T = TypeVar("T")


class _Background:
    """One event loop in a daemon thread, made at first use: objects that outlive a call keep their loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="pilothouse-sync", daemon=True).start()
            return self._loop


_background = _Background()


def run_sync(work: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine (or a function that makes one) to its end and returns its result.

    All calls share one event loop in a thread of its own, so a conversation can be used over several calls. Ctrl-C
    cancels the work and is raised here once it has ended.

    Raises:
        UsageError: called on that loop itself, which would wait for itself: use `await` there.
    """
    loop = _background.loop()
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        if asyncio.iscoroutine(work):
            work.close()
        raise UsageError("cannot run_sync on its own event loop: use await")

    async def main() -> T:
        return await (work if asyncio.iscoroutine(work) else work())

    future = asyncio.run_coroutine_threadsafe(main(), loop)
    try:
        return future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
