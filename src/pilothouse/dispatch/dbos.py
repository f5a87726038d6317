"""DBOS Transact as the dispatcher: a queue in the journal's own Postgres, and nothing else to operate. Extra `dbos`.

A ticket is one workflow without steps: what happened is in the journal, DBOS only knows that somebody is to drive a run.
Without its commercial conductor DBOS gives a dead process's workflows to nobody; a reaper over its public API does: who
holds a session's advisory lock looks for workflows whose executor's lease is over by the database's clock, and puts
them back into their queue, which also voids the token of the old owner.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, final

import msgspec

from ..cluster import Drive, Driven, Relay, Ticket
from ..errors import ConfigError, DispatchUnavailable, JournalError
from ..journal.liveness import this_process
from ..journal.postgres import PostgresJournal
from ..records import Owner
from .limits import DispatchLimits

if TYPE_CHECKING:
    from dbos import DBOSClient, EnqueueOptions

logger = logging.getLogger("pilothouse.dispatch")

WORKFLOW: Final = "pilothouse.drive"

VERSION: Final = "pilothouse"
"""One application version for all: what a worker can drive is said by the queue, not by the code's hash."""

POLL_S: Final = 0.1
"""Seconds between two looks of a worker into its queue."""

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0)
"""How long a run waits whose principal or thread has its share."""

_PRIORITY_ZERO: Final = 1 << 30
"""DBOS counts priorities from 1."""

_decoder: Final = msgspec.json.Decoder(Ticket)


