"""DuckDB files, read-only, asked in processes that can reach no other file and no network.

The settings refuse files, URLs, ATTACH, COPY, INSTALL and extensions, and are locked. What they let pass is a temporary
table, so only what DuckDB's own parser calls one SELECT is run. What is there is read in this process, by queries of ours;
what others wrote runs in a child, which has limits of its own and can be ended (see `duck_worker`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, final

from ...errors import ConfigError
from ..errors import MissingExtra, QueryFailed
from .duck_child import Child, ChildEnded
from .duck_settings import SETTINGS
from .failures import stopped_after, told
from .hands import Hands, timed
from .rows import Limits, Rows
from .schema import ColumnInfo, Schema, TableInfo

CHILDREN: Final = 2
"""Processes at most; a query more waits."""

MEMORY: Final = 1536 * 1024 * 1024
"""Bytes that a process may have in all; what DuckDB itself keeps an account of is bounded by its settings."""

TOO_MUCH: Final = "the query was stopped because it needs too much memory; narrow it"
ENDED: Final = "the database's process ended while it ran the query; narrow it"


@final
class DuckDBSource:
    """One DuckDB file, read-only.

    Args:
        path: the file; it must exist.
        limits: what one query may bring.
        tables: what is exposed; None is every table and view.
        max_memory: bytes that one of the processes may have in all (on Linux).

    Raises:
        ConfigError: it is no DuckDB database, or this process has it open in another way.
    """

    dialect: Final = "duckdb"

    def __init__(
        self,
        path: str | Path,
        *,
        limits: Limits,
        tables: Collection[str] | None = None,
        max_memory: int = MEMORY,
    ) -> None:
        try:
            import duckdb
        except ImportError:
            raise MissingExtra("sql", "duckdb", "open a DuckDB file") from None
        self.path = Path(path).absolute()
        if not self.path.is_file():
            raise ConfigError(f"there is no file {self.path}: nothing is created, name one that exists")
        self._limits = limits
        self._tables = None if tables is None else frozenset(tables)
        try:
            self._base: Any = duckdb.connect(str(self.path), read_only=True, config={**SETTINGS})
            self._read_schema(self._base)
        except duckdb.Error as error:
            raise ConfigError(f"cannot open {self.path} with DuckDB: {error}") from None
        file = self.path  # not the source: its threads must not keep it alive
        self._hands: Hands[Child] = Hands(
            lambda: Child(file, max_memory),
            interrupt=lambda child: child.interrupt(),
            close_it=lambda child: child.close(),
            is_broken=lambda error: isinstance(error, ChildEnded),
            size=CHILDREN,
            name="pilothouse-duckdb",
        )

    async def schema(self) -> Schema:
        """Tables, views and their columns."""
        return await asyncio.to_thread(self._read_schema, self._base.cursor())

    def _read_schema(self, connection: Any) -> Schema:
        def ask(sql: str) -> list[tuple[Any, ...]]:
            found: list[tuple[Any, ...]] = connection.execute(sql).fetchall()
            return found

        here = "database_name = current_database() AND schema_name = 'main' AND NOT internal"
        keys = {
            (table, column)
            for table, columns in ask(
                "SELECT table_name, constraint_column_names FROM duckdb_constraints() "
                "WHERE constraint_type = 'PRIMARY KEY' AND database_name = current_database()"
            )
            for column in columns
        }
        found = []
        for name, kind in ask(
            f"SELECT table_name, 'table' FROM duckdb_tables() WHERE {here} "
            f"UNION ALL SELECT view_name, 'view' FROM duckdb_views() WHERE {here} ORDER BY 2, 1"
        ):
            quoted = str(name).replace('"', '""')
            described = connection.execute(f'SELECT * FROM main."{quoted}" LIMIT 0').description or ()
            columns = [
                ColumnInfo(column[0], str(column[1]), (name, column[0]) in keys) for column in described
            ]
            found.append(TableInfo(name, tuple(columns), kind))
        others = [
            name
            for (name,) in ask(
                "SELECT index_name FROM duckdb_indexes() UNION ALL SELECT sequence_name FROM duckdb_sequences() "
                "UNION ALL SELECT view_name FROM duckdb_views() WHERE internal "
                f"UNION ALL SELECT table_name FROM duckdb_tables() WHERE NOT ({here})"
            )
        ]
        return Schema(self.dialect, found, others).only(self._tables)

    async def run(self, sql: str, *, max_rows: int, timeout: float) -> Rows:
        """Runs one statement; see `QuerySource`."""
        return await self.fetch(sql, Limits(max_rows, self._limits.bytes, self._limits.cell), timeout)

    async def fetch(self, sql: str, limits: Limits, timeout: float) -> Rows:
        """The same with limits of its own."""
        try:
            kind, found = await timed(self._hands, lambda child: child.ask(sql, limits), timeout)
        except ChildEnded as ended:
            if ended.kind == "broken":
                raise told(ended, str(ended), kind=False) from None
            raise QueryFailed(TOO_MUCH if ended.kind else ENDED) from None
        match kind:
            case "rows":
                return Rows(*found)
            case "several":
                raise QueryFailed("one query at a time, and one that only reads")
            case "stopped":
                raise QueryFailed(stopped_after(timeout))
            case _:
                message, about = found
                raise told(RuntimeError(message), message, kind=about)

    async def aclose(self) -> None:
        """Ends the processes and closes the file."""
        await self._hands.aclose()
        self._base.close()
