"""Waking who waits for a run in Postgres: by our own commits at once, by other processes' through NOTIFY.

A notification is sent off the write path, at most every few milliseconds, because NOTIFY inside a writing transaction
makes all writers of a database wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final, final

from ..errors import JournalError, RunNotFound
from .postgres_link import Link
from .postgres_notify import Notifications

GATHER_S: Final = 0.01
"""How long a wake-up waits for others to go with it."""

POLL_S: Final = 0.25
"""Seconds between two looks where nothing notifies."""

SLOW_POLL_S: Final = 2.0
"""… and where LISTEN works, in case a notification was lost."""


@final
class LoopWatch:
    """Waiters of one event loop."""

    def __init__(self, link: Link, notifications: Notifications) -> None:
        self._link = link
        self._notifications = notifications
        self._waiters: dict[str, set[tuple[int, asyncio.Future[int]]]] = {}
        self._notified = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._untold = False
        self._listens = False
        self._unasked: dict[str, list[asyncio.Future[int]]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def wait(self, run_id: str, after: int, timeout: float) -> int:
        """Waits until the run is beyond `after`, or `timeout` seconds are over; returns its seq as last known.

        Raises:
            RunNotFound: no such run.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = (after, future)
        self._waiters.setdefault(run_id, set()).add(entry)
        try:
            # After the waiter stands in the list, so nothing is missed between.
            known = await self._ask(run_id)
            if known > after:
                return known
            if not self._listens:
                self._listens = True
                self._notifications.on("moved", self._notified.set)
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look(), name="pilothouse-journal-watch")
            await asyncio.wait((future,), timeout=timeout)
            return future.result() if future.done() else known
        finally:
            waiters = self._waiters.get(run_id, set())
            waiters.discard(entry)
            if not waiters:
                self._waiters.pop(run_id, None)

    def moved(self, run_id: str, seq: int) -> None:
        """Our own commit: waiters here are woken now, other processes in a moment."""
        self._wake({run_id: seq})
        self._untold = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell(), name="pilothouse-journal-notify")

    async def aclose(self) -> None:
        """Tells what is untold, then ends its tasks."""
        if self._telling is not None:
            await asyncio.wait((self._telling,))
        if self._asking is not None:
            await asyncio.wait((self._asking,))
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait((self._looking,))

    def _wake(self, seqs: Mapping[str, int]) -> None:
        for run_id, seq in seqs.items():
            for after, future in self._waiters.get(run_id, ()):
                if seq > after and not future.done():
                    future.set_result(seq)

    async def _ask(self, run_id: str) -> int:
        """Where a run is now. Whoever asks while a question is under way is asked for with the next, all in one."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._unasked.setdefault(run_id, []).append(answer)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all(), name="pilothouse-journal-asks")
        return await answer

    async def _ask_all(self) -> None:
        while self._unasked:
            asked, self._unasked = self._unasked, {}
            found: dict[str, int] = {}
            error: Exception | None = None
            try:
                found = await self._seqs(asked)
            except JournalError as away:
                error = away
            for run_id, answers in asked.items():
                for answer in answers:
                    if answer.done():
                        continue
                    if run_id in found:
                        answer.set_result(found[run_id])
                    else:
                        answer.set_exception(error or RunNotFound(run_id))

    async def _seqs(self, run_ids: Collection[str]) -> dict[str, int]:
        statement, ids = self._link.sql["seqs"], list(run_ids)
        return {row[0]: row[1] for row in await self._link.read(lambda db: db.fetch(statement, ids))}

    async def _tell(self) -> None:
        while self._untold:
            await asyncio.sleep(GATHER_S)
            self._untold = False
            await self._notifications.notify("moved")

    async def _look(self) -> None:
        while self._waiters:
            poll = SLOW_POLL_S if self._notifications.hears("moved") else POLL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(poll):
                    await self._notified.wait()
            await asyncio.sleep(GATHER_S)
            self._notified.clear()
            with suppress(JournalError):
                self._wake(await self._seqs(self._waiters))


__all__ = ["LoopWatch"]
