"""Any other database, through SQLAlchemy: each query in a transaction of its own that can only read, always rolled back.

The rights of the account are the real fence; functions with side effects can be reached from a SELECT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ...errors import ConfigError
from ..errors import QueryFailed
from .failures import stopped_after, told
from .hands import Hands, timed
from .rows import Limits, Rows, take
from .schema import ColumnInfo, Schema, TableInfo

if TYPE_CHECKING:
    from sqlalchemy import Engine

DIALECTS: Final = {
    "postgresql": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "oracle": "oracle",
    "mssql": "tsql",
    "snowflake": "snowflake",
    "bigquery": "bigquery",
    "redshift": "redshift",
    "clickhouse": "clickhouse",
    "trino": "trino",
}
"""SQLAlchemy's names and sqlglot's."""


@final
@dataclass(frozen=True, slots=True)
class _Manner:
    """How one kind of database reads: what begins a transaction that can only read, and how rows are fetched."""

    begin: Callable[[float, str], Sequence[str]]
    fetch: Callable[[Any, str, Limits], Rows]


@final
class _Link:
    """What a thread holds: the connection whose statement runs, to be stopped from elsewhere."""

    __slots__ = ("live",)

    def __init__(self) -> None:
        self.live: Any = None

    def interrupt(self) -> None:
        """Asks the driver to stop the statement; a driver that cannot leaves it to the server's own time limit."""
        live = self.live
        for name in ("cancel_safe", "cancel", "interrupt"):
            if live is not None and (stop := getattr(live, name, None)) is not None:
                stop()
                return


