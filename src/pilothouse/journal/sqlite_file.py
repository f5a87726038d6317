"""The file of a SQLite journal: finding out what it is, creating it, migrating it, opening connections to it.

A file is looked at through SQLite's own file layer before SQLite opens it as a database: so a foreign file is left
exactly as it was, and no lock that this process holds on it is lost (closing any other descriptor of a file drops all
POSIX locks of the process on it, <https://sqlite.org/howtocorrupt.html> §2.2).
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, Literal, TypeAlias, TypeVar

import apsw
import msgspec

from ..errors import JournalBusy, JournalError, JournalFull, JournalUnavailable, JournalVersion
from .statements import sql_text

T = TypeVar("T")

UNREADABLE: Final = (UnicodeDecodeError, msgspec.DecodeError)
"""What is read from a damaged page where SQLite itself sees nothing wrong."""

Durability: TypeAlias = Literal["full", "normal", "off"]

FileId: TypeAlias = tuple[int, int]

DURABILITIES: Final = ("full", "normal", "off")

APPLICATION_ID: Final = 0x504C5448
"""Says in the file's header that it is ours ("PLTH")."""

MIGRATIONS: Final = ("sqlite_1.sql", "sqlite_2.sql")
"""What leads from each schema version to the next; version n is reached after n of them."""

VERSION: Final = len(MIGRATIONS)

_OLDEST_SQLITE: Final = (3, 37)
"""STRICT tables came with it."""

_HEADER: Final = b"SQLite format 3\0"

_ROOM: Final = 64 * 1024
"""Bytes that are left at most on a disk which is full."""

_opening: Final = Lock()
"""One opening at a time in this process: a file that is being created is not looked at by another thread."""

_WAL_LIMIT: Final = 16 * 1024 * 1024
"""Bytes that the log keeps on disk after it was used up."""


def open_writer(path: Path, durability: Durability, busy_timeout: float) -> apsw.Connection:
    """The writing connection; the file is created or migrated where that is needed.

    Raises:
        JournalUnavailable: it cannot be opened or written; the text says what to do.
        JournalVersion: it is not ours, or a newer Pilothouse's; it was left untouched.
        JournalBusy: somebody else held it for longer than `busy_timeout` seconds.
    """
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < _OLDEST_SQLITE:
        raise JournalUnavailable(
            f"cannot open {path} because SQLite {apsw.sqlite_lib_version()} is too old: 3.37 is needed"
        )
    with _opening, told_as_ours(path):
        _create_file(path)
        _check_header(path)
        connection = _connect(path)
        try:
            patiently(lambda: _check_whole(connection, path), busy_timeout)
            patiently(lambda: _migrate(connection, path), busy_timeout)
            patiently(lambda: _use_wal(connection, path), busy_timeout)
            _check_writable(connection)
            _set_durability(connection, durability)
        except BaseException:
            connection.close()
            raise
    return connection


def open_reader(path: Path, busy_timeout: float) -> apsw.Connection:
    """A connection that cannot write, to a file that a writer has opened before."""
    with _opening, told_as_ours(path):
        connection = _connect(path)
        connection.execute("PRAGMA query_only = 1")
        connection.set_busy_timeout(round(busy_timeout * 1000))
    return connection


def schema_version(connection: apsw.Connection) -> int:
    """The version that is stored."""
    return int(_pragma(connection, "user_version"))


def refuse_newer(version: int, path: Path) -> None:
    """Raises JournalVersion if a newer Pilothouse has migrated the file."""
    if version > VERSION:
        raise JournalVersion(
            f"cannot use {path} because a newer Pilothouse wrote it (schema {version}, this one knows {VERSION}):"
            " upgrade this Pilothouse"
        )


