"""The journal of several machines: a Postgres schema, shared by any number of processes. Needs the extra `postgres`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Final, Self, TypeVar, final

import asyncpg
import msgspec

from ..cluster import Relay
from ..contracts import ThreadStore
from ..core.canonical import chain_start, encode
from ..errors import (
    ArtifactNotFound,
    JournalBusy,
    JournalCorrupt,
    OwnedElsewhere,
    RunConflict,
    RunNotFound,
    ThreadConflict,
    ThreadMoved,
    Unsupported,
)
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
from . import rows
from .blobs import named_in, reference
from .catalog import PAGE_BYTES, checked_after, checked_limit, is_live, position_of
from .catalog_sql import conditions
from .chain import chained, check_head, check_tail, linked, record_page
from .postgres_appends import FACT_COLUMNS, Appends, Offer, columns_of, fact_values, fault_of, head_behind
from .postgres_link import Link
from .postgres_notify import Notifications
from .postgres_relay import PostgresRelay
from .postgres_watch import LoopWatch
from .threads import key_of, next_revision, page_of, place_of
from .verify import verify

T = TypeVar("T")

_BY_SERVER: Final = 0
"""The present in rows of Postgres: a lease comes as the milliseconds that it has left."""

_THREADS_AT_ONCE: Final = 501

_thread_decoder: Final = msgspec.json.Decoder(ThreadRecord)


@final
class PostgresJournal:
    """Implements `contracts.Journal` in one schema of a Postgres database.

    It connects at first use (or by `open`), makes its schema if there is none, and belongs to the event loop that used
    it first. Leases are judged by the server's clock alone. Durability is the server's: `synchronous_commit` is left as
    it is.

    Args:
        dsn: `postgresql://user:password@host:port/database`.
        schema: where its tables are, and nobody else's.
        pool_size: connections at most; waiting for other processes takes one more.
    """

    immediate = False

    def __init__(self, dsn: str, *, schema: str = "pilothouse", pool_size: int = 8) -> None:
        self._link = Link(dsn, schema, pool_size)
        self._sql = self._link.sql
        self._notifications = Notifications(self._link)
        self._watch = LoopWatch(self._link, self._notifications)
        self._appends = Appends(self._link, self._watch.moved)
        self._writing: set[asyncio.Task[Any]] = set()
        self.threads: ThreadStore = PostgresThreads(self._link)
        self._relay = PostgresRelay(self._link, self._notifications)
        self.relay: Relay | None = self._relay

    async def open(self) -> Self:
        """Connects now, to hear of what is wrong; otherwise the first use does.

        Raises:
            JournalUnavailable: the server cannot be reached, or refuses us; the text says what to do.
            JournalVersion: the schema is another program's, or a newer Pilothouse's; it was left untouched.
        """
        await self._link.pool()
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
        """Registers a run with its first facts, claims it and moves the thread's head, in one statement (JR-1)."""
        self._link.check_open()
        first = rows.first_head(registration)
        head, fault = head_behind(records, first), fault_of(registration.spec.run_id, records, first)
        if fault is not None:
            return await self._why_not_created(registration, expect_head, fault)
        fence = records[-1].fence if records else 1  # an imported run keeps its fence
        spec = encode(registration.spec)
        owner, ttl_ms = (None, 0) if claim is None else (claim.owner, claim.ttl_ms)
        facts = fact_values(records)
        bodies = [spec, *[record.body for record in records]]
        values = (
            *rows.run_values(registration, head, fence, None if owner is None else owner.id),
            summary.state,
            summary.status,
            summary.resting,
            summary.loss_recorded,
            summary.takeovers,
            summary.updated_at_ms,
            expect_head is UNSET,
            None if expect_head is UNSET else expect_head,
            spec,
            *columns_of(facts, FACT_COLUMNS),
            sorted({digest for body in bodies for digest, _ in named_in(body)}),
            *(("", 0, "") if owner is None else (owner.machine, owner.pid, owner.started)),
            ttl_ms,
        )
        return await self._to_the_end(self._create(values, registration, records, head, summary, expect_head))

    async def _create(
        self,
        values: tuple[Any, ...],
        registration: Registration,
        records: Sequence[Record],
        head: Head,
        summary: RunSummary,
        expect_head: str | Unset | None,
    ) -> Created:
        try:
            no = await self._link.write(lambda db: db.fetchval(self._sql["create"], *values), single=True)
        except asyncpg.UniqueViolationError:  # the run id: nothing of the statement was done
            no = None
        if no is None:
            return await self._why_not_created(registration, expect_head)
        run_id, fence, owner = registration.spec.run_id, values[13], values[14]
        self._appends.count(run_id, records, head.seq)
        return Created(RunHead(registration, head, summary, fence, owner, None if owner is None else True))

    async def _why_not_created(
        self, registration: Registration, expect_head: str | Unset | None, fault: Exception | None = None
    ) -> Created:
        run_id, thread_id = registration.spec.run_id, registration.spec.thread_id
        known = await self.head(run_id)
        if known is not None:
            if known.registration.identity != registration.identity:
                raise RunConflict(run_id)
            return Created(known, existing=True)
        if await self._value("is_purged", run_id):
            raise RunConflict(run_id)
        actual = await self.thread_head(thread_id)
        if fault is not None and expect_head in (UNSET, actual):
            raise fault
        if actual == expect_head:  # it was, a moment ago: somebody else's run is gone again
            raise JournalBusy(
                f"cannot start run {run_id} because thread {thread_id} was changed at the same time"
            )
        raise ThreadConflict(thread_id, actual)

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """Compare and append; returns once it is committed (JR-2, JR-3).

        A cancelled caller leaves; the append is completed all the same (RC-14).
        """
        self._link.check_open()
        return await self._appends.submit(Offer(run_id, tuple(records), expected, fence, summary))

    # Reading

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 500, kinds: frozenset[str] | None = None
    ) -> RecordPage:
        """Facts with seq > after, ascending; at most `limit` and 4 MiB. One statement, so one state."""
        checked_limit(limit)
        checked_after(after)
        if kinds is not None:
            return await self._read_kinds(run_id, after, limit, sorted(kinds))
        found = await self._rows("facts", run_id, after, limit + 2, PAGE_BYTES)
        if not found or after >= found[0][0]:
            return RecordPage(())
        last, last_chain, spec_digest = found[0][:3]
        facts = _facts(found, 3)
        previous = chain_start(run_id, spec_digest)
        if after:
            if not facts or facts[0][0] != after:
                raise JournalCorrupt(run_id, after, "it is missing")
            previous = facts.pop(0)[6].hex()
        whole = list(takewhile(_has_body, facts))
        page = record_page(chained(run_id, whole, after, previous), limit)
        if page.more or len(whole) < len(facts):
            return RecordPage(page.records, more=True)
        check_tail(run_id, page.records[-1].seq if page.records else after, last)
        check_head(run_id, page.records[-1].chain, last, last_chain)
        return page

    async def _read_kinds(self, run_id: str, after: int, limit: int, kinds: Sequence[str]) -> RecordPage:
        found = await self._rows("facts_of_kinds", run_id, after, limit + 1, PAGE_BYTES, kinds)
        if not found:
            return RecordPage(())
        last, last_chain, spec_digest, tail = found[0][:4]
        if tail is None:
            raise JournalCorrupt(run_id, last, "it is missing")
        check_head(run_id, tail.hex(), last, last_chain)
        start = chain_start(run_id, spec_digest)
        facts = _facts(found, 4)
        whole = list(takewhile(_has_body, facts))
        page = record_page((linked(run_id, row, start) for row in whole), limit)
        return RecordPage(page.records, more=page.more or len(whole) < len(facts))

    async def find(self, run_id: str, event_id: str) -> Record | None:
        """The fact with that event id, or None."""
        found = await self._rows("fact_of_event", run_id, event_id.encode())
        if not found:
            return None
        (fact,) = _facts(found, 1)
        return linked(run_id, fact, chain_start(run_id, found[0][0]))

    async def head(self, run_id: str) -> RunHead | None:
        """The run without its facts, or None."""
        found = await self._rows("head", run_id)
        return rows.head_of(tuple(found[0])[1:], _BY_SERVER) if found else None

    async def thread_head(self, thread_id: str) -> str | None:
        """The run created last in a thread, or None."""
        found: str | None = await self._value("thread_head", thread_id)
        return found

    async def list(self, query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> Page[RunEntry]:
        """Newest first by order of creation."""
        checked_limit(limit)
        asked = [
            (self._sql["entries"].format(where=_numbered(" AND ".join(where)), limit=limit + 1), values)
            for where, values in conditions(query, position_of(cursor))
        ]

        async def work(db: asyncpg.Connection) -> list[list[Any]]:
            return [await db.fetch(statement, *values) for statement, values in asked]

        lists = await self._link.read(work)
        found = list(islice(merge(*lists, key=lambda row: -row[0]), limit + 1))
        items = tuple(rows.entry_of(tuple(row)[1:], _BY_SERVER) for row in found[:limit])
        return Page(items, str(found[limit - 1][0]) if len(found) > limit else None)

    async def changed(self, run_id: str, after: int, *, timeout: float) -> int:
        """Waits until the head is beyond `after` or `timeout` seconds are over; returns the head's seq."""
        self._link.check_open()

        return await self._watch.wait(run_id, after, timeout)

    # Ownership

    async def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """Takes ownership: the fence rises by one. Leases count by the server's clock (JR-24)."""
        owner = request.owner

        async def work(db: asyncpg.Connection) -> RunHead:
            await db.execute(self._sql["lock_run"], run_id)
            row = await db.fetchrow(self._sql["head"], run_id)
            if row is None:
                raise RunNotFound(run_id)
            head = rows.head_of(tuple(row)[1:], _BY_SERVER)
            if head.owner_alive and head.owner != owner.id:
                raise OwnedElsewhere(run_id, head.owner or "")
            await db.execute(self._sql["take_over"], row[0], owner.id)
            await db.execute(
                self._sql["lease"], owner.id, owner.machine, owner.pid, owner.started, request.ttl_ms
            )
            return msgspec.structs.replace(head, fence=head.fence + 1, owner=owner.id, owner_alive=True)

        return await self._to_the_end(self._link.write(work))

    async def renew(self, owner: Owner, *, ttl_ms: int, now_ms: int) -> None:
        """Prolongs the leases of all runs of an owner: one row, however many they are."""
        await self._change("renew", owner.id, ttl_ms)

    async def release(self, owner: Owner, run_id: str | None = None) -> None:
        """Gives up one run, or all of an owner; the fence stays."""
        if run_id is not None:
            await self._change("release_run", run_id, owner.id)
            return
        await self._change("release_all", owner.id)
        await self._change("forget_owners", owner.id)

    # Artifacts

    async def put_blob(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes under their SHA-256; equal bytes once."""
        ref = reference(data, media_type)
        if not await self._value("has_blob", ref.digest):
            await self._change("put_blob", ref.digest, data)
        return ref

    async def get_blob(self, digest: str) -> bytes:
        """The bytes."""
        found: bytes | None = await self._value("blob", digest)
        if found is None:
            raise ArtifactNotFound(digest)
        return found

    # Care

    async def verify(self, run_id: str | None = None) -> Verification:
        """Checks chain, head, state and blobs of one run or of all."""
        return await verify(self, run_id)

    async def purge(self, thread_id: str) -> None:
        """Removes a thread's facts, unshared blobs and record; a mark of each run id stays."""

        async def work(db: asyncpg.Connection) -> list[str]:
            sql = self._sql
            await db.execute(sql["remove_thread_head"], thread_id)  # first: it is the lock of the thread
            doomed = await db.fetch(sql["runs_to_purge"], thread_id)
            for row in doomed:
                summary = rows.summary_of(row[1], tuple(row)[3:9])
                if is_live(summary, rows.alive(row[9], tuple(row)[10:14], _BY_SERVER)):
                    raise Unsupported(
                        f"cannot purge thread {thread_id} while run {row[1]} is live", "thread_busy"
                    )
            numbers, ids = [row[0] for row in doomed], [row[1] for row in doomed]
            named = [row[0] for row in await db.fetch(sql["blobs_of_runs"], numbers)]
            for step in ("remove_uses", "remove_commands", "remove_facts", "remove_specs", "remove_runs"):
                await db.execute(sql[step], numbers)
            await db.execute(sql["mark_purged"], ids)
            await db.execute(sql["remove_blobs"], named)
            await db.execute(sql["remove_threads"], thread_id)
            return ids

        await self._to_the_end(self._link.write(work))

    def stats(self) -> JournalStats:
        """Counters since the journal was made."""
        appends, link = self._appends, self._link
        return JournalStats(
            appends.facts, appends.appends, link.commits, link.retries, 0, appends.bytes, appends.waiting
        )

    async def aclose(self) -> None:
        """Writes what was handed over, then closes its connections. Idempotent."""
        self._link.refuse_more()
        await self._appends.drain()
        while self._writing:
            await asyncio.wait(self._writing)
        await self._watch.aclose()
        await self._relay.aclose()
        await self._notifications.aclose()
        await self._link.aclose()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Finishes what was begun also where its caller is cancelled (RC-14)."""
        self._link.check_open()
        task = asyncio.get_running_loop().create_task(work, name="pilothouse-journal-write")
        self._writing.add(task)
        task.add_done_callback(self._written)
        return await asyncio.shield(task)

    def _written(self, task: asyncio.Task[Any]) -> None:
        self._writing.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; where nobody waits it is nobody's

    async def _change(self, name: str, *values: Any) -> None:
        await self._to_the_end(self._link.write(lambda db: db.execute(self._sql[name], *values), single=True))

    async def _rows(self, name: str, *values: Any) -> Sequence[Any]:
        found: Sequence[Any] = await self._link.read(lambda db: db.fetch(self._sql[name], *values))
        return found

    async def _value(self, name: str, *values: Any) -> Any:
        return await self._link.read(lambda db: db.fetchval(self._sql[name], *values))


@final
class PostgresThreads:
    """The `ThreadStore` of a Postgres journal: the same schema."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._sql = link.sql

    async def get(self, tenant: str, thread_id: str) -> ThreadRecord | None:
        """The record, or None."""
        return await self._link.read(lambda db: self._get(db, tenant, thread_id))

    async def put(self, record: ThreadRecord, *, expected: int | None) -> ThreadRecord:
        """Stores it if the revision is `expected` (None: new)."""

        async def work(db: asyncpg.Connection) -> ThreadRecord:
            stored = next_revision(await self._get(db, record.tenant, record.thread_id), record, expected)
            unpinned, age, _ = key_of(stored)
            values = [
                stored.tenant,
                stored.thread_id,
                stored.revision,
                stored.archived,
                int(unpinned),
                age,
                encode(stored),
            ]
            done = (
                await db.fetchval(self._sql["add_thread"], *values)
                if expected is None
                else await db.fetchval(self._sql["change_thread"], *values, expected)
            )
            if not done:  # somebody was faster since it was looked at
                now = await self._get(db, record.tenant, record.thread_id)
                raise ThreadMoved(record.thread_id, None if now is None else now.revision)
            return stored

        return await self._link.write(work)

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
        behind = (-1, 0, "") if cursor is None else place_of(cursor)

        async def work(db: asyncpg.Connection) -> Page[ThreadRecord]:
            found: list[ThreadRecord] = []
            place: tuple[int, int, str] = (int(behind[0]), behind[1], behind[2])
            while True:
                batch = await db.fetch(self._sql["threads"], tenant, archived, *place, _THREADS_AT_ONCE)
                records = [_thread_decoder.decode(row[0]) for row in batch]
                found += page_of(records, search, len(records) + 1).items
                if len(found) > limit or len(batch) < _THREADS_AT_ONCE:
                    return page_of(found, "", limit)
                unpinned, age, thread_id = key_of(records[-1])
                place = (int(unpinned), age, thread_id)

        return await self._link.read(work)

    async def delete(self, tenant: str, thread_id: str) -> None:
        """Removes the record; no error if there is none."""
        await self._link.write(
            lambda db: db.execute(self._sql["remove_thread"], tenant, thread_id), single=True
        )

    async def _get(self, db: asyncpg.Connection, tenant: str, thread_id: str) -> ThreadRecord | None:
        body = await db.fetchval(self._sql["thread"], tenant, thread_id)
        return None if body is None else _thread_decoder.decode(body)


def _facts(found: Sequence[Any], skip: int) -> list[tuple[Any, ...]]:
    """The facts of rows that begin with columns of their run; a run without facts has one row without."""
    facts = [tuple(row)[skip:] for row in found]
    return [(*fact[:5], fact[5].decode(), *fact[6:]) for fact in facts if fact[0] is not None]


def _has_body(fact: tuple[Any, ...]) -> bool:
    return fact[7] is not None


def _numbered(condition: str) -> str:
    """`?` as Postgres counts them; a `+` is a hint for SQLite alone."""
    pieces = condition.replace("+", "").split("?")
    return "".join(f"{piece}${number}" for number, piece in enumerate(pieces[:-1], 1)) + pieces[-1]


__all__ = ["PostgresJournal"]
