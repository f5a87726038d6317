"""Rows of a query and what limits them, from whatever database they come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, final, runtime_checkable

from .schema import Schema

CUT: Final = "…"
"""Ends a text that was cut."""


@final
@dataclass(frozen=True, slots=True)
class Limits:
    """What one query may bring: rows, bytes in all, characters or bytes of one cell."""

    rows: int
    bytes: int = 16_777_216
    cell: int = 65_536


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """What a query brought.

    Attributes:
        columns: name and the database's word for its type ("" where it says none), in order.
        rows: Python values as the driver gives them.
        more: whether there would have been more rows.
        cut: positions (row, column) of cells that were cut.
    """

    columns: tuple[tuple[str, str], ...]
    rows: list[tuple[Any, ...]]
    more: bool = False
    cut: tuple[tuple[int, int], ...] = ()


@runtime_checkable
class QuerySource(Protocol):
    """A database that a grid or chart can read. Its own guards must hold even if the text is hostile."""

    @property
    def dialect(self) -> str:
        """Sqlglot's name of the SQL that is spoken there."""
        ...

    async def schema(self) -> Schema:
        """Reads what there is; system catalogs are left out, what is hidden is named."""
        ...

    async def run(self, sql: str, *, max_rows: int, timeout: float) -> Rows:
        """Runs one query that may only read. Cancelling stops the statement.

        Args:
            sql: checked text.
            max_rows: rows that are fetched; there may be more, see `Rows.more`.
            timeout: seconds for running and fetching.

        Raises:
            QueryFailed: with a text for the model.
        """
        ...

    async def aclose(self) -> None:
        """Closes what it opened; once is enough."""
        ...


@runtime_checkable
class Fetching(Protocol):
    """A source that stops fetching at limits that are given with the query."""

    async def fetch(self, sql: str, limits: Limits, timeout: float) -> Rows:
        """As `QuerySource.run`."""
        ...


def take(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], limits: Limits) -> Rows:
    """Fetches until a limit is reached; the bytes that are counted are those of texts and blobs, 16 for the rest."""
    taken: list[tuple[Any, ...]] = []
    cut: list[tuple[int, int]] = []
    size, more = 0, False
    for row in rows:
        if len(taken) >= limits.rows or size > limits.bytes:
            more = True
            break
        kept = []
        for at, cell in enumerate(row):
            shown, weight, is_cut = _fitting(cell, limits.cell)
            size += weight
            if is_cut:
                cut.append((len(taken), at))
            kept.append(shown)
        taken.append(tuple(kept))
    return Rows(tuple(columns), taken, more, tuple(cut))


def _fitting(cell: Any, limit: int) -> tuple[Any, int, bool]:
    """A cell within the limit, what it counts for (16 for what is no text), and whether it was cut."""
    match cell:
        case str():
            is_cut = len(cell) > limit
            return (cell[:limit] + CUT, limit, True) if is_cut else (cell, len(cell), False)
        case bytes() | bytearray() | memoryview():
            return bytes(cell[:limit]), min(len(cell), limit), len(cell) > limit
        case list() | tuple() | dict():
            weight = _weight(cell, limit)
            return (_start_of(cell, limit) + CUT, limit, True) if weight > limit else (cell, weight, False)
        case _:
            return cell, 16, False


def _weight(cell: Any, limit: int) -> int:
    """Of a list or object, counted no further than to know that it is more than the limit."""
    weight, left = 0, [cell]
    while left and weight <= limit:
        item = left.pop()
        if isinstance(item, dict | list | tuple):
            weight += 16 * len(item)
            if weight <= limit:
                left += [*item, *item.values()] if isinstance(item, dict) else item
        else:
            weight += len(item) if isinstance(item, str | bytes) else 16
    return weight


def _start_of(cell: Any, limit: int) -> str:
    """The beginning of its text, without writing all of it."""
    if isinstance(cell, dict):
        text, items, ends = "", iter(cell.items()), "{}"
    else:
        text, items, ends = "", iter(cell), "[]"
    for item in items:
        name, value = (f"{item[0]}: ", item[1]) if isinstance(cell, dict) else ("", item)
        nested = isinstance(value, dict | list | tuple)
        shown = _start_of(value, limit - len(text)) if nested else str(value)
        text += f"{name}{shown}"[: limit - len(text)] + ", "
        if len(text) >= limit:
            break
    return (ends[0] + text)[:limit]