@contextmanager
def told_as_ours(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into the journal's."""
    try:
        yield
    except (apsw.Error, *UNREADABLE) as error:
        raise translated(error, path) from error


def translated(error: Exception, path: Path) -> JournalError:
    """What an error of SQLite means for a journal."""
    why = str(error) or type(error).__name__
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return JournalBusy(f"cannot use {path} because another process holds it: {why}")
        case apsw.FullError() | apsw.IOError() if isinstance(error, apsw.FullError) or _no_room(path):
            return JournalFull(f"cannot write to {path} because the disk is full: free some space")
        case apsw.CorruptError() | UnicodeDecodeError() | msgspec.DecodeError():
            return JournalUnavailable(
                f"cannot use {path} because the file is damaged ({why}): restore a backup, or copy what can still be"
                " read with `pilothouse runs export`"
            )
        case apsw.NotADBError():
            return JournalVersion(f"cannot use {path} because it is no SQLite database: choose another path")
        case apsw.ReadOnlyError():
            return JournalUnavailable(f"cannot write to {path}: make the file and its folder writable")
        case apsw.CantOpenError():
            return JournalUnavailable(f"cannot open {path}: {_why_not(path)}")
        case _:
            return JournalUnavailable(
                f"cannot use {path} because of an error of the disk or of SQLite: {why}"
            )


def patiently(step: Callable[[], T], timeout: float, waited: Callable[[], None] | None = None) -> T:
    """Repeats a step while somebody else holds the file, for up to `timeout` seconds.

    Waits have jitter: processes that met once must not meet again and again.
    """
    deadline = time.monotonic() + timeout
    longest = 0.002
    while True:
        try:
            return step()
        except apsw.BusyError:
            if time.monotonic() >= deadline:
                raise
        if waited is not None:
            waited()
        time.sleep(random.uniform(0.0005, longest))  # noqa: S311 - not for secrets
        longest = min(longest * 1.5, 0.02)


def file_at(path: Path) -> FileId | None:
    """Which file stands at a path."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the cost, and looked at before each commit
    except OSError:
        return None
    return found.st_dev, found.st_ino


def missing_place(path: Path) -> str:
    """Why a path cannot be a journal, as far as that can be told without opening anything; empty if it can."""
    if path.is_dir():
        return "it is a folder: name a file in it"
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}: create it"
    return ""


def _no_room(path: Path) -> bool:
    """Whether its disk is full: SQLite calls it an error of the disk where it cannot make its shared memory."""
    try:
        return shutil.disk_usage(path.parent).free < _ROOM
    except OSError:
        return False


# Steps of opening


def _create_file(path: Path) -> None:
    """Only its owner may read it (JR-19); the files that SQLite adds take their mode from it."""
    with suppress(FileExistsError):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise
        except OSError as error:
            raise JournalUnavailable(f"cannot create {path}: {_why_not(path) or error.strerror}") from error


def _check_header(path: Path) -> None:
    """Refuses what is not ours before SQLite touches it. An empty file is free to be used."""
    deadline = time.monotonic() + 1.0
    while True:
        header = _read_header(path)
        if not header:
            return
        ours = header.startswith(_HEADER) and int.from_bytes(header[68:72], "big") == APPLICATION_ID
        if ours:
            refuse_newer(int.from_bytes(header[60:64], "big"), path)
            return
        if not Path(f"{path}-journal").exists() or time.monotonic() > deadline:
            what = "another program's database" if header.startswith(_HEADER) else "no SQLite database"
            raise JournalVersion(
                f"cannot use {path} because it is {what}, not a Pilothouse journal: choose another path"
                " (the file was left as it is)"
            )
        time.sleep(0.02)  # another process is just creating it


def _read_header(path: Path) -> bytes:
    file = apsw.VFSFile("", str(path), [apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_MAIN_DB, 0])
    try:
        return file.xRead(min(file.xFileSize(), 100), 0) if file.xFileSize() else b""
    finally:
        file.xClose()


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.execute("PRAGMA foreign_keys = 1")
    # One plan a statement: where SQLite was built with STAT4 it would parse and plan anew for each value that is bound.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    return connection


def _check_whole(connection: apsw.Connection, path: Path) -> None:
    """Of a file that SQLite does not even begin to read nothing can be saved with our own means."""
    try:
        schema_version(connection)
    except apsw.CorruptError as error:
        raise JournalUnavailable(
            f"cannot open {path} because the file is damaged beyond reading ({error}), cut short perhaps: restore a backup"
        ) from error


def _migrate(connection: apsw.Connection, path: Path) -> None:
    """Old or new, never between: each step is one transaction (JR-17)."""
    version = schema_version(connection)
    if version == VERSION:
        return
    refuse_newer(version, path)
    connection.execute("BEGIN EXCLUSIVE" if version == 0 else "BEGIN IMMEDIATE")
    try:
        version = schema_version(connection)  # somebody else may have done it meanwhile
        refuse_newer(version, path)
        for number in range(version, VERSION):
            connection.execute(sql_text(MIGRATIONS[number]))
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


def _use_wal(connection: apsw.Connection, path: Path) -> None:
    """Sets the journal mode only if it differs: setting it needs the file alone (JR-14)."""
    if _pragma(connection, "journal_mode") != "wal" and _pragma(connection, "journal_mode = wal") != "wal":
        raise JournalUnavailable(
            f"cannot use {path} because its file system has no write-ahead log (a network share, perhaps):"
            " put the journal on a local disk"
        )


def _check_writable(connection: apsw.Connection) -> None:
    """SQLite opens a file that may only be read without a word, and refuses the first write."""
    if connection.readonly("main"):
        raise apsw.ReadOnlyError


def _set_durability(connection: apsw.Connection, durability: Durability) -> None:
    connection.execute(f"PRAGMA synchronous = {durability}")
    if sys.platform == "darwin" and durability == "full":
        connection.execute("PRAGMA fullfsync = 1")  # fsync alone leaves the data in the drive's cache there
    connection.wal_autocheckpoint(0)  # the writer does it, when it is idle
    connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT}")
    connection.execute("PRAGMA secure_delete = 1")  # what is purged is gone from the file too


def _pragma(connection: apsw.Connection, pragma: str) -> str:
    return str(connection.execute(f"PRAGMA {pragma}").fetchall()[0][0])


def _why_not(path: Path) -> str:
    if why := missing_place(path):
        return why
    if not os.access(path.parent, os.W_OK):
        return f"the folder {path.parent} is not writable"
    return "the file is not readable and writable" if path.exists() else ""


__all__ = [
    "DURABILITIES",
    "UNREADABLE",
    "VERSION",
    "Durability",
    "FileId",
    "file_at",
    "missing_place",
    "open_reader",
    "open_writer",
    "patiently",
    "refuse_newer",
    "schema_version",
    "told_as_ours",
    "translated",
]
