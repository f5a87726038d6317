"""Lists in a SQLite journal: each page is read in order from an index, and costs the same however far down it is."""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Any

import apsw

from ..records import Page, RunEntry, RunQuery, ThreadRecord
from . import rows
from .catalog_sql import ENTRY, conditions
from .sqlite_reads import THREADS, one_state, rows_of
from .threads import Key, page_of


def list_runs(
    connection: apsw.Connection, query: RunQuery, before: int | None, limit: int, now_ms: int
) -> Page[RunEntry]:
    """One page, newest first; what it costs does not depend on how far down it is (RC-79)."""
    with one_state(connection):
        lists: list[list[tuple[Any, ...]]] = [
            connection.execute(ENTRY.format(where=" AND ".join(where)), (*values, limit + 1)).fetchall()
            for where, values in conditions(query, before)
        ]
    found = list(islice(merge(*lists, key=lambda row: -row[0]), limit + 1))
    items = tuple(rows.entry_of(row[1:], now_ms) for row in found[:limit])
    return Page(items, str(found[limit - 1][0]) if len(found) > limit else None)


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
        return page_of((THREADS.decode(body) for (body,) in found), search, limit)


__all__ = ["list_runs", "list_threads"]
