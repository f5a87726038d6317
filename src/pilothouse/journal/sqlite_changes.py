"""What is written to a SQLite journal: one method a change, each inside the writer's transaction.

Every one checks before it writes. The transaction holds the write lock, so what was checked stays true, and a refused
change leaves its batch-mates alone (JR-11). An append takes two statements and one a fact (JR-28); a registration three,
one a fact and one for its claim.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar, final

import apsw
import msgspec

from ..core.canonical import encode, settled
from ..errors import (
    DuplicateConflict,
    FenceConflict,
    OwnedElsewhere,
    RunConflict,
    RunNotFound,
    SeqConflict,
    ThreadConflict,
    Unsupported,
)
from ..messages import UNSET, Unset
from ..records import (
    Appended,
    ClaimRequest,
    Created,
    Head,
    Owner,
    Record,
    Registration,
    RunHead,
    RunSummary,
    ThreadRecord,
)
from . import rows
from .blobs import named_in
from .catalog import is_live, kind_of, twice_in
from .liveness import LeaseClock
from .statements import named_statements
from .threads import key_of, next_revision

T = TypeVar("T")

SQL: Final = named_statements("sqlite.sql")

SEQ_BITS: Final = 24
"""A fact's key is its run's number shifted by this, plus its seq."""

PIECE_BYTES: Final = 1024 * 1024
"""Bytes of a blob in one row (JR-19)."""

SWEEP_MS: Final = 3_600_000
"""A blob that no fact names after an hour was left by a crash (run-controller §3.15)."""

OWNER_KEPT_MS: Final = 24 * 3_600_000
"""An owner without runs is forgotten a day after its lease ended."""

LEASE_SLACK: Final = 32
"""A claim leaves its owner's lease as it is where that ends by no more than this part of it earlier: a second of 30."""

_thread_decoder: Final = msgspec.json.Decoder(ThreadRecord)


OF_ONE: Final = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError, apsw.RangeError)
"""SQLite's errors of one statement; after any other the whole transaction is in doubt."""


class Undoing(partial[T]):
    """A change that undoes itself where it fails, so that it needs no savepoint."""


