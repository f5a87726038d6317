"""Appends to a Postgres journal: what arrives together is one statement, one round trip, one commit.

The statement moves the head of each run that is where its writer thought, and adds the facts of those; the others are
looked at one by one afterwards. As a transaction of the server it is all or nothing for the batch, and the condition
on each run row isolates batch-mates from each other (JR-22).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, Final, final

import asyncpg

from ..errors import DuplicateConflict, FenceConflict, JournalError, RunNotFound, SeqConflict
from ..records import Appended, Head, Record, RunSummary
from .blobs import named_in
from .catalog import kind_of, twice_in
from .postgres_link import Link

BATCH: Final = 500
"""Appends of one statement."""

BATCH_BYTES: Final = 8 * 1024 * 1024

FACT_COLUMNS: Final = 8


@final
class Offer:
    """An append that waits."""

    __slots__ = (
        "done",
        "expected",
        "facts",
        "fault",
        "fence",
        "head",
        "records",
        "run_id",
        "size",
        "summary",
    )

    def __init__(
        self,
        run_id: str,
        records: Sequence[Record],
        expected: Head,
        fence: int,
        summary: RunSummary,
    ) -> None:
        self.run_id = run_id
        self.records = records
        self.facts = fact_values(records)
        self.expected = expected
        self.head = head_behind(records, expected)
        self.fault = fault_of(run_id, records, expected)
        self.fence = fence
        self.summary = summary
        self.size = sum(len(record.body) for record in records)
        self.done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

    def settle(self, result: Appended | BaseException) -> None:
        """Tells who waits, if anybody still does."""
        if self.done.done():
            return
        if isinstance(result, BaseException):
            self.done.set_exception(result)
        else:
            self.done.set_result(result)


@final
class Appends:
    """The queue of appends and the task that empties it; there is none while nothing waits.

    Attributes:
        facts, appends, bytes: what was stored since the journal was opened.
    """

    def __init__(self, link: Link, on_stored: Callable[[str, int], None]) -> None:
        self.facts = self.appends = self.bytes = 0
        self._on_stored = on_stored
        self._link = link
        self._queue: deque[Offer] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Appends that no statement has taken yet."""
        return len(self._queue)

    def submit(self, offer: Offer) -> asyncio.Future[Appended]:
        """Queues an append; it is completed whatever happens to its waiter (RC-14)."""
        self._queue.append(offer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(
                self._serve(), name="pilothouse-journal-appends"
            )
        return offer.done

    async def drain(self) -> None:
        """Waits until nothing waits."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))

    async def _serve(self) -> None:
        while self._queue:
            batch = self._take()
            try:
                await self._write(batch)
            except BaseException as error:
                for offer in batch:
                    offer.settle(error)
                if not isinstance(error, Exception):
                    raise

    def _take(self) -> list[Offer]:
        """The next offers, at most one a run: the second one's head is where the first one ends."""
        batch: list[Offer] = []
        runs: set[str] = set()
        size = 0
        later: list[Offer] = []
        while self._queue and len(batch) < BATCH and size < BATCH_BYTES:
            offer = self._queue.popleft()
            if offer.run_id in runs:
                later.append(offer)
                continue
            runs.add(offer.run_id)
            batch.append(offer)
            size += offer.size
        self._queue.extendleft(reversed(later))
        batch.sort(key=lambda offer: offer.run_id)  # one order of locks for all processes
        return batch

    async def _write(self, batch: list[Offer]) -> None:
        try:
            moved = await self._move(batch)
        except JournalError:
            if len(batch) == 1:
                raise
            for offer in batch:  # one of them may be the reason: none of the batch was stored
                await self._alone(offer)
            return
        for offer in batch:
            if offer.run_id in moved:
                self.count(offer.run_id, offer.records, offer.head.seq)
                offer.settle(Appended(offer.head))
            else:
                await self._explain(offer)

    async def _explain(self, offer: Offer) -> None:
        try:
            offer.settle(await self._link.read(lambda db: self._why_not(db, offer)))
        except Exception as error:  # noqa: BLE001 - belongs to that offer alone
            offer.settle(error)

    async def _alone(self, offer: Offer) -> None:
        try:
            await self._write([offer])
        except Exception as error:  # noqa: BLE001 - belongs to that offer alone
            offer.settle(error)

    def count(self, run_id: str, records: Sequence[Record], seq: int) -> None:
        """Counts what was stored, and says that the head moved."""
        self.facts += len(records)
        self.appends += 1
        self.bytes += sum(len(record.body) for record in records)
        self._on_stored(run_id, seq)

    async def _move(self, batch: list[Offer]) -> set[str]:
        """One statement; the ids of the runs whose heads it moved."""
        batch = [offer for offer in batch if offer.fault is None]
        if not batch:
            return set()
        wanted = [_wanted(offer) for offer in batch]
        facts = [(offer.run_id, *fact) for offer in batch for fact in offer.facts]
        uses = {
            (offer.run_id, digest)
            for offer in batch
            for record in offer.records
            for digest, _ in named_in(record.body)
        }
        columns = [
            *columns_of(wanted, 12),
            *columns_of(facts, 1 + FACT_COLUMNS),
            *columns_of(sorted(uses), 2),
        ]
        rows = await self._link.write(lambda db: db.fetch(self._link.sql["append"], *columns), single=True)
        return {row[0] for row in rows}

    async def _why_not(self, db: asyncpg.Connection, offer: Offer) -> Appended:
        """What became of an append that moved nothing."""
        run = await db.fetchrow(self._link.sql["run_to_append"], offer.run_id)
        if run is None:
            raise RunNotFound(offer.run_id)
        no, seq, chain, fence = run
        ids = [record.event_id.encode() for record in offer.records]
        found = await db.fetch(self._link.sql["stored_events"], no, ids)
        stored = {row[0]: (row[1], sha256(row[2]).hexdigest()) for row in found}
        if offer.records and all(
            stored.get(event_id) == (record.lane, record.digest)
            for event_id, record in zip(ids, offer.records, strict=True)
        ):
            return Appended(Head(seq, chain.hex()), duplicate=True)
        if fence != offer.fence:
            raise FenceConflict(offer.run_id, offer.fence, fence)
        if Head(seq, chain.hex()) != offer.expected:
            raise SeqConflict(offer.run_id, offer.expected.seq, seq)
        known = [event_id.decode() for event_id in ids if event_id in stored]
        if not known and offer.fault is not None:
            raise offer.fault
        raise DuplicateConflict(offer.run_id, known[0])


def fact_values(records: Sequence[Record]) -> list[tuple[Any, ...]]:
    """The columns of facts, from `seq` to `body`."""
    return [
        (
            record.seq,
            record.at_ms,
            record.lane,
            record.fence,
            kind_of(record),
            record.event_id.encode(),
            bytes.fromhex(record.chain),
            record.body,
        )
        for record in records
    ]


def fault_of(run_id: str, records: Sequence[Record], expected: Head) -> Exception | None:
    """Why no head can be followed by these records: an event id twice, or numbers that do not go on from it.

    It is raised only where nothing else is to be said, as by a store that looks in this order.
    """
    for seq, record in enumerate(records, expected.seq + 1):
        if record.seq != seq:
            return ValueError(f"record {record.event_id} has seq {record.seq} where {seq} comes next")
    if records and (twice := twice_in(records)):
        return DuplicateConflict(run_id, twice)
    return None


def head_behind(records: Sequence[Record], expected: Head) -> Head:
    """Where the head will be."""
    return Head(records[-1].seq, records[-1].chain) if records else expected


def _wanted(offer: Offer) -> tuple[Any, ...]:
    summary = offer.summary
    return (
        offer.run_id,
        offer.expected.seq,
        _bytes_of(offer.expected.chain),
        offer.fence,
        offer.head.seq,
        bytes.fromhex(offer.head.chain),
        summary.state,
        summary.status,
        summary.resting,
        summary.loss_recorded,
        summary.takeovers,
        summary.updated_at_ms,
    )


def _bytes_of(chain: str) -> bytes:
    """A chain value that a caller expects; what is none matches nothing."""
    try:
        return bytes.fromhex(chain)
    except ValueError:
        return b""


def columns_of(values: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """Rows as columns, for `unnest`."""
    return [list(column) for column in zip(*values, strict=True)] if values else [[] for _ in range(width)]


__all__ = ["FACT_COLUMNS", "Appends", "Offer", "columns_of", "fact_values", "fault_of", "head_behind"]
