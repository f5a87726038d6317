"""What processes of one Postgres journal tell each other: commands, deltas, who follows whom.

Wake-ups carry no data. Deltas go in batches, one under way at a time on a connection of their own that does not wait
for the disk, so that a batch is as large as the server is slow; nothing of this is in an append's way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, final

import asyncpg

from ..cluster import Place, Posted, Signal, Ticket, Told, queue_of
from ..core.run import TAKEOVERS_TRIED
from ..errors import CommandConflict, JournalError, RunNotFound
from ..records import Owner
from .postgres_appends import columns_of
from .postgres_link import Link, close_quietly
from .postgres_notify import Notifications

LOOK_S: Final = 1.0
"""Seconds between two looks for answers that nobody announced."""

KEPT_MS: Final = 20_000
"""How long deltas are kept."""

CARE_S: Final = 5.0
"""Seconds between two sweeps of what is not wanted any more."""


@final
class PostgresRelay:
    """Implements `cluster.Relay` over the connections of a journal."""

    def __init__(self, link: Link, notifications: Notifications) -> None:
        self._link = link
        self._sql = link.sql
        self._notifications = notifications
        self._telling = _Own(link)
        self._asked: dict[tuple[str, str], set[asyncio.Future[bytes]]] = {}
        self._answers: asyncio.Task[None] | None = None
        self._cared_at = monotonic()

    # Commands

    async def post(self, run_id: str, command_id: str, body: bytes) -> bytes | None:
        """Puts a command into the inbox of a run; the answer, if it has one already."""
        row = await self._link.write(
            lambda db: db.fetchrow(self._sql["post"], run_id, command_id, body), single=True
        )
        if row is None:
            raise RunNotFound(run_id)
        if not row[0]:
            raise CommandConflict(run_id, command_id)
        if row[1] is None:
            await self._notifications.notify("inbox")
        answer: bytes | None = row[1]
        return answer

    async def answered(self, run_id: str, command_id: str, *, timeout: float) -> bytes | None:
        """Waits for the answer; None after `timeout` seconds."""
        key = (run_id, command_id)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.setdefault(key, set()).add(future)
        try:
            if self._answers is None or self._answers.done():
                self._answers = asyncio.create_task(self._look(), name="pilothouse-relay-answers")
            await asyncio.wait((future,), timeout=timeout)
            return future.result() if future.done() else None
        finally:
            waiting = self._asked.get(key, set())
            waiting.discard(future)
            if not waiting:
                self._asked.pop(key, None)

    async def _look(self) -> None:
        """Looks for the answers that somebody here waits for, when told to and now and then."""
        woken = asyncio.Event()
        forget = self._notifications.on("answered", woken.set)
        try:
            while self._asked:
                with suppress(JournalError):
                    columns = columns_of(list(self._asked), 2)
                    for run_id, command_id, answer in await self._rows("answers", *columns):
                        for future in self._asked.get((run_id, command_id), ()):
                            if not future.done():
                                future.set_result(answer)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await woken.wait()
                woken.clear()
        finally:
            forget()

    async def inbox(self, run_ids: Collection[str]) -> tuple[Sequence[Posted], frozenset[str]]:
        """Commands without an answer, and which of the runs are followed elsewhere."""
        ids = list(run_ids)
        posted = [Posted(*row) for row in await self._rows("unanswered", ids)]
        return posted, frozenset([row[0] for row in await self._rows("followed", ids)])

    async def answer(self, run_id: str, command_id: str, answer: bytes) -> None:
        """Answers a command; the first answer stays."""
        await self._change("answer", run_id, command_id, answer)
        await self._notifications.notify("answered")

    # Deltas

    async def follow(self, node: str, run_ids: Collection[str], *, ttl_ms: int) -> None:
        """Says that this process wants the deltas of these runs for so long."""
        await self._change("follow", list(run_ids), node, ttl_ms)
        await self._notifications.notify("inbox")

    async def tell(self, told: Sequence[Told]) -> None:
        """Sends deltas, and says so."""
        columns = columns_of([(item.run_id, item.fence, item.n, item.body) for item in told], 4)
        await self._telling.execute(self._sql["tell"], *columns, self._notifications.channel("told"))
        if monotonic() - self._cared_at > CARE_S:
            self._cared_at = monotonic()
            await self._telling.execute(self._sql["forget_told"], KEPT_MS)
            await self._telling.execute(self._sql["forget_follows"])

    async def told(self, places: Mapping[str, Place]) -> Sequence[Told]:
        """What was told of these runs behind these places, in order."""
        columns = columns_of([(run_id, *place) for run_id, place in places.items()], 3)
        return [Told(*row) for row in await self._rows("told", *columns)]

    # Owners

    async def stranded(
        self, binding: str, descriptor_digest: str, *, after: int, limit: int
    ) -> tuple[Sequence[Ticket], int]:
        """Runs that should be driven and that nobody drives."""
        found = await self._rows("stranded", binding, descriptor_digest, after, limit, TAKEOVERS_TRIED)
        queue = queue_of(binding, descriptor_digest)
        tickets = [Ticket(run_id, queue, fence, tenant, thread) for _, run_id, fence, tenant, thread in found]
        return tickets, found[-1][0] if len(found) == limit else 0

    async def load(self, tenant: str, thread_id: str) -> tuple[int, int]:
        """How many runs of a principal, and of a thread, are driven now."""
        of_tenant, of_thread = (await self._rows("load", tenant, thread_id))[0]
        return int(of_tenant), int(of_thread)

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This owner lives."""
        await self._change("lease", owner.id, owner.machine, owner.pid, owner.started, ttl_ms)

    async def dead(self, owners: Collection[str]) -> frozenset[str]:
        """Which of these owners do not live any more, by the server's clock."""
        return frozenset([row[0] for row in await self._rows("dead", list(owners))])

    # Signals

    def on_signal(self, signal: Signal, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back when there may be something new."""
        return self._notifications.on(signal, callback)

    async def aclose(self) -> None:
        """Ends its tasks and connections."""
        if self._answers is not None:
            self._answers.cancel()
            await asyncio.wait((self._answers,))
        await self._telling.aclose()

    async def _rows(self, name: str, *values: Any) -> Sequence[Any]:
        found: Sequence[Any] = await self._link.read(lambda db: db.fetch(self._sql[name], *values))
        return found

    async def _change(self, name: str, *values: Any) -> None:
        await self._link.write(lambda db: db.execute(self._sql[name], *values), single=True)


@final
class _Own:
    """A connection for what may be lost: its commits do not wait for the disk."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection: asyncpg.Connection | None = None

    async def execute(self, statement: str, *values: Any) -> None:
        """Runs one statement.

        Raises:
            JournalUnavailable: the connection was lost; what was to be told may be lost with it.
        """
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._link.connect()
                await self._connection.execute("SET synchronous_commit = off")
            await self._connection.execute(statement, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise self._link.translated(error) from error

    async def aclose(self) -> None:
        """Closes it."""
        if self._connection is not None:
            await close_quietly(self._connection)


__all__ = ["PostgresRelay"]
