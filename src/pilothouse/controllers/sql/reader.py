"""A source behind its gate: what a grid and a chart read through."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from ...errors import ConfigError, ToolError
from ..errors import QueryFailed, QueryRefused
from .gate import Checked, Gate
from .opening import open_source
from .paging import count_sql, page_sql
from .rows import Fetching, Limits, QuerySource, Rows, take
from .schema import Schema

if TYPE_CHECKING:
    from sqlalchemy import Engine

EXPORT_BYTES: Final = 256 * 1024 * 1024
"""Bytes of an export; a whole result is in memory once."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Limits of queries; see `SQLGridController`."""

    tables: Collection[str] | None = None
    query_timeout: float = 10.0
    max_columns: int = 200
    max_cell: int = 65_536
    max_bytes: int = 16_777_216
    max_query: int = 20_000
    functions: Collection[str] = ()
    notes: str = ""
    assume_read_only: bool = False

    def __post_init__(self) -> None:
        for name in ("query_timeout", "max_columns", "max_cell", "max_bytes", "max_query"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"{name} must be positive, not {value!r}")
        for name in ("tables", "functions"):
            if isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a list of names, not one text")


@final
class Reader:
    """Checks queries, runs them in pages, and counts.

    Args:
        source: what `open_source` takes.
        options: the limits.
    """

    def __init__(self, source: str | Path | Engine | QuerySource, options: QueryOptions) -> None:
        self.options = options
        limits = Limits(1, options.max_bytes, options.max_cell)
        self.source, self._owns = open_source(
            source,
            limits=limits,
            tables=options.tables,
            functions=options.functions,
            max_query=options.max_query,
            assume_read_only=options.assume_read_only,
        )
        self.gate = Gate(
            self.source.dialect,
            functions=options.functions,
            max_query=options.max_query,
            max_value=options.max_cell,
        )
        self._schema: Schema | None = None

    async def schema(self, *, fresh: bool = False) -> Schema:
        """What is exposed; read once, and again when it is asked for."""
        if self._schema is None or fresh:
            self._schema = await self.source.schema()
            if not self._owns:
                self._schema = self._schema.only(self.options.tables)
        return self._schema

    async def check(self, sql: str) -> Checked:
        """Lets a query through; one that names an unknown table is judged by a fresh schema.

        Raises:
            QueryRefused: it may not run.
        """
        schema = await self.schema()
        try:
            return self.gate.check(sql, schema)
        except QueryRefused as refused:
            if refused.rule not in ("table", "column"):
                raise
        return self.gate.check(sql, await self.schema(fresh=True))

    async def page(
        self,
        checked: Checked,
        *,
        offset: int = 0,
        limit: int,
        order_by: Sequence[str] = (),
        columns: Sequence[str] = (),
        max_bytes: int | None = None,
        max_cell: int | None = None,
    ) -> Rows:
        """One page; one row more is asked for, to know whether there are more.

        Raises:
            QueryFailed: the database refused it, or it took too long.
            ToolError: too many columns, or two of one name.
        """
        sql = page_sql(
            self.gate, checked.tree, offset=offset, limit=limit + 1, order_by=order_by, columns=columns
        )
        limits = Limits(limit, max_bytes or self.options.max_bytes, max_cell or self.options.max_cell)
        timeout = self.options.query_timeout
        if isinstance(self.source, Fetching):
            rows = await self.source.fetch(sql, limits, timeout)
        else:
            found = await self.source.run(sql, max_rows=limit + 1, timeout=timeout)
            taken = take(found.columns, found.rows, limits)
            rows = Rows(taken.columns, taken.rows, taken.more or found.more, taken.cut)
        self._check_columns([name for name, _ in rows.columns])
        return rows

    def _check_columns(self, names: Sequence[str]) -> None:
        if len(names) > self.options.max_columns:
            raise ToolError(
                f"the result has {len(names)} columns, at most {self.options.max_columns} are shown: name those you need"
            )
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise ToolError(f"two columns are called {name!r}: give them different names with AS")
            seen.add(name)

    async def count(self, checked: Checked) -> int | None:
        """Rows of the whole result; None if that takes too long."""
        with suppress(QueryFailed):
            rows = await self.source.run(
                count_sql(self.gate, checked.tree), max_rows=1, timeout=self.options.query_timeout
            )
            return int(rows.rows[0][0])
        return None

    async def aclose(self) -> None:
        """Closes a source that was opened here."""
        if self._owns:
            await self.source.aclose()
