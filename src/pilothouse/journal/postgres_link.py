"""The connections of a Postgres journal: opening, migrating, retrying reads, and what an error of the server means."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar, final
from urllib.parse import urlsplit

import asyncpg

from ..errors import (
    ConfigError,
    JournalBusy,
    JournalError,
    JournalFull,
    JournalUnavailable,
    JournalVersion,
)
from .statements import named_statements, sql_text

T = TypeVar("T")

MIGRATIONS: Final = ("postgres_1.sql", "postgres_2.sql")
"""What leads from each schema version to the next."""

VERSION: Final = len(MIGRATIONS)

OPEN_S: Final = 15.0
"""Seconds for one connection to be made."""

CLOSE_S: Final = 10.0

COMMAND_S: Final = 60.0
"""Seconds for one statement; a server that says nothing for so long counts as lost."""

TRIES: Final = 5
"""Of a read whose connection was lost, or a transaction that was broken off for another's sake: it did nothing."""

_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")

_LOST: Final = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    OSError,
    TimeoutError,
)
"""The connection is gone: what was asked for was done or not, nobody knows (JR-23)."""

_AGAIN: Final = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)


@final
class Link:
    """A pool of connections to one schema, for one event loop.

    Attributes:
        retries: transactions that were tried anew.
        commits: transactions that were committed.
    """

    def __init__(self, dsn: str, schema: str, pool_size: int) -> None:
        if not _SCHEMA.fullmatch(schema):
            raise ConfigError(f"schema must be a plain lower-case name, not {schema!r}")
        if pool_size < 2:
            raise ConfigError(f"pool_size must be at least 2, not {pool_size}")
        self.retries = self.commits = 0
        self.place = _place_of(dsn)
        self.schema = schema
        self.sql: Mapping[str, str] = {
            name: self._here(text)
            for file in ("postgres.sql", "postgres_relay.sql")
            for name, text in named_statements(file).items()
        }
        self._dsn = dsn
        self._pool_size = pool_size
        self._pool: asyncpg.Pool | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None
        self._refusing = self._closed = False

    def refuse_more(self) -> None:
        """From now on only what has begun may go on."""
        self._refusing = True

    def check_open(self) -> None:
        """Raises JournalUnavailable if nothing more is to be written, or this is a second event loop."""
        if self._refusing:
            raise _final_error("cannot use the journal while it is closed")
        self._bind()

    def _bind(self) -> None:
        """Connections belong to one loop: the first that uses them."""
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop, self._opening = loop, asyncio.Lock()
        elif self._loop is not loop:
            raise _final_error("cannot use this journal in a second event loop: open one of its own there")

    async def pool(self) -> asyncpg.Pool:
        """The open pool; the schema is there and of our version.

        Raises:
            JournalUnavailable: the server cannot be reached, or refuses us.
            JournalVersion: the schema is not ours, or a newer Pilothouse's.
        """
        if self._closed:
            raise _final_error("cannot use the journal while it is closed")
        self._bind()
        if self._pool is None:
            assert self._opening is not None
            async with self._opening:
                if self._pool is None:
                    self._pool = await self._open()
        return self._pool

    async def connect(self) -> asyncpg.Connection:
        """A connection apart from the pool; its user closes it."""
        await self.pool()
        try:
            return await asyncpg.connect(self._dsn, timeout=OPEN_S)
        except (asyncpg.PostgresError, *_LOST) as error:
            raise self.translated(error) from error

    async def read(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Reads; where the connection is lost it asks again on another, which does no harm."""
        pool = await self.pool()
        for number in range(1, TRIES + 1):
            try:
                async with _connection(pool) as connection:
                    return await work(connection)
            except _LOST as error:
                if number == TRIES:
                    raise self.translated(error) from error
                await asyncio.sleep(0.02 * number)  # until the loop has heard which others are lost too
            except asyncpg.PostgresError as error:
                raise self.translated(error) from error
        raise AssertionError

    async def write(self, work: Callable[[asyncpg.Connection], Awaitable[T]], *, single: bool = False) -> T:
        """Writes in one transaction; a `single` statement is one by itself, in one round trip.

        Raises:
            UniqueViolationError: as it is.
            JournalUnavailable: also where the connection was lost in the commit: then nobody knows (JR-23).
        """
        pool = await self.pool()
        for number in range(1, TRIES + 1):
            try:
                async with _connection(pool) as connection:
                    if single:
                        result = await work(connection)
                    else:
                        async with connection.transaction():
                            result = await work(connection)
            except asyncpg.UniqueViolationError:
                raise  # it says something about what was asked for: its caller knows what
            except _AGAIN as error:
                self.retries += 1
                if number == TRIES:
                    raise self.translated(error) from error
            except (asyncpg.PostgresError, *_LOST) as error:
                raise self.translated(error) from error
            else:
                self.commits += 1
                return result
        raise AssertionError

    async def aclose(self) -> None:
        """Closes all connections, those in use after a moment."""
        self._refusing = self._closed = True
        pool, self._pool = self._pool, None
        if pool is None or self._loop is not asyncio.get_running_loop():
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await pool.close()
        except (TimeoutError, *_LOST):
            pool.terminate()

    def translated(self, error: Exception) -> JournalError:
        """What an error of the server or the connection means for a journal; it never shows the password."""
        why = str(error).partition("\n")[0] or type(error).__name__
        match error:
            case asyncpg.DiskFullError():
                return JournalFull(f"cannot write to {self.place} because its disk is full: free some space")
            case (
                asyncpg.TooManyConnectionsError()
                | asyncpg.DeadlockDetectedError()
                | asyncpg.SerializationError()
            ):
                return JournalBusy(f"cannot use {self.place} because it is busy: {why}")
            case asyncpg.LockNotAvailableError() | asyncpg.QueryCanceledError():
                return JournalBusy(f"cannot use {self.place} because another transaction holds it: {why}")
            case asyncpg.InvalidAuthorizationSpecificationError() | asyncpg.InvalidCatalogNameError():
                return JournalUnavailable(
                    f"cannot open {self.place}: {why}: check user, password and database"
                )
            case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
                return JournalUnavailable(
                    f"cannot write to {self.place}, schema {self.schema}: {why}: grant the right to it"
                )
            case asyncpg.PostgresError():
                return JournalUnavailable(f"cannot use {self.place} because of an error of the server: {why}")
            case _:
                return JournalUnavailable(
                    f"cannot reach {self.place}: {why}: check that the server runs and the address is right"
                )

    # Opening

    async def _open(self) -> asyncpg.Pool:
        try:
            pool = await asyncpg.create_pool(
                self._dsn, min_size=0, max_size=self._pool_size, timeout=OPEN_S, command_timeout=COMMAND_S
            )
        except (asyncpg.PostgresError, ValueError, *_LOST) as error:
            raise self.translated(error) from error
        try:
            async with pool.acquire() as connection:
                await self._migrate(connection)
        except (asyncpg.PostgresError, *_LOST) as error:
            pool.terminate()
            raise self.translated(error) from error
        except BaseException:
            pool.terminate()
            raise
        return pool

    async def _migrate(self, connection: asyncpg.Connection) -> None:
        """Old or new, never between; of processes that open at once one migrates (JR-24)."""
        async with connection.transaction():
            await connection.execute(
                "SELECT pg_advisory_xact_lock(hashtext($1))", f"pilothouse {self.schema}"
            )
            version = await self._version(connection)
            if version == VERSION:
                return
            if version > VERSION:
                raise JournalVersion(
                    f"cannot use {self.place}, schema {self.schema}, because a newer Pilothouse wrote it (schema"
                    f" {version}, this one knows {VERSION}): upgrade this Pilothouse"
                )
            if version == 0:
                await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
                await connection.execute(
                    f'CREATE TABLE "{self.schema}".pilothouse_journal (version integer NOT NULL)'
                )
                await connection.execute(f'INSERT INTO "{self.schema}".pilothouse_journal VALUES (0)')  # noqa: S608
            for file in MIGRATIONS[version:]:
                await connection.execute(self._here(sql_text(file)))
            await connection.execute(f'UPDATE "{self.schema}".pilothouse_journal SET version = $1', VERSION)  # noqa: S608

    async def _version(self, connection: asyncpg.Connection) -> int:
        """0 where nothing of ours is there yet.

        Raises:
            JournalVersion: the schema holds tables of somebody else.
        """
        tables = {
            row[0]
            for row in await connection.fetch(
                "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = $1", self.schema
            )
        }
        if "pilothouse_journal" in tables:
            return int(await connection.fetchval(f'SELECT version FROM "{self.schema}".pilothouse_journal'))  # noqa: S608
        if tables and self.schema != "public":
            raise JournalVersion(
                f"cannot use schema {self.schema} of {self.place} because it holds another program's tables: choose"
                " another schema"
            )
        return 0

    def _here(self, text: str) -> str:
        return text.replace("pilothouse.", f'"{self.schema}".')


@asynccontextmanager
async def _connection(pool: asyncpg.Pool) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the pool; one that was lost does not go back to it."""
    async with pool.acquire() as connection:
        try:
            yield connection
        except _LOST:
            with suppress(asyncpg.InterfaceError):  # the pool has let go of it: it noticed, too
                connection.terminate()
            raise


async def close_quietly(connection: asyncpg.Connection) -> None:
    """Closes a connection that may be gone already."""
    with suppress(asyncpg.PostgresError, *_LOST):
        await connection.close(timeout=CLOSE_S)


def _place_of(dsn: str) -> str:
    """The server and the database of a DSN, without user and password."""
    try:
        parts = urlsplit(dsn)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "Postgres"
    return f"Postgres at {parts.hostname or 'a local socket'}{port}{parts.path}"


def _final_error(text: str) -> JournalUnavailable:
    error = JournalUnavailable(text)
    error.retryable = False
    return error


__all__ = ["VERSION", "Link", "close_quietly"]