@final
class DBOSDispatcher:
    """Implements `cluster.Dispatcher` with DBOS.

    DBOS is one a process: so are workers with it. Processes that only ask (web nodes) do not load it whole.

    Args:
        dsn: the Postgres database of DBOS's tables; the journal's is the natural one.
        journal: whose clock and leases say which processes live.
        schema: of DBOS's tables.
    """

    def __init__(
        self,
        dsn: str,
        journal: PostgresJournal,
        *,
        schema: str = "pilothouse_dbos",
        limits: DispatchLimits | None = None,
    ) -> None:
        try:
            import dbos  # noqa: F401 - to say now that it is missing
        except ModuleNotFoundError as error:
            raise ConfigError('DBOSDispatcher needs a package: pip install "pilothouse[dbos]"') from error
        if journal.relay is None:
            raise ConfigError("DBOSDispatcher needs the journal of several machines: PostgresJournal")
        self._url = dsn
        self._schema = schema
        self._limits = limits or DispatchLimits()
        self._relay: Relay = journal.relay
        self._me = this_process(f"dbos-{os.urandom(8).hex()}")
        self._drives: dict[str, Drive] = {}
        self._client: DBOSClient | None = None
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reaping: asyncio.Task[None] | None = None
        self._launched = self._drained = False

    async def enqueue(self, ticket: Ticket) -> None:
        """Puts a ticket into its queue; the same ticket again is the workflow that there is."""
        await self._put(ticket, {})

    async def _put(self, ticket: Ticket, more: dict[str, Any]) -> None:
        options: dict[str, Any] = {
            "workflow_name": WORKFLOW,
            "queue_name": ticket.queue,
            "workflow_id": ticket.key,
            "app_version": VERSION,
            "priority": min(max(_PRIORITY_ZERO + ticket.priority, 1), 2 * _PRIORITY_ZERO - 1),
            **more,
        }
        if self._limits.principal is not None:
            options["queue_partition_key"] = ticket.tenant or "-"
        await self._call(self._enqueued, options, msgspec.json.encode(ticket).decode())

    def _enqueued(self, client: DBOSClient, options: EnqueueOptions, ticket: str) -> None:
        client.enqueue(options, ticket)

    async def _call(self, work: Any, *arguments: Any) -> Any:
        """A call of DBOS's synchronous client, in a thread.

        Raises:
            DispatchUnavailable: its database cannot be reached, or is not set up yet.
        """
        try:
            client = await self._opened()
            return await asyncio.to_thread(work, client, *arguments)
        except DispatchUnavailable:
            raise
        except Exception as error:
            raise DispatchUnavailable(
                f"cannot reach DBOS in schema {self._schema}: {str(error).partition(chr(10))[0]}: check that the"
                " database runs; its tables are made by the first worker"
            ) from error

    async def _opened(self) -> DBOSClient:
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._connect)
        return self._client

    def _connect(self) -> DBOSClient:
        from dbos import DBOSClient

        _quiet()
        return DBOSClient(
            system_database_url=self._url,
            dbos_system_schema=self._schema,
            application_name="pilothouse",
            lazy=True,
            retry_connection_errors=False,
        )

    # Working

    def on_dispatch(self, queue: str, drive: Drive) -> None:
        """Takes tickets of that queue from `start` on."""
        self._drives[queue] = drive

    async def start(self) -> None:
        """Makes DBOS's tables if there are none; with something to drive, takes tickets from now on.

        Raises:
            DispatchUnavailable: the database cannot be reached.
            ConfigError: DBOS is in use in this process already.
        """
        self._loop = asyncio.get_running_loop()
        if not self._drives:
            return
        if _working:
            raise ConfigError("DBOS is one a process, and works here already: give each worker a process")
        _working.append(self._me.id)
        await self._relay.heartbeat(self._me, 60_000)
        try:
            await asyncio.to_thread(self._launch)
        except Exception as error:
            _working.clear()
            raise DispatchUnavailable(
                f"cannot start DBOS in schema {self._schema}: {str(error).partition(chr(10))[0]}"
            ) from error
        self._launched = True

    def _launch(self) -> None:
        from dbos import DBOS

        _quiet()
        DBOS(
            config={
                "name": "pilothouse",
                "system_database_url": self._url,
                "dbos_system_schema": self._schema,
                "application_version": VERSION,
                "executor_id": self._me.id,
                "sys_db_pool_size": 5,
                "log_level": "ERROR",
                "console_log_level": "ERROR",
            }
        )

        @DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
        async def _(encoded: str) -> str:
            return await self._drive(encoded)

        DBOS.listen_queues(list(self._drives))
        DBOS.launch()
        limits = self._limits
        more: dict[str, Any] = {}
        if limits.principal is not None:
            more["partition_concurrency"] = limits.principal
        if limits.rate is not None:
            more["limiter"] = {"limit": limits.rate[0], "period": limits.rate[1]}
        for queue in self._drives:
            DBOS.register_queue(
                queue,
                worker_concurrency=limits.worker,
                polling_interval_sec=POLL_S,
                on_conflict="always_update",
                **more,
            )

    async def _drive(self, encoded: str) -> str:
        """The workflow: in a loop of DBOS's; the run is driven in ours."""
        assert self._loop is not None
        work = asyncio.run_coroutine_threadsafe(self._driven(_decoder.decode(encoded)), self._loop)
        return await asyncio.wrap_future(work)

    async def _driven(self, ticket: Ticket) -> Driven:
        if self._drained:  # taken a moment before: somebody else's
            await self._again(ticket, PAUSES_S[0])
            return "handed_over"
        done = await self._drives[ticket.queue](ticket)
        if done == "deferred":
            await self._again(ticket, PAUSES_S[min(ticket.round, len(PAUSES_S) - 1)])
        return done

    async def _again(self, ticket: Ticket, seconds: float) -> None:
        again = msgspec.structs.replace(ticket, round=ticket.round + 1)
        await self._put(again, {"delay_seconds": seconds})

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This process lives: said by the database's clock, from the event loop that drives."""
        await self._relay.heartbeat(self._me, ttl_ms)
        if self._launched and not self._drained and (self._reaping is None or self._reaping.done()):
            self._reaping = asyncio.get_running_loop().create_task(
                self._reap(), name="pilothouse-dbos-reaper"
            )

    async def _reap(self) -> None:
        """Puts back what dead processes had in hand. Two reapers at once put the same back, which is once."""
        try:
            pending = await self._call(self._pending)
            dead = await self._relay.dead({executor for _, executor, _ in pending})
            for key, executor, queue in pending:
                if executor in dead:
                    logger.warning("the worker %s is gone: %s goes to another", executor, key)
                    await self._call(self._resumed, key, queue)
        except (DispatchUnavailable, JournalError) as error:
            logger.warning("workers that are gone are looked for again later: %s", error)

    def _pending(self, client: DBOSClient) -> list[tuple[str, str, str]]:
        found = client.list_workflows(
            status="PENDING", queue_name=list(self._drives), load_input=False, load_output=False
        )
        return [(item.workflow_id, item.executor_id or "", item.queue_name or "") for item in found]

    def _resumed(self, client: DBOSClient, key: str, queue: str) -> None:
        client.resume_workflow(key, queue_name=queue)

    async def drain(self) -> None:
        """Takes no more tickets; those in hand go on."""
        self._drained = True

    async def aclose(self) -> None:
        """Lets go of DBOS. What was in hand goes to others as soon as they see that this process is gone."""
        if self._reaping is not None:
            self._reaping.cancel()
            await asyncio.wait((self._reaping,))
        if self._launched:
            from dbos import DBOS

            self._launched = False
            await asyncio.to_thread(DBOS.destroy, destroy_registry=True, workflow_completion_timeout_sec=5)
            _working.clear()
            with suppress(JournalError):
                await self._relay.heartbeat(self._me, 0)
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)


_working: Final[list[str]] = []
"""Who works in this process, if anybody: DBOS is one a process."""


def _quiet() -> None:
    """DBOS logs where the application logs, not onto the terminal by itself."""
    logging.getLogger("dbos").addHandler(logging.NullHandler())


__all__ = ["DBOSDispatcher"]
