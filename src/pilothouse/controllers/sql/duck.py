"""DuckDB files, read-only, in a process that can reach no other file and no network.

The settings refuse files, URLs, ATTACH, COPY, INSTALL and extensions, and are locked. What they let pass is a temporary
table, so only what DuckDB's own parser calls one SELECT is run.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, final

from ...errors import ConfigError
from ..errors import MissingExtra, QueryFailed
from .failures import stopped_after, told
from .hands import Hands, timed
from .rows import Limits, Rows, take
from .schema import ColumnInfo, Schema, TableInfo

SETTINGS: Final = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",  # or a query reads variables of this program as tables
    "temp_directory": "",  # nothing is spilled to a disk
    "memory_limit": "512MB",
    "threads": "2",
    "lock_configuration": "true",
}


@final
class DuckDBSource:
    """One DuckDB file, read-only.

    Args:
        path: the file; it must exist.
        limits: what one query may bring.
        tables: what is exposed; None is every table and view.

    Raises:
        ConfigError: it is no DuckDB database, or this process has it open in another way.
    """

    dialect: Final = "duckdb"

    def __init__(self, path: str | Path, *, limits: Limits, tables: Collection[str] | None = None) -> None:
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
        self._hands: Hands[Any] = Hands(
            self._base.cursor,
            interrupt=lambda c: c.interrupt(),
            close_it=lambda c: c.close(),
            name="pilothouse-duckdb",
        )

    async def schema(self) -> Schema:
        """Tables, views and their columns."""
        return await timed(self._hands, self._read_schema, 10.0)

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
        return await timed(self._hands, lambda c: self._fetch(c, sql, limits, timeout), timeout)

    def _fetch(self, connection: Any, sql: str, limits: Limits, timeout: float) -> Rows:
        import duckdb

        try:
            statements = connection.extract_statements(sql)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise QueryFailed("one query at a time, and one that only reads")
            cursor = connection.execute(statements[0])
            columns = [(column[0], str(column[1])) for column in cursor.description]
            return take(columns, iter(cursor.fetchone, None), limits)
        except duckdb.InterruptException:
            raise QueryFailed(stopped_after(timeout)) from None
        except duckdb.Error as error:
            about = isinstance(
                error, duckdb.BinderException | duckdb.CatalogException | duckdb.ParserException
            )
            raise told(error, str(error), kind=about) from None

    async def aclose(self) -> None:
        """Ends the threads and closes the file."""
        await self._hands.aclose()
        self._base.close()