@final
class AlchemySource:
    """A database behind an Engine or a URL.

    Args:
        engine: an Engine (stays open), or a URL.
        limits: what one query may bring.
        tables: what is exposed; None is every table and view of the default schema.
        functions: functions of the user's that are allowed; without any, names are looked up among the built-in ones.
        assume_read_only: the account cannot write; for databases without read-only transactions.

    Raises:
        ConfigError: no driver, no such database, or one without read-only transactions.
    """

    def __init__(
        self,
        engine: str | Engine,
        *,
        limits: Limits,
        tables: Collection[str] | None = None,
        functions: Collection[str] = (),
        assume_read_only: bool = False,
    ) -> None:
        import sqlalchemy

        self._owns = isinstance(engine, str)
        try:
            self._engine: Engine = (
                sqlalchemy.create_engine(engine, pool_pre_ping=True) if isinstance(engine, str) else engine
            )
        except (ImportError, sqlalchemy.exc.ArgumentError) as error:
            raise ConfigError(f"cannot open the database: {error}") from None
        name: str = self._engine.dialect.name
        if name not in DIALECTS:
            raise ConfigError(
                f"cannot read {name}: its SQL is not known here; give a QuerySource of your own"
            )
        self.dialect: str = DIALECTS[name]
        if name not in _MANNERS and not assume_read_only:
            raise ConfigError(
                f"cannot be sure that {name} only reads, for it has no read-only transactions: give an account "
                "that cannot write, and say assume_read_only=True"
            )
        self._name = name
        self._limits = limits
        self._tables = None if tables is None else frozenset(tables)
        self._functions = bool(functions)
        self._schema = ""
        self._hands = Hands(
            _Link,
            interrupt=lambda link: link.interrupt(),
            close_it=lambda _: None,
            is_broken=lambda _: False,
            name="pilothouse-sql",
        )

    async def schema(self) -> Schema:
        """Tables, views and columns of the default schema."""
        return await timed(self._hands, lambda _: self._read_schema(), 30.0)

    def _read_schema(self) -> Schema:
        import sqlalchemy

        try:
            found = sqlalchemy.inspect(self._engine)
            self._schema = found.default_schema_name or ""
            views = set(found.get_view_names())
            with suppress(NotImplementedError, AttributeError):
                views |= set(found.get_materialized_view_names())
            names = [*sorted(found.get_table_names()), *sorted(views)]
            kinds: Any = sqlalchemy.engine.reflection.ObjectKind.ANY
            columns: Any = found.get_multi_columns(kind=kinds)
            keys: Any = found.get_multi_pk_constraint()
            foreign: Any = found.get_multi_foreign_keys()
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise told(error, "", kind=False) from None
        tables = []
        for name in names:
            key = set((keys.get((None, name)) or {}).get("constrained_columns") or ())
            refers = {
                column: f"{one['referred_table']}.{target}"
                for one in foreign.get((None, name)) or ()
                for column, target in zip(one["constrained_columns"], one["referred_columns"], strict=False)
            }
            described = [
                ColumnInfo(one["name"], str(one["type"]), one["name"] in key, refers.get(one["name"]))
                for one in columns.get((None, name)) or ()
            ]
            kind: Any = "view" if name in views else "table"
            tables.append(TableInfo(name, tuple(described), kind, self._schema or None))
        return Schema(self.dialect, tables).only(self._tables)

    async def run(self, sql: str, *, max_rows: int, timeout: float) -> Rows:
        """Runs one statement; see `QuerySource`."""
        return await self.fetch(sql, Limits(max_rows, self._limits.bytes, self._limits.cell), timeout)

    async def fetch(self, sql: str, limits: Limits, timeout: float) -> Rows:
        """The same with limits of its own."""
        return await timed(self._hands, lambda link: self._fetch(link, sql, limits, timeout), timeout)

    def _fetch(self, link: _Link, sql: str, limits: Limits, timeout: float) -> Rows:
        import sqlalchemy

        try:
            with self._engine.connect() as connection:
                raw: Any = connection.connection.driver_connection
                cursor: Any = connection.connection.cursor()
                try:
                    link.live = raw
                    connection.connection.rollback()
                    manner = self._manner()
                    for statement in manner.begin(timeout, self._schema if self._functions else ""):
                        cursor.execute(statement)
                    return manner.fetch(cursor, sql, limits)
                finally:
                    link.live = None
                    with suppress(Exception):
                        connection.connection.rollback()
        except sqlalchemy.exc.SQLAlchemyError as error:  # no connection
            raise told(error, "", kind=False) from None
        except self._engine.dialect.loaded_dbapi.Error as error:
            state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
            if state in ("57014", "70100"):
                raise QueryFailed(stopped_after(timeout)) from None
            diagnosis = getattr(error, "diag", None)
            message = getattr(diagnosis, "message_primary", None) or str(
                error.args[-1] if error.args else error
            )
            raise told(error, message, kind=state is None, sure=str(state)[:2] == "42") from None

    def _manner(self) -> _Manner:
        """Known once there is a connection: a URL of MySQL may lead to MariaDB, whose time limit is called otherwise."""
        name = "mariadb" if getattr(self._engine.dialect, "is_mariadb", False) else self._name
        return _MANNERS.get(name, _PLAIN)

    async def aclose(self) -> None:
        """Ends the threads; an Engine that was given stays open."""
        await self._hands.aclose()
        if self._owns:
            self._engine.dispose()


# Manners


def _described(cursor: Any) -> list[tuple[str, str]]:
    return [(column[0], "") for column in cursor.description]


def _fetch_plain(cursor: Any, sql: str, limits: Limits) -> Rows:
    cursor.execute(sql)
    if cursor.description is None:
        raise QueryFailed("one query at a time, and one that only reads")
    return take(_described(cursor), iter(cursor.fetchone, None), limits)


def _fetch_mysql(cursor: Any, sql: str, limits: Limits) -> Rows:
    """In parentheses only a query can stand: DDL would end the transaction by itself, and then run (MariaDB 10.11)."""
    return _fetch_plain(cursor, f"(\n{sql}\n)", limits)


