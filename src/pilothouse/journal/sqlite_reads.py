"""What is read from a SQLite journal, in threads and on connections that cannot write.

Each read sees one state of the file and leaves no transaction open behind it (JR-5). Everything is checked against the
chain on its way; what does not match is told of that run alone (RC-6).
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar, final

import apsw
import msgspec

from ..core.canonical import chain_start, encode
from ..errors import ArtifactNotFound, JournalCorrupt, JournalUnavailable
from ..records import Record, RecordPage, RunHead, ThreadRecord
from . import rows
from .chain import chained, check_head, check_tail, linked, record_page
from .sqlite_changes import SEQ_BITS, SQL
from .sqlite_file import UNREADABLE, open_reader, told_as_ours

T = TypeVar("T")

READERS: Final = 4

PROBLEMS_TOLD: Final = 20
"""Of the file itself."""

THREADS: Final = msgspec.json.Decoder(ThreadRecord)


@final
class Readers:
    """At most four threads and connections; each is made when it is first needed."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._free: deque[apsw.Connection] = deque()
        self._threads: ThreadPoolExecutor | None = None

    def run(self, read: Callable[[apsw.Connection], T]) -> asyncio.Future[T]:
        """Reads in a thread."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(READERS, "pilothouse-journal-reader")
        return asyncio.get_running_loop().run_in_executor(self._threads, self._read, read)

    def open(self) -> apsw.Connection:
        """A connection apart from the pool; its user closes it."""
        return open_reader(self._path, self._busy_timeout)

    def close(self) -> None:
        """Waits for what is being read, then closes the connections. Blocks."""
        if self._threads is not None:
            self._threads.shutdown()
        while self._free:
            with suppress(apsw.Error):
                self._free.pop().close()

    def _read(self, read: Callable[[apsw.Connection], T]) -> T:
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self.open()
        try:
            with told_as_ours(self._path):
                return read(connection)
        finally:
            self._free.append(connection)


@final
class FileLook:
    """Implements `watch.Look` on a connection of its own: `data_version` counts what others committed."""

    def __init__(self, path: Path, busy_timeout: float) -> None:
        self._path = path
        self._connection = open_reader(path, busy_timeout)
        self._version = -1

    def changed(self) -> bool:
        """Whether anything was committed since the last look."""
        with told_as_ours(self._path):
            ((version,),) = self._connection.execute("PRAGMA data_version").fetchall()
        before, self._version = self._version, int(str(version))
        return self._version != before

    def seqs(self, run_ids: Iterable[str]) -> Mapping[str, int]:
        """Where the heads of these runs are."""
        with told_as_ours(self._path):
            return dict(_rows(self._connection, "seqs", encode(list(run_ids)).decode()))

    def close(self) -> None:
        """Closes its connection."""
        with suppress(apsw.Error):
            self._connection.close()


# Facts


def read_page(
    connection: apsw.Connection, run_id: str, after: int, limit: int, kinds: frozenset[str] | None
) -> RecordPage:
    """Facts behind a seq, checked against the chain and the run's head."""
    with one_state(connection), _damage_of(run_id, after + 1):
        run = _rows(connection, "run_to_read", run_id)
        if not run:
            return RecordPage(())
        no, last, last_chain, spec_digest = run[0]
        if after >= last:
            return RecordPage(())
        base = no << SEQ_BITS
        if kinds is None:
            previous = (
                chain_start(run_id, spec_digest) if after == 0 else _chain_at(connection, run_id, base, after)
            )
            with rows_of(connection, "facts", base | after, base | last, limit + 1) as found:
                page = record_page(chained(run_id, found, after, previous), limit)
            if not page.more:
                check_tail(run_id, page.records[-1].seq if page.records else after, last)
                check_head(run_id, page.records[-1].chain, last, last_chain)
            return page
        check_head(run_id, _chain_at(connection, run_id, base, last), last, last_chain)
        words = encode(sorted(kinds)).decode()
        start = chain_start(run_id, spec_digest)
        with rows_of(connection, "facts_of_kinds", base | after, base | last, words, limit + 1) as found:
            return record_page((linked(run_id, row, start) for row in found), limit)


