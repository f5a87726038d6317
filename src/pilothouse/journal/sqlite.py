"""The journal of one machine: a SQLite file, synced, written by one thread and read by a few."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, final

from msgspec.structs import replace

from ..cluster import Relay
from ..contracts import ThreadStore
from ..errors import ConfigError, JournalUnavailable, RunNotFound
from ..messages import UNSET, ArtifactRef, Unset
from ..records import (
    Appended,
    ClaimRequest,
    Created,
    Head,
    JournalStats,
    Owner,
    Page,
    Record,
    RecordPage,
    Registration,
    RunEntry,
    RunHead,
    RunQuery,
    RunSummary,
    ThreadRecord,
    Verification,
)
from . import sqlite_lists as lists
from . import sqlite_reads as reads
from .blobs import reference
from .catalog import checked_after, checked_limit, position_of
from .sqlite_changes import PIECE_BYTES, Undoing
from .sqlite_file import DURABILITIES, Durability, missing_place
from .sqlite_store import Access
from .threads import place_of
from .verify import verify


@final
class SQLiteJournal:
    """Implements `contracts.Journal` in one file, for any number of processes of one machine.

    The file is opened at first use (or by `open`), in the writer's thread; nothing of SQLite runs on an event loop. A
    process that never calls `aclose` loses nothing that was confirmed.

    Args:
        path: the file; it is created where it is missing, its folder is not.
        durability: what is confirmed survives the loss of power (`full`), only that of the process (`normal`), or
            perhaps neither (`off`).
        busy_timeout: seconds to wait for another process's transaction.

    Raises:
        ConfigError: an option that cannot work.
        JournalUnavailable: the path cannot be a file; the text says what to do.
    """

    immediate = False
    relay: Relay | None = None

    def __init__(
        self, path: str | os.PathLike[str], *, durability: Durability = "full", busy_timeout: float = 5.0
    ) -> None:
        if not str(path) or ":memory:" in str(path):
            raise ConfigError("path must name a file: use MemoryJournal for a journal without one")
        if durability not in DURABILITIES:
            raise ConfigError(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}")
        if busy_timeout < 0:
            raise ConfigError(f"busy_timeout must not be negative: {busy_timeout}")
        self.path = Path(path).absolute()
        if why := missing_place(self.path):
            raise JournalUnavailable(f"cannot open {self.path}: {why}")
        self._access = Access(self.path, durability, busy_timeout)
        self._changes = self._access.changes
        self._clock = self._access.clock
        self.threads: ThreadStore = SQLiteThreads(self._access)

    async def open(self) -> Self:
        """Opens the file now, to hear of what is wrong with it; otherwise the first use does.

        Raises:
            JournalUnavailable: it cannot be opened or written; the text says what to do.
            JournalVersion: it is not ours, or a newer Pilothouse's; it was left untouched.
        """
        await self._access.read(_nothing)
        return self

    # Writing

    async def create(
        self,
        registration: Registration,
        records: Sequence[Record],
        *,
        summary: RunSummary,
        claim: ClaimRequest | None,
        expect_head: str | Unset | None = UNSET,
    ) -> Created:
        """Registers a run with its first facts, claims it and moves the thread's head (JR-1)."""
        if claim is not None:
            self._clock.tell(claim.now_ms)
        work = Undoing(self._changes.create, registration, tuple(records), summary, claim, expect_head)
        return await self._access.write(work, _size(records))

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """Compare and append; returns once it is durable (JR-2, JR-3).

        A cancelled caller leaves; the append is completed all the same (RC-14).
        """
        work = self._changes.appending(run_id, records, expected, fence, summary)
        return await self._access.writer.submit(work, _size(records))

    def hand_over(
        self,
        run_id: str,
        records: Sequence[Record],
        *,
        expected: Head,
        fence: int,
        summary: RunSummary,
        tell: Callable[[Appended | None, BaseException | None], None],
    ) -> None:
        """An append for who waits without a task of their own: `tell` hears on this loop once it is durable, or refused.

        Raises:
            JournalUnavailable: the journal is closed.
        """
        work = self._changes.appending(run_id, records, expected, fence, summary)
        self._access.writer.hand_over(work, _size(records), tell)

    # Reading

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 500, kinds: frozenset[str] | None = None
    ) -> RecordPage:
        """Facts with seq > after, ascending; at most `limit` and 4 MiB."""
        checked_limit(limit)
        checked_after(after)
        return await self._access.read(lambda db: reads.read_page(db, run_id, after, limit, kinds))

    async def find(self, run_id: str, event_id: str) -> Record | None:
        """The fact with that event id, or None."""
        return await self._access.read(lambda db: reads.find_event(db, run_id, event_id))

    async def head(self, run_id: str) -> RunHead | None:
        """The run without its facts, or None."""
        return await self._access.read(lambda db: reads.read_head(db, run_id, self._clock.now_ms()))

    async def thread_head(self, thread_id: str) -> str | None:
        """The run created last in a thread, or None."""
        return await self._access.read(lambda db: reads.read_thread_head(db, thread_id))

    async def list(self, query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> Page[RunEntry]:
        """Newest first by order of creation."""
        checked_limit(limit)
        before = position_of(cursor)
        return await self._access.read(
            lambda db: lists.list_runs(db, query, before, limit, self._clock.now_ms())
        )

    async def changed(self, run_id: str, after: int, *, timeout: float) -> int:
        """Waits until the head is beyond `after` or `timeout` seconds are over; returns the head's seq."""

        async def seq() -> int:
            found = await self._access.read(lambda db: reads.read_seq(db, run_id))
            if found is None:
                raise RunNotFound(run_id)
            return found

        return await self._access.watch.wait(run_id, after, seq, timeout)

    # Ownership

    async def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """Takes ownership: the fence rises by one. An owner whose process is dead is no obstacle (JR-18)."""
        self._clock.tell(request.now_ms)
        return await self._access.write(partial(self._changes.claim, run_id, request))

    async def renew(self, owner: Owner, *, ttl_ms: int, now_ms: int) -> None:
        """Prolongs the leases of all runs of an owner: one row, however many they are."""
        self._clock.tell(now_ms)
        await self._access.write(partial(self._changes.renew, owner, ttl_ms, now_ms))

    async def release(self, owner: Owner, run_id: str | None = None) -> None:
        """Gives up one run, or all of an owner; the fence stays. Who owns nothing waits for nothing."""
        writer = self._access.writer
        writer.check_open()
        if run_id is not None or not writer.idle or not self._changes.leave(owner):
            await self._access.write(partial(self._changes.release, owner, run_id))

    # Artifacts

    async def put_blob(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes under their SHA-256; equal bytes once. It is there when its last piece is (JR-19)."""
        ref = reference(data, media_type)
        no = await self._access.write(partial(self._changes.begin_blob, ref.digest, len(data)))
        if no is None:
            return ref
        for index, start in enumerate(range(0, len(data), PIECE_BYTES)):
            piece = data[start : start + PIECE_BYTES]
            await self._access.write(partial(self._changes.add_piece, no, index, piece), len(piece))
        await self._access.write(partial(self._changes.end_blob, no))
        return ref

    async def get_blob(self, digest: str) -> bytes:
        """The bytes."""
        return await self._access.read(lambda db: reads.read_blob(db, digest))

    # Care

    async def verify(self, run_id: str | None = None) -> Verification:
        """Checks chain, head, state and blobs of one run or of all, and with all the file itself."""
        found = await verify(self, run_id)
        if run_id is None:
            problems = await self._access.read(reads.file_problems)
            found = replace(found, problems=(*found.problems, *problems))
        return found

    async def purge(self, thread_id: str) -> None:
        """Removes a thread's facts, unshared blobs and record, from the file too; a mark of each run id stays."""
        await self._access.write(partial(self._changes.purge, thread_id))

    async def backup(self, target: str | os.PathLike[str]) -> None:
        """Writes a copy of the whole journal, as of now, to a new file; work goes on meanwhile.

        Raises:
            JournalUnavailable: `target` exists, or cannot be written.
        """
        await self._access.read(lambda db: reads.back_up(db, Path(target)))

    def stats(self) -> JournalStats:
        """Counters since the journal was made."""
        access = self._access
        changes, store = access.changes, access.store
        return JournalStats(
            changes.facts,
            changes.appends,
            access.writer.commits,
            store.retries,
            store.busy_waits,
            changes.bytes,
            access.writer.waiting,
        )

    async def aclose(self) -> None:
        """Writes what was handed over, copies the log back into the file, closes. Idempotent."""
        await self._access.writer.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


@final
class SQLiteThreads:
    """The `ThreadStore` of a SQLite journal: the same file, the same writer."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def get(self, tenant: str, thread_id: str) -> ThreadRecord | None:
        """The record, or None."""
        return await self._access.read(lambda db: reads.read_thread(db, tenant, thread_id))

    async def put(self, record: ThreadRecord, *, expected: int | None) -> ThreadRecord:
        """Stores it if the revision is `expected` (None: new)."""
        return await self._access.write(partial(self._access.changes.put_thread, record, expected))

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
        return await self._access.read(
            lambda db: lists.list_threads(db, tenant, archived, search, behind, limit)
        )

    async def delete(self, tenant: str, thread_id: str) -> None:
        """Removes the record; no error if there is none."""
        await self._access.write(partial(self._access.changes.delete_thread, tenant, thread_id))


def _size(records: Sequence[Record]) -> int:
    return sum([len(record.body) for record in records])


def _nothing(_db: object) -> None:
    """Opens the file on its way."""


__all__ = ["SQLiteJournal"]
