"""The order and the search of thread records, the same in every store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias, final

from msgspec.structs import replace

from ..errors import ThreadMoved
from ..records import Page, ThreadRecord
from .catalog import checked_limit

Key: TypeAlias = tuple[bool, int, str]
"""Where a record stands in a list: pinned first, then newest first, then by id."""


def key_of(record: ThreadRecord) -> Key:
    """The place of a record."""
    return (not record.pinned, -record.updated_at_ms, record.thread_id)


def cursor_of(record: ThreadRecord) -> str:
    """A cursor that goes on behind a record."""
    return f"{int(record.pinned)}.{record.updated_at_ms}.{record.thread_id}"


def place_of(cursor: str) -> Key:
    """The place that a cursor stands for.

    Raises:
        ValueError: it is not a cursor of ours.
    """
    pinned, dot, rest = cursor.partition(".")
    updated, dot2, thread_id = rest.partition(".")
    if not (dot and dot2 and pinned in ("0", "1") and updated.lstrip("-").isdecimal()):
        raise ValueError(f"{cursor!r} is no cursor of this list")
    return (pinned == "0", -int(updated), thread_id)


def page_of(ordered: Iterable[ThreadRecord], search: str, limit: int) -> Page[ThreadRecord]:
    """The first `limit` records whose title holds `search`, of records that come in order."""
    wanted = search.casefold()
    items: list[ThreadRecord] = []
    for record in ordered:
        if wanted and wanted not in record.title.casefold():
            continue
        if len(items) == limit:
            return Page(tuple(items), cursor_of(items[-1]))
        items.append(record)
    return Page(tuple(items))


def next_revision(stored: ThreadRecord | None, record: ThreadRecord, expected: int | None) -> ThreadRecord:
    """The record as it is to be stored.

    Raises:
        ThreadMoved: what is stored has another revision than `expected`.
    """
    actual = None if stored is None else stored.revision
    if actual != expected:
        raise ThreadMoved(record.thread_id, actual)
    return replace(record, revision=(expected or 0) + 1)


@final
class MemoryThreads:
    """The `ThreadStore` of a journal in memory."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], ThreadRecord] = {}

    async def get(self, tenant: str, thread_id: str) -> ThreadRecord | None:
        """The record, or None."""
        return self._records.get((tenant, thread_id))

    async def put(self, record: ThreadRecord, *, expected: int | None) -> ThreadRecord:
        """Stores it if the revision is `expected` (None: new)."""
        key = (record.tenant, record.thread_id)
        stored = next_revision(self._records.get(key), record, expected)
        self._records[key] = stored
        return stored

    async def list(
        self,
        tenant: str,
        *,
        archived: bool = False,
        search: str = "",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[ThreadRecord]:
        """Pinned first, then by `updated_at_ms`, newest first; the archived ones, or the others."""
        checked_limit(limit)
        behind = None if cursor is None else place_of(cursor)
        found = [
            record
            for record in self._records.values()
            if record.tenant == tenant
            and record.archived == archived
            and (behind is None or key_of(record) > behind)
        ]
        return page_of(sorted(found, key=key_of), search, limit)

    async def delete(self, tenant: str, thread_id: str) -> None:
        """Removes the record; no error if there is none."""
        self._records.pop((tenant, thread_id), None)

    def forget(self, thread_id: str) -> None:
        """Removes the record whatever its tenant: its thread was purged."""
        for key in [key for key in self._records if key[1] == thread_id]:
            del self._records[key]


__all__ = ["Key", "MemoryThreads", "cursor_of", "key_of", "next_revision", "page_of", "place_of"]