def find_event(connection: apsw.Connection, run_id: str, event_id: str) -> Record | None:
    """The fact with that event id."""
    with one_state(connection), _damage_of(run_id, 0):
        run = _rows(connection, "run_to_read", run_id)
        if not run:
            return None
        no, _, _, spec_digest = run[0]
        facts = _rows(connection, "fact_of_event", no, event_id)
        return linked(run_id, facts[0], chain_start(run_id, spec_digest)) if facts else None


def _chain_at(connection: apsw.Connection, run_id: str, base: int, seq: int) -> str:
    found = _rows(connection, "chain_at", base | seq)
    if not found:
        raise JournalCorrupt(run_id, seq, "it is missing")
    return str(found[0][0].hex())


# Runs


def read_head(connection: apsw.Connection, run_id: str, now_ms: int) -> RunHead | None:
    """A run without its facts."""
    with _damage_of(run_id, 0):
        found = _rows(connection, "head", run_id)
        return rows.head_of(found[0][1:], now_ms) if found else None


def read_seq(connection: apsw.Connection, run_id: str) -> int | None:
    """Where a run's head is."""
    found = _rows(connection, "run_to_append", run_id)
    return int(found[0][1]) if found else None


def read_thread_head(connection: apsw.Connection, thread_id: str) -> str | None:
    """The run created last in a thread."""
    found = _rows(connection, "thread_head", thread_id)
    return str(found[0][0]) if found else None


def read_blob(connection: apsw.Connection, digest: str) -> bytes:
    """The bytes of a blob."""
    with one_state(connection):
        found = _rows(connection, "blob", digest)
        if not found or not found[0][2]:
            raise ArtifactNotFound(digest)
        base = found[0][0] << SEQ_BITS
        return b"".join(
            data for (data,) in connection.execute(SQL["pieces"], (base, base + (1 << SEQ_BITS) - 1))
        )


def read_thread(connection: apsw.Connection, tenant: str, thread_id: str) -> ThreadRecord | None:
    """A thread's record."""
    found = _rows(connection, "thread", tenant, thread_id)
    return THREADS.decode(found[0][0]) if found else None


@contextmanager
def rows_of(connection: apsw.Connection, name: str, *values: Any) -> Iterator[Iterable[rows.Row]]:
    """Rows one by one; closed at once, for an open cursor would hold its transaction."""
    cursor = connection.execute(SQL[name], values)
    try:
        yield cursor
    finally:
        cursor.close(force=True)


def back_up(connection: apsw.Connection, target: Path) -> None:
    """Copies everything, as it is now, to a new file that only its owner may read.

    Raises:
        JournalUnavailable: the file exists, or cannot be written.
    """
    try:
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise JournalUnavailable(f"cannot back up to {target}: {error.strerror}") from error
    try:
        copy = apsw.Connection(str(target))
        try:
            with copy.backup("main", connection, "main") as backup:
                backup.step(-1)  # all pages of one state; who writes is not held up
        finally:
            copy.close()
    except BaseException:
        target.unlink()
        raise


def file_problems(connection: apsw.Connection) -> list[str]:
    """What SQLite finds wrong with the file itself: its pages, and whether its indexes say what its tables say."""
    try:
        found = [str(line) for (line,) in connection.execute(f"PRAGMA integrity_check({PROBLEMS_TOLD})")]
    except apsw.Error as error:
        found = [str(error)]
    return [f"the file is damaged: {line}" for line in found if line != "ok"]


def _rows(connection: apsw.Connection, name: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(SQL[name], values).fetchall()


@contextmanager
def one_state(connection: apsw.Connection) -> Iterator[None]:
    """Several statements that see the same state of the file."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


@contextmanager
def _damage_of(run_id: str, seq: int) -> Iterator[None]:
    """A damaged page of the file met while a run is read is told of that run."""
    try:
        yield
    except (apsw.CorruptError, *UNREADABLE) as error:
        raise JournalCorrupt(run_id, seq, str(error)) from error


__all__ = [
    "READERS",
    "THREADS",
    "FileLook",
    "Readers",
    "back_up",
    "file_problems",
    "find_event",
    "one_state",
    "read_blob",
    "read_head",
    "read_page",
    "read_seq",
    "read_thread",
    "read_thread_head",
    "rows_of",
]
