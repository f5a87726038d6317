"""SQLite files, read through the same library as the journal.

Two copies of SQLite in one process that open one file drop each other's POSIX locks
(<https://sqlite.org/howtocorrupt.html> §2.2), so the standard library's `sqlite3` and SQLAlchemy's driver for it are not
used. The guards of a connection hold whatever text it is given: it is opened read-only and `query_only`, cannot attach
files (`mode=ro` alone lets ATTACH create one), and an authorizer names what it may read and call.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, final

import apsw

from ...errors import ConfigError
from ...journal.sqlite_file import APPLICATION_ID
from ..errors import QueryFailed
from .failures import stopped_after, told
from .functions import names_of
from .hands import Hands, timed
from .rows import Limits, Rows, take
from .schema import ColumnInfo, Schema, TableInfo

STEPS: Final = 5_000
"""Virtual machine steps between two looks at the clock: well under a millisecond."""
MODULES: Final = frozenset(
    {"json_each", "json_tree", "jsonb_each", "jsonb_tree", "generate_series", "dbstat"}
)
"""Tables without a place in the schema that SQLite lists only once they were used."""


@final
class SQLiteSource:
    """One SQLite file, read-only.

    Args:
        path: the file; it must exist.
        limits: what one query may bring.
        tables: what is exposed; None is every table and view.
        functions: names that are allowed besides the usual ones.
        max_query: characters of a query.
        max_memory: bytes that SQLite may use for a query beyond what it used before.

    Raises:
        ConfigError: it is no SQLite database, or a journal of Pilothouse.
    """

    dialect: Final = "sqlite"

    def __init__(
        self,
        path: str | Path,
        *,
        limits: Limits,
        tables: Collection[str] | None = None,
        functions: Collection[str] = (),
        max_query: int = 20_000,
        max_memory: int = 256 * 1024 * 1024,
    ) -> None:
        self.path = Path(path).absolute()
        self._limits = limits
        self._tables = None if tables is None else frozenset(tables)
        self._functions = names_of("sqlite") | {name.lower() for name in functions}
        self._max_query = max_query
        self._max_memory = max_memory
        self._exposed: frozenset[str] = frozenset()
        self._views: frozenset[str] = frozenset()
        self._objects: frozenset[str] = frozenset()
        self._modules: frozenset[str] = frozenset()
        self._check_file()
        self._hands = Hands(
            self._open,
            interrupt=lambda c: c.interrupt(),
            close_it=lambda c: c.close(True),
            name="pilothouse-sqlite",
        )

    def _check_file(self) -> None:
        if not self.path.is_file():
            raise ConfigError(f"there is no file {self.path}: nothing is created, name one that exists")
        try:
            connection = self._connect()
        except apsw.Error as error:
            raise ConfigError(f"cannot open {self.path} as a SQLite database: {error}") from None
        try:
            (found,) = connection.execute("PRAGMA application_id").fetchone() or (0,)
            self._read_schema(connection)
        except apsw.Error as error:
            raise ConfigError(f"cannot read {self.path} as a SQLite database: {error}") from None
        finally:
            connection.close(True)
        if found == APPLICATION_ID:
            raise ConfigError(
                f"cannot show {self.path} because it is a journal of Pilothouse, which holds conversations: "
                "name the file of your data"
            )

    def _connect(self) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return apsw.Connection(f"{self.path.as_uri()}?mode=ro", flags=flags)

    def _open(self) -> apsw.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY")
        connection.set_busy_timeout(2_000)
        connection.limit(apsw.SQLITE_LIMIT_ATTACHED, 0)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, self._limits.cell * 16)
        connection.limit(apsw.SQLITE_LIMIT_SQL_LENGTH, max(self._max_query * 2, 1_000))
        connection.enable_load_extension(False)
        connection.authorizer = self._authorize
        return connection

    # What a statement may do; called while it is prepared, also for parts that never run

    def _authorize(
        self, code: int, one: str | None, two: str | None, _db: str | None, inside: str | None
    ) -> int:
        if code in (apsw.SQLITE_SELECT, apsw.SQLITE_RECURSIVE):
            return apsw.SQLITE_OK
        if code == apsw.SQLITE_FUNCTION:
            allowed = (two or "").lower() in self._functions
        elif code == apsw.SQLITE_READ:
            allowed = self._may_read((one or "").lower(), inside)
        else:
            allowed = False
        return apsw.SQLITE_OK if allowed else apsw.SQLITE_DENY

    def _may_read(self, table: str, inside: str | None) -> bool:
        if table in self._exposed:
            return True
        # Modules are tables without being objects: `pragma_table_info`, `dbstat`, `json_each`.
        if table in self._modules or table.startswith(("sqlite_", "pragma_")):
            return False
        # A name that is no object is a query of a WITH; what a view reads is the view's business.
        return table not in self._objects or (inside or "").lower() in self._views

    # Reading

    async def schema(self) -> Schema:
        """Tables, views and their columns; what is not exposed is only named."""
        return await timed(self._hands, lambda _: self._fresh_schema(), 10.0)

    def _fresh_schema(self) -> Schema:
        connection = self._connect()
        try:
            return self._read_schema(connection)
        finally:
            connection.close(True)

    def _read_schema(self, connection: apsw.Connection) -> Schema:
        found: list[TableInfo] = []
        others: list[str] = []
        rows: Any = connection.execute("SELECT name, type, sql FROM sqlite_schema ORDER BY type, rowid")
        for name, kind, sql in rows.fetchall():
            if kind == "index":
                others.append(name)
            elif kind not in ("table", "view") or name.lower().startswith("sqlite_"):
                continue
            elif (sql or "").upper().lstrip().startswith("CREATE VIRTUAL"):
                others.append(name)
            else:
                found.append(TableInfo(name, _columns(connection, name), kind))
        tables: Any = connection.execute("PRAGMA table_list")
        shadows: set[str] = {row[1] for row in tables if row[2] == "shadow"}
        modules: Any = connection.execute("PRAGMA module_list")
        self._modules = MODULES | {name.lower() for (name,) in modules}
        others += sorted(shadows)
        schema = Schema(self.dialect, [table for table in found if table.name not in shadows], others).only(
            self._tables
        )
        self._exposed = frozenset(name.lower() for name in schema.tables)
        self._views = frozenset(table.name.lower() for table in schema if table.kind == "view")
        self._objects = self._exposed | {name.lower() for name in schema.others}
        return schema

    async def run(self, sql: str, *, max_rows: int, timeout: float) -> Rows:
        """Runs one statement; see `QuerySource`."""
        return await self.fetch(sql, Limits(max_rows, self._limits.bytes, self._limits.cell), timeout)

    async def fetch(self, sql: str, limits: Limits, timeout: float) -> Rows:
        """The same with limits of its own."""
        return await timed(self._hands, lambda c: self._fetch(c, sql, limits, timeout), timeout)

    def _fetch(self, connection: apsw.Connection, sql: str, limits: Limits, timeout: float) -> Rows:
        watch = _Watch(timeout, self._max_memory)
        connection.set_progress_handler(watch, STEPS)
        cursor = connection.cursor()
        columns: list[tuple[str, str]] = []

        def begins(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
            """Called before each statement: notes the columns, which are gone after the last row, and admits one."""
            first = not columns
            columns.extend((name, kind or "") for name, kind in cursor.get_description())
            return first and bool(columns)

        cursor.exec_trace = begins
        try:
            cursor.execute(sql, can_cache=False)
            if not columns:
                raise QueryFailed("there is no query")
            return take(columns, cursor, limits)
        except apsw.InterruptError:
            raise QueryFailed(watch.why or stopped_after(timeout)) from None
        except apsw.ExecTraceAbort:
            raise QueryFailed("one query at a time, and one that has columns") from None
        except apsw.Error as error:
            raise told(error, str(error), kind=_kind(error)) from None
        finally:
            cursor.close(True)
            connection.set_progress_handler(None)

    async def aclose(self) -> None:
        """Ends the threads and closes the connections."""
        await self._hands.aclose()


@final
class _Watch:
    """Looks at clock and memory while a statement runs."""

    def __init__(self, seconds: float, memory: int) -> None:
        self._deadline = time.monotonic() + seconds
        self._memory = apsw.memory_used() + memory
        self.why = ""
        self._seconds = seconds

    def __call__(self) -> bool:
        if time.monotonic() > self._deadline:
            self.why = stopped_after(self._seconds)
        elif apsw.memory_used() > self._memory:
            self.why = "the query was stopped because it needs too much memory; narrow it"
        return bool(self.why)


def _columns(connection: apsw.Connection, table: str) -> tuple[ColumnInfo, ...]:
    quoted = table.replace('"', '""')
    refers = {
        row[3]: f"{row[2]}.{row[4]}" if row[4] else row[2]
        for row in connection.execute(f'PRAGMA foreign_key_list("{quoted}")')
    }
    try:
        rows: Any = connection.execute(f'PRAGMA table_info("{quoted}")').fetchall()
    except apsw.Error:  # a view over something that is gone
        return ()
    return tuple([ColumnInfo(row[1], row[2] or "", bool(row[5]), refers.get(row[1])) for row in rows])


def _kind(error: apsw.Error) -> bool:
    """Whether the message is about the text of the query."""
    return isinstance(error, apsw.SQLError | apsw.AuthError | apsw.TooBigError)
