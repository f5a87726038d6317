"""Lists in a SQLite journal: each page is read in order from an index, and costs the same however far down it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import merge
from itertools import islice
from typing import Any

import apsw
import msgspec

from ..records import Page, RunEntry, RunQuery, ThreadRecord
from . import rows
from .catalog_sql import ENTRY, NUMBERS, conditions
from .sqlite_reads import THREADS, one_state, rows_of
from .threads import Key, page_of


def list_runs(
    connection: apsw.Connection, query: RunQuery, before: int | None, limit: int, now_ms: int
) -> Page[RunEntry]:
    """One page, newest first; what it costs does not depend on how far down it is (RC-79)."""
    with one_state(connection):
        lists: list[list[tuple[Any, ...]]] = [
            _entries(connection, " AND ".join(where), (*values, limit + 1))
            for where, values in conditions(query, before)
        ]
    found = list(islice(merge(*lists, key=lambda row: -row[0]), limit + 1))
    items = tuple(rows.entry_of(row[1:], now_ms) for row in found[:limit])
    return Page(items, str(found[limit - 1][0]) if len(found) > limit else None)


def _entries(connection: apsw.Connection, where: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(ENTRY.format(where=where), values).fetchall()
    except UnicodeDecodeError:
        # One of them is damaged: it is told as such, and the others as they are (RC-67).
        numbers: Any = connection.execute(NUMBERS.format(where=where), values).fetchall()
        return [_entry(connection, no) for (no,) in numbers]


def _entry(connection: apsw.Connection, no: int) -> tuple[Any, ...]:
    with suppress(UnicodeDecodeError, IndexError):
        return connection.execute(ENTRY.format(where="no = ?"), (no, 1)).fetchall()[0]
    names: Any = connection.execute("SELECT CAST(run_id AS BLOB) FROM runs WHERE no = ?", (no,)).fetchall()
    name = names[0][0].decode(errors="replace") if names else f"(row {no})"
    return (no, name, *rows.NO_ENTRY)


def list_threads(
    connection: apsw.Connection,
    tenant: str,
    archived: bool,
    search: str,
    behind: Key | None,
    limit: int,
) -> Page[ThreadRecord]:
    """One page, in the order of the index; a search reads on until the page is full."""
    unpinned, age, thread_id = behind or (-1, 0, "")
    with rows_of(connection, "threads", tenant, archived, unpinned, age, thread_id) as found:
        return page_of(_sound(body for (body,) in found), search, limit)


def _sound(bodies: Iterable[bytes]) -> Iterator[ThreadRecord]:
    """A record that is damaged is left out: its thread is listed from its runs, as one that never had any (JR-30)."""
    for body in bodies:
        with suppress(msgspec.DecodeError):
            yield THREADS.decode(body)


__all__ = ["list_runs", "list_threads"]
