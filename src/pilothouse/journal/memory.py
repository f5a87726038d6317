"""The journal of a process that needs none afterwards: the whole contract, fences included, without durability.

No method but `changed` ever suspends (`immediate`), so a caller's append is part of its own step. Records are kept as
they come; the ended runs that a thread has gone on from are kept as bytes (`packed.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Self, final

from ..cluster import Relay
from ..contracts import ThreadStore
from ..core.canonical import chain_start, encode
from ..errors import (
    ArtifactNotFound,
    DuplicateConflict,
    FenceConflict,
    JournalUnavailable,
    OwnedElsewhere,
    RunConflict,
    RunNotFound,
    SeqConflict,
    ThreadConflict,
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
    Verification,
)
from .blobs import named_in, reference
from .catalog import (
    PAGE_BYTES,
    admits,
    checked_after,
    checked_limit,
    entry_of,
    is_live,
    kind_of,
    position_of,
    twice_in,
)
from .liveness import LeaseClock
from .packed import pack, unpack
from .threads import MemoryThreads
from .verify import verify

_body = attrgetter("body")
_event_id = attrgetter("event_id")
_seq = attrgetter("seq")


def _ids_of(records: Sequence[Record]) -> dict[str, int]:
    """Event ids with their seqs, in order."""
    if len(records) == 1:
        return {records[0].event_id: records[0].seq}
    return dict(zip(map(_event_id, records), map(_seq, records), strict=True))


@final
class _Run:
    """A run as it is kept: everything about it and its facts."""

    __slots__ = (
        "_facts",
        "_ids",
        "_packed",
        "fence",
        "head",
        "number",
        "owner",
        "registration",
        "summary",
        "waiting",
    )

    def __init__(
        self,
        number: int,
        registration: Registration,
        summary: RunSummary,
        head: Head,
        owner: str | None,
        fence: int,
    ) -> None:
        self.number = number
        self.registration = registration
        self.summary = summary
        self.head = head
        self._facts: list[Record] = []
        self._ids: dict[str, int] = {}  # event id → seq
        self._packed = b""
        self.fence = fence
        self.owner = owner
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def facts(self) -> list[Record]:
        """Its records in order; read back, where they are packed."""
        return self._facts if not self._packed else unpack(self.registration, self._packed)

    @property
    def ids(self) -> dict[str, int]:
        """The seq of each event id."""
        return self._ids if not self._packed else {record.event_id: record.seq for record in self.facts}

    def fits(self, ids: Mapping[str, int], count: int) -> bool:
        """Whether `count` event ids are all different, and none is known. Facts that were packed are read back for it."""
        if self._packed:  # an end was thought to be the last
            self._facts, self._ids, self._packed = self.facts, self.ids, b""
        return len(ids) == count and self._ids.keys().isdisjoint(ids)

    def extend(self, records: Sequence[Record], ids: Mapping[str, int]) -> None:
        """Takes the next records, at least one, which fit; `ids` are theirs with their seqs, in order."""
        seq, last = self.head.seq + 1, records[-1]
        if records[0].seq != seq or (
            len(records) > 1 and [*ids.values()] != [*range(seq, seq + len(records))]
        ):
            raise ValueError(f"records {[*ids.values()]} where {seq} comes next")
        self._ids.update(ids)
        self._facts += records
        self.head = Head(last.seq, last.chain)

    def pack(self) -> None:
        """Keeps the facts as bytes, if it has its end: a quarter of the memory, and nothing for the collector."""
        if self.summary.state == "terminal" and not self._packed:
            self._packed = pack(self._facts)
            self._facts, self._ids = [], {}


@final
class MemoryJournal:
    """Implements `contracts.Journal` in the memory of one event loop."""

    immediate = True

    def __init__(self) -> None:
        self._threads = MemoryThreads()
        self.threads: ThreadStore = self._threads
        self._runs: dict[str, _Run] = {}
        self._order: list[_Run | None] = []  # by creation number; None where a run was purged
        self._by_thread: dict[str, list[_Run]] = {}
        self._purged: set[str] = set()
        self._leases: dict[str, int] = {}  # owner → when its leases end
        self._blobs: dict[str, bytes] = {}
        self._clock = LeaseClock()
        self._relay: Relay | None = None
        self._facts = self._appends = self._bytes = 0
        self._closed = False

    @property
    def relay(self) -> Relay | None:
        """What the controllers over this journal talk through."""
        if self._relay is None:
            from .memory_relay import MemoryRelay

            self._relay = MemoryRelay(self._runs, self._leases, self._clock)
        return self._relay

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
        if self._closed:
            raise _closed("create a run")
        spec = registration.spec
        if (known := self._runs.get(spec.run_id)) is not None:
            if known.registration.identity != registration.identity:
                raise RunConflict(spec.run_id)
            return Created(self._head_of(known), existing=True)
        if spec.run_id in self._purged:
            raise RunConflict(spec.run_id)
        siblings = self._by_thread.get(spec.thread_id)
        if expect_head is not UNSET:
            actual = siblings[-1].registration.spec.run_id if siblings else None
            if actual != expect_head:
                raise ThreadConflict(spec.thread_id, actual)
        fence = records[-1].fence if records else 1  # an imported run keeps its fence
        owner = None if claim is None else claim.owner.id
        start = "" if records else chain_start(spec.run_id, registration.spec_digest)
        run = _Run(len(self._order), registration, summary, Head(0, start), owner, fence)
        if records:
            run.extend(records, _ids_of(records))
        self._count(records)
        self._runs[spec.run_id] = run
        self._order.append(run)
        if siblings is None:
            self._by_thread[spec.thread_id] = [run]
        else:
            siblings[-1].pack()  # who goes on from it has read it
            siblings.append(run)
        if claim is None:
            return Created(RunHead(registration, run.head, summary, fence))
        self._lease(claim)
        return Created(RunHead(registration, run.head, summary, fence, owner, True))

    async def append(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """Compare and append: all or none (JR-2)."""
        return self.append_now(run_id, records, expected=expected, fence=fence, summary=summary)

    def append_now(
        self, run_id: str, records: Sequence[Record], *, expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """`append` without a coroutine; see `runs.writer`. 1 µs for one record."""
        if self._closed:
            raise _closed("append")
        if (run := self._runs.get(run_id)) is None:
            raise RunNotFound(run_id)
        ids = _ids_of(records)
        if fence != run.fence or expected != run.head or not run.fits(ids, len(records)):
            return self._known(run, records, expected, fence)
        run.summary = summary
        if records:
            run.extend(records, ids)
        self._count(records)
        if run.waiting:
            self._wake(run)
        if summary.state == "terminal":
            run.owner = None
        return Appended(run.head)

    def _count(self, records: Sequence[Record]) -> None:
        self._appends += 1
        self._facts += len(records)
        self._bytes += sum(map(len, map(_body, records)))

    def _known(self, run: _Run, records: Sequence[Record], expected: Head, fence: int) -> Appended:
        """What does not fit was stored already, or is in conflict with what was."""
        if self._stored(run, records):
            return Appended(run.head, duplicate=True)
        run_id = run.registration.spec.run_id
        if fence != run.fence:
            raise FenceConflict(run_id, fence, run.fence)
        if expected != run.head:
            raise SeqConflict(run_id, expected.seq, run.head.seq)
        known = next((record.event_id for record in records if record.event_id in run.ids), None)
        raise DuplicateConflict(run_id, known or twice_in(records))

    @staticmethod
    def _stored(run: _Run, records: Sequence[Record]) -> bool:
        """Whether exactly these records are there already: event id, digest and lane."""
        for record in records:
            seq = run.ids.get(record.event_id)
            if seq is None:
                return False
            stored = run.facts[seq - 1]
            if stored.digest != record.digest or stored.lane != record.lane:
                return False
        return bool(records)

    @staticmethod
    def _wake(run: _Run) -> None:
        for waiter in run.waiting:
            if not waiter.done():
                waiter.set_result(None)
        run.waiting.clear()

    # Reading

    async def read(
        self, run_id: str, *, after: int = 0, limit: int = 500, kinds: frozenset[str] | None = None
    ) -> RecordPage:
        """Facts with seq > after, ascending; at most `limit` and 4 MiB."""
        checked_limit(limit)
        checked_after(after)
        if (run := self._runs.get(run_id)) is None:
            return RecordPage(())
        page: list[Record] = []
        size = 0
        for record in islice(run.facts, after, None):
            if kinds is not None and kind_of(record) not in kinds:
                continue
            size += len(record.body)
            if len(page) == limit or (page and size > PAGE_BYTES):
                return RecordPage(tuple(page), more=True)
            page.append(record)
        return RecordPage(tuple(page))

    async def find(self, run_id: str, event_id: str) -> Record | None:
        """The fact with that event id, or None."""
        run = self._runs.get(run_id)
        seq = None if run is None else run.ids.get(event_id)
        return None if run is None or seq is None else run.facts[seq - 1]

    async def head(self, run_id: str) -> RunHead | None:
        """The run without its facts, or None."""
        run = self._runs.get(run_id)
        return None if run is None else self._head_of(run)

    async def thread_head(self, thread_id: str) -> str | None:
        """The run created last in a thread, or None."""
        runs = self._by_thread.get(thread_id)
        return runs[-1].registration.spec.run_id if runs else None

    async def list(self, query: RunQuery, *, cursor: str | None = None, limit: int = 50) -> Page[RunEntry]:
        """Newest first by order of creation."""
        checked_limit(limit)
        items: list[RunEntry] = []
        last = 0
        for run in self._newest_first(query.thread_id, position_of(cursor)):
            head = self._head_of(run)
            if not admits(query, head):
                continue
            if len(items) == limit:
                return Page(tuple(items), str(last))
            items.append(entry_of(head))
            last = run.number
        return Page(tuple(items))

    def _newest_first(self, thread_id: str | None, before: int | None) -> Iterator[_Run]:
        """Runs (of a thread) created before number `before`; a late page costs what the first costs (RC-79)."""
        runs: Sequence[_Run | None]
        if thread_id is None:
            runs, end = self._order, before
        else:
            runs = found = self._by_thread.get(thread_id, [])
            end = None if before is None else bisect_left(found, before, key=lambda run: run.number)
        for index in range(min(len(runs), len(runs) if end is None else end) - 1, -1, -1):
            if (run := runs[index]) is not None:
                yield run

    async def changed(self, run_id: str, after: int, *, timeout: float) -> int:
        """Waits until the head is beyond `after` or `timeout` seconds are over; returns the head's seq."""
        run = self._runs.get(run_id)
        if run is None:
            raise RunNotFound(run_id)
        if run.head.seq <= after:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            run.waiting.append(waiter)
            await asyncio.wait((waiter,), timeout=timeout)
            if not waiter.done():
                run.waiting.remove(waiter)
        return run.head.seq

    # Ownership

    async def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """Takes ownership: the fence rises by one."""
        if self._closed:
            raise _closed("claim a run")
        if (run := self._runs.get(run_id)) is None:
            raise RunNotFound(run_id)
        self._clock.tell(request.now_ms)
        owner = run.owner
        if owner not in (None, request.owner.id) and self._leases.get(owner, 0) > request.now_ms:
            raise OwnedElsewhere(run_id, owner)
        run.fence += 1
        run.owner = request.owner.id
        self._lease(request)
        return self._head_of(run)

    async def renew(self, owner: Owner, *, ttl_ms: int, now_ms: int) -> None:
        """Prolongs the leases of all runs of an owner: one entry, however many they are."""
        self._clock.tell(now_ms)
        if owner.id in self._leases:
            self._leases[owner.id] = now_ms + ttl_ms

    async def release(self, owner: Owner, run_id: str | None = None) -> None:
        """Gives up one run, or all of an owner; the fence stays."""
        if run_id is not None:
            run = self._runs.get(run_id)
            if run is not None and run.owner == owner.id:
                run.owner = None
            return
        for run in self._runs.values():
            if run.owner == owner.id:
                run.owner = None
        self._leases.pop(owner.id, None)

    def _lease(self, request: ClaimRequest) -> None:
        self._clock.tell(request.now_ms)
        self._leases[request.owner.id] = request.now_ms + request.ttl_ms

    def _head_of(self, run: _Run) -> RunHead:
        owner = run.owner
        alive = None if owner is None else self._leases.get(owner, 0) > self._clock.now_ms()
        return RunHead(run.registration, run.head, run.summary, run.fence, owner, alive)

    # Artifacts

    async def put_blob(self, data: bytes, media_type: str) -> ArtifactRef:
        """Keeps bytes under their SHA-256; equal bytes once."""
        if self._closed:
            raise _closed("store an artifact")
        ref = reference(data, media_type)
        self._blobs.setdefault(ref.digest, bytes(data))
        return ref

    async def get_blob(self, digest: str) -> bytes:
        """The bytes."""
        try:
            return self._blobs[digest]
        except KeyError:
            raise ArtifactNotFound(digest) from None

    # Care

    async def verify(self, run_id: str | None = None) -> Verification:
        """Checks chain, head and blobs of one run or of all."""
        return await verify(self, run_id)

    async def purge(self, thread_id: str) -> None:
        """Removes a thread's facts, unshared blobs and record; a mark of each run id stays."""
        doomed = self._by_thread.get(thread_id, [])
        for run in doomed:
            if is_live(run.summary, self._head_of(run).owner_alive):
                raise Unsupported(
                    f"cannot purge thread {thread_id} while run {run.registration.spec.run_id} is live",
                    "thread_busy",
                )
        named = {digest for run in doomed for digest in _artifacts_of(run)}
        for run in doomed:
            del self._runs[run.registration.spec.run_id]
            self._order[run.number] = None
            self._purged.add(run.registration.spec.run_id)
            self._wake(run)
        self._by_thread.pop(thread_id, None)
        self._threads.forget(thread_id)
        named &= self._blobs.keys()
        if named:
            for run in self._runs.values():
                named.difference_update(_artifacts_of(run))
            for digest in named:
                del self._blobs[digest]

    def stats(self) -> JournalStats:
        """Counters; each append is its own commit, and nothing ever waits."""
        return JournalStats(self._facts, self._appends, commits=self._appends, bytes=self._bytes)

    async def aclose(self) -> None:
        """Refuses writes from now on; what is kept stays readable as long as the object lives."""
        self._closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _closed(action: str) -> JournalUnavailable:
    return JournalUnavailable(f"cannot {action} while the journal is closed")


def _artifacts_of(run: _Run) -> Iterator[str]:
    for record in run.facts:
        for digest, _ in named_in(record.body):
            yield digest
    for digest, _ in named_in(encode(run.registration.spec)):
        yield digest


__all__ = ["MemoryJournal"]
