"""Worker threads for sync tools: daemons, so that a deaf one holds up neither a run nor the end of the process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, final

from msgspec import Struct


class Ended(Struct, frozen=True):
    """How a function ended: with a value, or with what it raised."""

    value: Any = None
    error: BaseException | None = None


class _Job(NamedTuple):
    work: Callable[[], Any]
    context: contextvars.Context
    done: Callable[[Ended], None]


@final
class Threads:
    """Starts a thread when none is idle and keeps it for the next job. `asyncio.to_thread` would join at exit."""

    def __init__(self, name: str = "pilothouse-tool") -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._made = 0
        self._closed = False

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Ended]:
        """Runs `work` in a thread, with a copy of the caller's context; the future never has an exception."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Ended] = loop.create_future()

        def resolve(ended: Ended) -> None:
            if not future.done():
                future.set_result(ended)

        def done(ended: Ended) -> None:
            try:
                loop.call_soon_threadsafe(resolve, ended)
            except RuntimeError:  # the event loop is gone, and with it whoever waited
                return

        self._put(_Job(work, contextvars.copy_context(), done))
        return future

    def _put(self, job: _Job) -> None:
        with self._lock:
            needed = self._idle == 0
            if needed:
                self._made += 1
                number = self._made
            else:
                self._idle -= 1
        if needed:
            threading.Thread(
                target=self._serve, name=f"{self._name}-{number}", daemon=True, args=(job,)
            ).start()
        else:
            self._jobs.put(job)

    def _serve(self, job: _Job | None) -> None:
        while job is not None:
            job.done(_run(job))
            with self._lock:
                if self._closed:
                    return
                self._idle += 1
            job = self._jobs.get()

    def close(self) -> None:
        """Lets idle threads end; busy ones end when their work does."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._jobs.put(None)


def _run(job: _Job) -> Ended:
    try:
        return Ended(job.context.run(job.work))
    except BaseException as error:  # noqa: BLE001 - handed to the event loop, which knows what to do with each
        return Ended(error=error)