@final
class Changes:
    """For the writer's thread alone, but for the counters.

    Attributes:
        facts, appends, bytes: what was stored since the journal was opened.
        moved: heads of runs that the present transaction moves.
        purged: something was removed, and the log still holds it.
    """

    def __init__(self, clock: LeaseClock) -> None:
        self.facts = self.appends = self.bytes = 0
        self.moved: dict[str, int] = {}
        self.purged = False
        self._clock = clock
        self._db: apsw.Connection
        self._owned: dict[str, set[str]] = {}  # runs by owner, of those that were claimed here
        self._left: deque[str] = deque()  # owners to be forgotten in a commit that is made anyway

    def connect(self, connection: apsw.Connection) -> None:
        """Says where to write."""
        self._db = connection

    # Runs

    def create(
        self,
        registration: Registration,
        records: Sequence[Record],
        summary: RunSummary,
        claim: ClaimRequest | None,
        expect_head: str | Unset | None,
    ) -> Created:
        """Registration, first facts, claim; the thread's head is the run created last (JR-1)."""
        spec = registration.spec
        run_id = spec.run_id
        ((known, purged, last),) = self._rows("place_to_create", run_id, spec.thread_id)
        if known == registration.identity:
            return Created(self._head(run_id), existing=True)
        if known is not None or purged:
            raise RunConflict(run_id)
        if expect_head is not UNSET and expect_head != last:
            raise ThreadConflict(spec.thread_id, last)
        head = _head_behind(rows.first_head(registration), records)
        fence = records[-1].fence if records else 1  # an imported run keeps its fence
        owner = None if claim is None else claim.owner.id
        no = self._insert(
            "add_run",
            *rows.run_values(registration, head, fence, owner),
            *_summary_values(summary),
        )
        try:
            _, body = settled(spec)  # as it was registered, so that nothing is to be looked for in it
            self._run("add_spec", no, body)
            self._add_facts(no, run_id, records)
            self._note_blobs(no, [body, *[record.body for record in records]])
            if claim is not None:
                self._lease(claim, run_id)
        except BaseException as error:
            if undoable(error):
                self._erase(no)
            raise
        self._count(run_id, records, head)
        alive = None if owner is None else True
        return Created(RunHead(registration, head, summary, fence, owner, alive))

    def appending(
        self, run_id: str, records: Sequence[Record], expected: Head, fence: int, summary: RunSummary
    ) -> Undoing[Appended]:
        """An append to be run in a transaction; what the caller does to its list afterwards is nobody's business."""
        return Undoing(self.append, run_id, tuple(records), expected, fence, summary)

    def append(
        self, run_id: str, records: Sequence[Record], expected: Head, fence: int, summary: RunSummary
    ) -> Appended:
        """Compare and append (JR-2)."""
        if (row := self._row("run_to_append", run_id)) is None:
            raise RunNotFound(run_id)
        no, seq, chain, actual_fence, status, state, owner = row
        actual = Head(seq, chain.hex())
        if fence != actual_fence or expected != actual:
            if self._stored(no, records):
                return Appended(actual, duplicate=True)
            if fence != actual_fence:
                raise FenceConflict(run_id, fence, actual_fence)
            raise SeqConflict(run_id, expected.seq, seq)
        head = _head_behind(actual, records)
        try:
            self._add_facts(no, run_id, records)
        except DuplicateConflict:
            if self._stored(no, records):
                return Appended(actual, duplicate=True)
            raise
        self._note_blobs(no, [record.body for record in records])
        moved = (
            head.seq,
            bytes.fromhex(head.chain),
            summary.updated_at_ms,
            summary.resting,
            summary.loss_recorded,
            summary.takeovers,
        )
        if (summary.status, summary.state) == (status, state):  # its indexes stay untouched then
            self._run("move_head", *moved, no)
        else:
            self._run("move_head_and_status", *moved, summary.status, summary.state, no)
            if summary.state == "terminal":
                self._disown(owner, run_id)
        self._count(run_id, records, head)
        return Appended(head)

    def _add_facts(self, no: int, run_id: str, records: Sequence[Record]) -> None:
        """Adds all of them or, where one cannot be stored, none."""
        base = no << SEQ_BITS
        values = [
            (
                base | record.seq,
                record.at_ms,
                record.lane,
                record.fence,
                kind_of(record),
                record.event_id,
                bytes.fromhex(record.chain),
                record.body,
            )
            for record in records
        ]
        try:
            self._db.executemany(SQL["add_fact"], values)
        except (*OF_ONE, TypeError, ValueError) as error:  # taken already, or no text for SQLite
            self._run("remove_facts", values[0][0], values[-1][0])
            if isinstance(error, apsw.ConstraintError):
                raise DuplicateConflict(
                    run_id, self._known_event(no, records) or twice_in(records)
                ) from error
            raise

    def _known_event(self, no: int, records: Sequence[Record]) -> str:
        known = (record.event_id for record in records if self._row("stored_event", no, record.event_id))
        return next(known, "")

    def _stored(self, no: int, records: Sequence[Record]) -> bool:
        """Whether exactly these records are there already: event id, digest and lane."""
        for record in records:
            found = self._row("stored_event", no, record.event_id)
            if found is None or found[0] != record.lane or sha256(found[1]).hexdigest() != record.digest:
                return False
        return bool(records)

    def _head(self, run_id: str) -> RunHead:
        row = self._row("head", run_id)
        if row is None:
            raise RunNotFound(run_id)
        return rows.head_of(row[1:], self._clock.now_ms())

    def _count(self, run_id: str, records: Sequence[Record], head: Head) -> None:
        self.facts += len(records)
        self.appends += 1
        self.bytes += sum([len(record.body) for record in records])
        self.moved[run_id] = head.seq

    # Ownership

    def claim(self, run_id: str, request: ClaimRequest) -> RunHead:
        """Takes ownership unless a living owner has it; the fence rises by one."""
        row = self._row("head", run_id)
        if row is None:
            raise RunNotFound(run_id)
        head = rows.head_of(row[1:], request.now_ms)
        if head.owner_alive and head.owner != request.owner.id:
            raise OwnedElsewhere(run_id, head.owner or "")
        self._run("take_over", request.owner.id, row[0])
        self._disown(head.owner, run_id)
        self._lease(request, run_id)
        return msgspec.structs.replace(head, fence=head.fence + 1, owner=request.owner.id, owner_alive=True)

    def renew(self, owner: Owner, ttl_ms: int, now_ms: int) -> None:
        """One row, for any number of runs (RC-78)."""
        self._run("renew", now_ms + ttl_ms, owner.id)

    def release(self, owner: Owner, run_id: str | None) -> None:
        """Gives up one run, or all; then the owner is forgotten, and those whose lease ended long ago."""
        if run_id is not None:
            self._run("release_run", run_id, owner.id)
            self._disown(owner.id, run_id)
            return
        self._run("release_all", owner.id)
        self._owned.pop(owner.id, None)
        self._left.append(owner.id)
        self.forget_left()
        self.forget_long_gone()

    def leave(self, owner: Owner) -> bool:
        """Forgets an owner that owns nothing with the next claim; False if it owns something.

        To be called where all that was handed over is done, from any thread. Nobody has to wait for that: all that it
        changes is who is known to have been here.
        """
        if owner.id in self._owned:
            return False
        self._left.append(owner.id)
        return True

    @property
    def leaving(self) -> bool:
        """Whether an owner is still to be forgotten."""
        return bool(self._left)

    def forget_left(self) -> None:
        """Forgets who left."""
        while self._left:
            self._run("forget_owner", self._left.popleft())

    def forget_long_gone(self) -> None:
        """Forgets who never said that it left."""
        self._run("forget_owners", self._clock.now_ms() - OWNER_KEPT_MS)

    def _lease(self, claim: ClaimRequest, run_id: str) -> None:
        self.forget_left()  # it may be back itself
        owner = claim.owner
        until_ms, slack_ms = claim.now_ms + claim.ttl_ms, claim.ttl_ms // LEASE_SLACK
        self._run("lease", owner.id, owner.machine, owner.pid, owner.started, until_ms, slack_ms)
        self._owned.setdefault(owner.id, set()).add(run_id)

    def _disown(self, owner: str | None, run_id: str) -> None:
        if owner is not None and (owned := self._owned.get(owner)) is not None:
            owned.discard(run_id)
            if not owned:
                del self._owned[owner]

    # Artifacts

    def begin_blob(self, digest: str, size: int) -> int | None:
        """Makes room for a blob and returns its number; None if it is there already."""
        if (row := self._row("blob", digest)) is not None:
            return None if row[2] else int(row[0])
        return self._insert("add_blob", digest, size, self._clock.now_ms())

    def add_piece(self, no: int, index: int, piece: bytes) -> None:
        """Stores one piece; the same piece twice is one."""
        self._run("add_piece", no << SEQ_BITS | index, piece)

    def end_blob(self, no: int) -> None:
        """From now on the blob is there."""
        self._run("blob_is_whole", no)

    def _note_blobs(self, no: int, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            for digest, _ in named_in(body):
                self._run("use_blob", digest, no)

    # Threads

    def put_thread(self, record: ThreadRecord, expected: int | None) -> ThreadRecord:
        """Compares revisions and stores."""
        row = self._row("thread", record.tenant, record.thread_id)
        stored = next_revision(None if row is None else _thread_decoder.decode(row[0]), record, expected)
        unpinned, age, _ = key_of(stored)
        self._run(
            "put_thread",
            stored.tenant,
            stored.thread_id,
            stored.revision,
            stored.archived,
            unpinned,
            age,
            encode(stored),
        )
        return stored

    def delete_thread(self, tenant: str, thread_id: str) -> None:
        """Removes a record."""
        self._run("remove_thread", tenant, thread_id)

    # Purge

    def purge(self, thread_id: str) -> None:
        """Removes a thread's runs, record and unshared blobs; leaves a mark of each run id (JR-8)."""
        doomed = self._rows("runs_to_purge", thread_id)
        now_ms = self._clock.now_ms()
        for row in doomed:
            summary = rows.summary_of(row[1], row[3:9])
            if is_live(summary, rows.alive(row[9], row[10:14], now_ms)):
                raise Unsupported(
                    f"cannot purge thread {thread_id} while run {row[1]} is live", "thread_busy"
                )
        named = {digest for row in doomed for (digest,) in self._rows("blobs_of_run", row[0])}
        for no, run_id, seq, *_ in doomed:
            self._erase(no)
            self._run("mark_purged", run_id)
            self.moved[run_id] = seq + 1  # wakes who waits for it: it will find no run
        for (no,) in self._rows("unused_blobs", now_ms - SWEEP_MS, encode(sorted(named)).decode()):
            self._run("remove_pieces", no << SEQ_BITS, no + 1 << SEQ_BITS)
            self._run("remove_blob", no)
        self._run("remove_threads", thread_id)
        self.purged = True

    def _erase(self, no: int) -> None:
        """Removes everything that a run has; the blobs that it names stay."""
        self._run("remove_uses", no)
        self._run("remove_commands", no)
        self._run("remove_facts", no << SEQ_BITS, no + 1 << SEQ_BITS)
        self._run("remove_spec", no)
        self._run("remove_run", no)

    # Statements

    def _run(self, name: str, *values: Any) -> None:
        self._db.execute(SQL[name], values)

    def _insert(self, name: str, *values: Any) -> int:
        self._db.execute(SQL[name], values)
        return self._db.last_insert_rowid()

    def _rows(self, name: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(SQL[name], values).fetchall()

    def _row(self, name: str, *values: Any) -> tuple[Any, ...] | None:
        found = self._db.execute(SQL[name], values).fetchall()
        return found[0] if found else None


def undoable(error: BaseException) -> bool:
    """Whether the transaction is as good as before, so that what a change did in it can be taken back."""
    return isinstance(error, OF_ONE) or not isinstance(error, apsw.Error)


def _head_behind(head: Head, records: Sequence[Record]) -> Head:
    """Where the head is after these records.

    Raises:
        ValueError: they are not numbered on from it.
    """
    seq = head.seq
    for record in records:
        seq += 1
        if record.seq != seq:
            raise ValueError(f"record {record.event_id} has seq {record.seq} where {seq} comes next")
    return Head(seq, records[-1].chain) if records else head


def _summary_values(summary: RunSummary) -> tuple[Any, ...]:
    return (
        summary.state,
        summary.status,
        summary.resting,
        summary.loss_recorded,
        summary.takeovers,
        summary.updated_at_ms,
    )


__all__ = ["OF_ONE", "PIECE_BYTES", "SEQ_BITS", "SQL", "Changes", "Undoing", "undoable"]
