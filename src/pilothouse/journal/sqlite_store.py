"""The transactions of a SQLite journal, on the writer's thread: beginning, isolating, committing, copying the log back.

What is written in them is `sqlite_changes.py`; what the file is, `sqlite_file.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final
from weakref import finalize

import apsw

from ..errors import JournalError, JournalUnavailable, JournalVersion
from .liveness import LeaseClock
from .sqlite_changes import OF_ONE, Changes, Undoing, undoable
from .sqlite_file import (
    UNREADABLE,
    Durability,
    FileId,
    file_at,
    open_writer,
    patiently,
    refuse_newer,
    schema_version,
    translated,
)
from .sqlite_reads import FileLook, Readers
from .watch import Watch
from .writer import GroupWriter, TransactionLost

T = TypeVar("T")

_IDLE_PAGES: Final = 1_000
_BUSY_PAGES: Final = 4_000
_FULL_PAGES: Final = 11_000
"""Pages of the log at which it is copied back: when idle, in any case, and waiting for readers (44 MiB, JR-15)."""


@final
class SQLiteStore:
    """Implements `writer.Store`.

    Attributes:
        opened: the file is open and of our version; read from any thread.
        retries: batches that failed as a whole.
        busy_waits: waits for another process's transaction.
        on_close: called before the file is closed.
    """

    def __init__(
        self, path: Path, durability: Durability, busy_timeout: float, changes: Changes, watch: Watch
    ) -> None:
        self.opened = False
        self.retries = self.busy_waits = 0
        self.on_close: Callable[[], None] | None = None
        self._path = path
        self._durability: Durability = durability
        self._busy_timeout = busy_timeout
        self._changes = changes
        self._watch = watch
        self._connection: apsw.Connection | None = None
        self._committed = -1  # the file's data version behind the last commit of this connection
        self._file: FileId | None = None
        self._log_pages = 0
        self._wait_at = _FULL_PAGES

    def open(self) -> None:
        """Opens the file, or finds out why it cannot be."""
        if self._connection is None:
            self._connection = open_writer(self._path, self._durability, self._busy_timeout)
            self._file = file_at(self._path)
            self._connection.set_wal_hook(self._note_log)
            self._changes.connect(self._connection)
            self.opened = True

    def begin(self) -> None:
        """Takes the write lock at once: a transaction that upgrades later could only fail (JR-13).

        What is committed to a file that nobody can open any more is not durable, so the path is looked at each time.
        """
        if file_at(self._path) != self._file:
            raise JournalUnavailable(
                f"cannot write to {self._path} because the file was moved, deleted or replaced while it was open: put it"
                " back, or stop every program that uses it and start again"
            )
        try:
            patiently(self._take_lock, self._busy_timeout, self._count_wait)
            if self._db.data_version() != self._committed:
                # Somebody else wrote: it may be migrated now (JR-17).
                refuse_newer(schema_version(self._db), self._path)
        except JournalVersion:
            self.rollback()
            raise
        except apsw.Error as error:
            raise translated(error, self._path) from error

    def run(self, work: Callable[[], Any]) -> Any:
        """One change, all or nothing; what undoes itself is spared the savepoint."""
        try:
            return work() if type(work) is Undoing else self._in_savepoint(work)
        except (*OF_ONE, *UNREADABLE) as error:
            raise translated(error, self._path) from error
        except apsw.Error as error:
            raise TransactionLost(translated(error, self._path)) from error

    def commit(self) -> None:
        """Durable, as far as was asked for."""
        try:
            self._do("COMMIT")
        except apsw.Error as error:
            raise translated(error, self._path) from error
        self._committed = self._db.data_version()

    def rollback(self) -> None:
        """Forgets the transaction; SQLite may have done so already."""
        self._changes.moved.clear()
        self.retries += 1
        with suppress(apsw.Error):
            self._do("ROLLBACK")

    def settle(self, *, idle: bool) -> None:
        """Wakes who waits for a run, and copies the log back while nobody waits for the writer."""
        changes = self._changes
        if changes.moved:
            self._watch.moved(changes.moved)
            changes.moved = {}
        if changes.purged and idle:
            changes.purged = not self._checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE)
        elif self._log_pages >= self._wait_at:
            self._wait_for_readers()
        elif self._log_pages >= _BUSY_PAGES or (idle and self._log_pages >= _IDLE_PAGES):
            self._checkpoint(apsw.SQLITE_CHECKPOINT_PASSIVE)

    def close(self) -> None:
        """Lets readers finish, copies the log back and closes: the journal is one file again."""
        if self.on_close is not None:
            self.on_close()
        if self._connection is not None and self._changes.leaving:
            self._forget_left()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(apsw.Error):
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            with suppress(apsw.Error):
                connection.close()

    def _forget_left(self) -> None:
        """What no registration took along. Where it fails, those owners are forgotten a day after their leases ended."""
        with suppress(JournalError, apsw.Error):
            self.begin()
            try:
                self._changes.forget_left()
                self._changes.forget_long_gone()
                self.commit()
            except BaseException:
                self.rollback()
                raise

    def _wait_for_readers(self) -> None:
        """The log cannot be used anew while somebody holds a transaction on it; ours are never held.

        Who holds one for longer than the busy timeout is not waited for again until the log has grown much more.
        """
        deadline = time.monotonic() + self._busy_timeout
        while not self._checkpoint(apsw.SQLITE_CHECKPOINT_RESTART):
            if time.monotonic() >= deadline:
                self._wait_at = self._log_pages + _FULL_PAGES
                return
            time.sleep(0.01)
        self._wait_at = _FULL_PAGES

    def _checkpoint(self, mode: int) -> bool:
        try:
            self._db.wal_checkpoint(mode=mode)
        except apsw.Error:  # busy, or the disk is in trouble: the next commit tells whom it concerns
            return False
        self._log_pages = 0  # until the next commit tells
        return True

    def _note_log(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._log_pages = pages
        return 0

    def _take_lock(self) -> None:
        self._do("BEGIN IMMEDIATE")

    def _count_wait(self) -> None:
        self.busy_waits += 1

    def _in_savepoint(self, work: Callable[[], Any]) -> Any:
        self._do("SAVEPOINT work")
        try:
            result = work()
        except BaseException as error:
            if undoable(error):
                self._do("ROLLBACK TO work")
                self._do("RELEASE work")
            raise
        self._do("RELEASE work")
        return result

    @property
    def _db(self) -> apsw.Connection:
        assert self._connection is not None
        return self._connection

    def _do(self, statement: str) -> None:
        self._db.execute(statement)


@final
class Access:
    """The one way of a journal, and of its thread store, to its file.

    It closes the file when nobody holds it any more, also where nobody called `aclose`.
    """

    def __init__(self, path: Path, durability: Durability, busy_timeout: float) -> None:
        self.path = path
        self.clock = LeaseClock()
        self.changes = Changes(self.clock)
        self.readers = Readers(path, busy_timeout)
        self.watch = Watch(partial(FileLook, path, busy_timeout))
        self.store = SQLiteStore(path, durability, busy_timeout, self.changes, self.watch)
        self.store.on_close = partial(_stop_reading, self.watch, self.readers)
        self.writer = GroupWriter(self.store, f"pilothouse-journal-{path.name}")
        finalize(self, self.writer.stop_nowait).atexit = False  # the writer sees to the exit itself

    async def write(self, work: Callable[[], T], size: int = 0) -> T:
        """Hands a change over to the writer; returns once it is durable."""
        return await self.writer.submit(work, size)

    async def read(self, read: Callable[[apsw.Connection], T]) -> T:
        """Reads in a thread."""
        self.writer.check_open()
        if not self.store.opened:
            await self.writer.opened()
        return await self.readers.run(read)


def _stop_reading(watch: Watch, readers: Readers) -> None:
    watch.close()
    readers.close()


__all__ = ["Access", "SQLiteStore"]
