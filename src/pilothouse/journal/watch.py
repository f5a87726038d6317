"""Waking who waits for a run to move, by a commit of this process or of another.

This process's own writer says what moved. For other processes one thread looks four times a second, while anybody
waits at all, whether the file changed; only if it did are heads asked for. A wake-up carries no data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Final, Protocol, final

from ..errors import JournalError

POLL_S: Final = 0.25


class Look(Protocol):
    """How a store is looked at from the watch's thread."""

    def changed(self) -> bool:
        """Whether anything was committed since the last look; one cheap statement."""
        ...

    def seqs(self, run_ids: Iterable[str]) -> Mapping[str, int]:
        """Where the heads of these runs are."""
        ...

    def close(self) -> None:
        """Called when nobody waits any more."""
        ...


@final
class _Waiter:
    __slots__ = ("after", "future", "loop", "run_id")

    def __init__(self, run_id: str, after: int) -> None:
        self.run_id = run_id
        self.after = after
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[int] = self.loop.create_future()


@final
class Watch:
    """Waiters of any number of loops."""

    def __init__(self, look: Callable[[], Look]) -> None:
        self._look = look
        self._waiters: set[_Waiter] = set()
        self._lock = Lock()
        self._thread: Thread | None = None
        self._over = Event()

    async def wait(self, run_id: str, after: int, seq: Callable[[], Awaitable[int]], timeout: float) -> int:
        """Waits until the run is beyond `after`, or `timeout` seconds are over; returns its seq as last known.

        `seq` asks for the present one. It is asked after the waiter stands in the list, so nothing is missed between.
        """
        waiter = _Waiter(run_id, after)
        with self._lock:
            self._waiters.add(waiter)
        try:
            known = await seq()
            if known > after:
                return known
            self._start()
            await asyncio.wait((waiter.future,), timeout=timeout)
            return waiter.future.result() if waiter.future.done() else known
        finally:
            with self._lock:
                self._waiters.discard(waiter)

    def moved(self, seqs: Mapping[str, int]) -> None:
        """Says where heads are now; from any thread. Costs next to nothing while nobody waits."""
        if not self._waiters:
            return
        with self._lock:
            woken = [waiter for waiter in self._waiters if seqs.get(waiter.run_id, 0) > waiter.after]
            self._waiters.difference_update(woken)
        for waiter in woken:
            with suppress(RuntimeError):  # its loop is closed
                waiter.loop.call_soon_threadsafe(_wake, waiter.future, seqs[waiter.run_id])

    def close(self) -> None:
        """Stops looking; blocks until the thread has ended."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._over.is_set():
                self._thread = Thread(target=self._serve, name="pilothouse-journal-watch", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        look = self._look()
        seen: set[_Waiter] = set()
        try:
            while not self._over.wait(POLL_S):
                with self._lock:
                    waiters = set(self._waiters)
                    if not waiters:
                        self._thread = None
                        return
                with suppress(JournalError):  # busy or away: the next look tells
                    if look.changed() or not waiters <= seen:
                        self.moved(look.seqs({waiter.run_id for waiter in waiters}))
                    seen = waiters
        finally:
            look.close()


def _wake(future: asyncio.Future[int], seq: int) -> None:
    if not future.done():
        future.set_result(seq)


__all__ = ["POLL_S", "Look", "Watch"]
