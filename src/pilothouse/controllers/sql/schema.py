"""What a database has, as far as a model may know it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, final

from ...errors import ConfigError, ToolError
from ..texts import one_line

SCHEMA_TEXT: Final = 32 * 1024
"""Bytes of a schema's text; a larger one has names only."""

_FOLDED: Final = frozenset({"sqlite", "duckdb", "tsql", "mysql"})
"""Dialects in which a quoted name is found in any case."""


def fold(name: str, *, quoted: bool, dialect: str) -> str:
    """A name as the database compares it.

    MySQL's tables may differ by case; the text that runs has the catalog's own spelling, so folding is safe there.
    """
    if dialect in _FOLDED:
        return name.lower()
    if quoted:
        return name
    return name.upper() if dialect in ("oracle", "snowflake") else name.lower()


@final
@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column: its name, its type in the database's words, whether it is a key's part, what it refers to."""

    name: str
    type: str = ""
    primary: bool = False
    refers_to: str | None = None


@final
@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table or view that is exposed. `schema` is written before its name in what runs, None leaves it out."""

    name: str
    columns: tuple[ColumnInfo, ...]
    kind: Literal["table", "view"] = "table"
    schema: str | None = None


@final
class Schema:
    """The exposed tables of a source, and the names of everything else that is in it.

    Attributes:
        dialect: sqlglot's name of the SQL spoken there.
        tables: exposed tables and views, by name.
        others: names of objects that are not exposed; no part of a query may be called like one.
    """

    __slots__ = ("_found", "_taken", "dialect", "others", "tables")

    def __init__(self, dialect: str, tables: Iterable[TableInfo], others: Iterable[str] = ()) -> None:
        self.dialect = dialect
        self.tables: Mapping[str, TableInfo] = {table.name: table for table in tables}
        self.others = frozenset(others)
        self._found = {fold(name, quoted=True, dialect=dialect): info for name, info in self.tables.items()}
        self._taken = {name.lower() for name in (*self.tables, *self.others)}

    def find(self, name: str, *, quoted: bool, schema: str | None = None) -> TableInfo | None:
        """The exposed table that a query means by this name; None if it means none."""
        info = self._found.get(fold(name, quoted=quoted, dialect=self.dialect))
        if info is not None and schema is not None and schema.lower() != (info.schema or "main").lower():
            return None
        return info

    def is_taken(self, name: str) -> bool:
        """Whether an object of the database is called so, in any case."""
        return name.lower() in self._taken

    def __iter__(self) -> Iterator[TableInfo]:
        return iter(self.tables.values())

    def only(self, names: Collection[str] | None) -> Schema:
        """The same with nothing but these tables exposed; None keeps all.

        Raises:
            ConfigError: one of them does not exist; names those that do.
        """
        if names is None:
            return self
        wanted = [self.find(name, quoted=True) or self.find(name, quoted=False) for name in names]
        if missing := [name for name, found in zip(names, wanted, strict=True) if found is None]:
            raise ConfigError(
                f"tables: there is no {missing[0]!r}; there are {', '.join(self.tables) or 'none'}"
            )
        kept = [table for table in wanted if table is not None]
        hidden = set(self.tables) - {table.name for table in kept}
        return Schema(self.dialect, kept, self.others | hidden)

    def text(self, notes: str = "", table: str | None = None) -> str:
        """The schema in words for a model: no row, no sample value; at most 32 KiB.

        Raises:
            ToolError: there is no such table.
        """
        head = [f"SQL dialect: {self.dialect}"]
        if notes:
            head.append(f"Notes: {one_line(notes)}")
        if table is not None:
            info = self.find(table, quoted=True) or self.find(table, quoted=False)
            if info is None:
                raise ToolError(f"there is no table {table!r}; there are {one_line(', '.join(self.tables))}")
            return _bounded("\n".join([*head, _described(info)]))
        whole = "\n".join([*head, *[_described(info) for info in self]])
        if len(whole.encode()) <= SCHEMA_TEXT:
            return whole
        return _bounded("\n".join([*head, "Tables (ask for one by name to see its columns):", *self.tables]))


def _described(info: TableInfo) -> str:
    columns = ", ".join(
        f"{one_line(column.name)} {one_line(column.type)}".strip()
        + (" primary key" if column.primary else "")
        + (f" references {one_line(column.refers_to)}" if column.refers_to else "")
        for column in info.columns
    )
    return f"{info.kind} {one_line(info.name)} ({columns})"


def _bounded(text: str) -> str:
    data = text.encode()
    if len(data) <= SCHEMA_TEXT:
        return text
    return data[: SCHEMA_TEXT - 40].decode(errors="ignore") + "\n… (more is left out)"