_PG_TYPES: Final = {
    16: "bool", 20: "bigint", 21: "smallint", 23: "integer", 700: "real", 701: "double", 1082: "date", 1083: "time",
    1114: "timestamp", 1184: "timestamptz", 1186: "interval", 1700: "numeric", 2950: "uuid",
}  # fmt: skip
_PG_TEXTS: Final = {
    25: "text",
    1042: "char",
    1043: "varchar",
    114: "json",
    3802: "jsonb",
    142: "xml",
    19: "name",
}
_PG_BYTES: Final = 17


def _fetch_postgres(cursor: Any, sql: str, limits: Limits) -> Rows:
    """Reads through a cursor: its grammar takes one query that reads, whatever the text is.

    Values are cut in the server: one cell may have a gigabyte there.
    """
    _declare(cursor, sql)
    cursor.execute("FETCH 0 FROM pilothouse")
    described = [(column[0], column[1]) for column in cursor.description]
    cursor.execute("CLOSE pilothouse")
    cut = ", ".join(
        f"{_pg_bounded(f'c{at}', oid, limits.cell)} AS {_quoted(name)}"
        for at, (name, oid) in enumerate(described)
    )
    names = ", ".join(f"c{at}" for at in range(len(described)))
    _declare(cursor, f"SELECT {cut} FROM (\n{sql}\n) AS q({names})")
    columns = [(name, _PG_TYPES.get(oid) or _PG_TEXTS.get(oid) or "") for name, oid in described]
    return take(columns, _pg_rows(cursor, limits.rows + 1), limits)


def _pg_rows(cursor: Any, wanted: int) -> Any:
    """Rows in blocks, so that what is fetched never exceeds the limits by more than one block."""
    left = wanted
    while left > 0:
        cursor.execute(f"FETCH {min(left, 100)} FROM pilothouse")
        rows = cursor.fetchall()
        yield from rows
        if len(rows) < min(left, 100):
            return
        left -= len(rows)


def _declare(cursor: Any, sql: str) -> None:
    text = f"DECLARE pilothouse NO SCROLL CURSOR FOR {sql}"
    if type(cursor).__module__.partition(".")[0] == "psycopg":
        # The simple protocol, its default, runs several statements in one text; a prepared one is one statement.
        cursor.execute(text, prepare=True)
    else:
        cursor.execute(text)


def _pg_bounded(column: str, oid: int, cell: int) -> str:
    if oid in _PG_TYPES:
        return column
    if oid in _PG_TEXTS:
        return f"left({column}::text, {cell + 1})"
    if oid == _PG_BYTES:
        return f"substr({column}, 1, {cell + 1})"
    return f"CASE WHEN pg_column_size({column}) <= {cell * 16} THEN {column} END"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_MANNERS: Final[Mapping[str, _Manner]] = {
    "postgresql": _Manner(
        # With nothing but pg_catalog on the path, a function's name cannot mean one that somebody added.
        lambda seconds, schema: (
            "SET TRANSACTION READ ONLY",
            f"SET LOCAL statement_timeout = {max(1, round(seconds * 1000))}",
            "SET LOCAL standard_conforming_strings = on",
            f"SET LOCAL search_path = pg_catalog{f', {_quoted(schema)}' if schema else ''}",
        ),
        _fetch_postgres,
    ),
    "mysql": _Manner(
        lambda seconds, _: (
            f"SET SESSION max_execution_time = {max(1, round(seconds * 1000))}",
            "SET SESSION TRANSACTION READ ONLY",
            "START TRANSACTION READ ONLY",
        ),
        _fetch_mysql,
    ),
    "mariadb": _Manner(
        lambda seconds, _: (
            f"SET SESSION max_statement_time = {seconds:g}",
            "SET SESSION TRANSACTION READ ONLY",
            "START TRANSACTION READ ONLY",
        ),
        _fetch_mysql,
    ),
    "oracle": _Manner(lambda _seconds, _schema: ("SET TRANSACTION READ ONLY",), _fetch_plain),
}
_PLAIN: Final = _Manner(lambda _seconds, _schema: (), _fetch_plain)
