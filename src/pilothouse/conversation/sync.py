"""The one bridge for code that is not async: scripts, notebooks, worker threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from ..errors import UsageError

T = TypeVar("T")


class _Background:
    """One event loop in a daemon thread, made at first use: objects that outlive a call keep their loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.works: dict[
            asyncio.Task[Any], BaseException | None
        ] = {}  # with what has ended the loop under it

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._loop.is_closed():
                self._loop = asyncio.new_event_loop()
                run = self._run
                threading.Thread(target=run, args=(self._loop,), name="pilothouse-sync", daemon=True).start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs it for good: what would end a loop (`sys.exit()` in a callback) ends the calls that use it."""
        while True:
            try:
                loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - raised by the callers
                for task in self.works:
                    self.works[task] = error
                    task.cancel()
            else:
                return


_background = _Background()


def _forked() -> None:
    """The thread did not come along: a child process has a loop of its own."""
    global _background  # its lock may be held by a thread that is not here
    _background = _Background()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


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

    works = _background.works
    begun, ended = threading.Event(), threading.Event()

    async def main() -> tuple[T | None, BaseException | None]:
        task = asyncio.current_task()
        assert task is not None
        works[task] = None
        begun.set()
        try:
            return await (work if asyncio.iscoroutine(work) else work()), None
        except (
            KeyboardInterrupt,
            SystemExit,
        ) as error:  # for the caller: it would end the loop of all others
            return None, error
        except asyncio.CancelledError:
            if works[task] is None:
                raise
            return None, works[task]
        finally:
            del works[task]
            ended.set()

    future = asyncio.run_coroutine_threadsafe(main(), loop)
    try:
        result, error = future.result()
    except KeyboardInterrupt:
        if future.cancel():
            loop.call_soon_threadsafe(lambda: None if begun.is_set() else ended.set())
            ended.wait()  # a second Ctrl-C leaves it behind
        raise
    if error is not None:
        raise error
    return cast("T", result)
