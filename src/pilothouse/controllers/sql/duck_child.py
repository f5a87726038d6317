"""The near end of a child process that asks a DuckDB file; used by one thread at a time (see `hands`)."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, final
from uuid import UUID, SafeUUID

from .rows import Limits

PATIENCE: Final = 0.5
"""Seconds that a statement has to hear that it is to stop; then its process is ended."""

_KEPT: Final = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "PYTHONPATH", "HOME", "VIRTUAL_ENV", "TZ")
"""What of the environment the child needs; keys and tokens it does not."""

_TYPES: Final = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (date, datetime, timedelta, timezone, clock_time, Decimal, UUID, SafeUUID)
}
"""What an answer may be made of besides Python's own plain values."""


@final
class ChildEnded(Exception):
    """The process is gone, or of no use any more; `kind` says why, empty where nobody knows."""

    def __init__(self, kind: str = "", message: str = "") -> None:
        self.kind = kind
        super().__init__(message)


@final
class _Reader(pickle.Unpickler):
    """Reads values and nothing that runs: whatever the child has become, it is only believed about cells."""

    def find_class(self, module: str, name: str) -> Any:
        if (kind := _TYPES.get((module, name))) is None:
            raise pickle.UnpicklingError(f"{module}.{name} is no value of a cell")
        return kind


@final
class Child:
    """One process with one connection.

    Args:
        path: the DuckDB file.
        memory: bytes that the process may have in all.

    Raises:
        ChildEnded: it could not open the file.
    """

    def __init__(self, path: Path, memory: int) -> None:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = subprocess.Popen(  # noqa: S603 - ourselves, without a shell
            [sys.executable, "-m", "pilothouse.controllers.sql.duck_worker", str(path), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=kept,
        )
        self._speaking = threading.Lock()
        self._stopping = 0.0  # since when it has been asked to stop
        try:
            self._hear()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def ask(self, sql: str, limits: Limits) -> tuple[str, Any]:
        """The answer to a query: what became of it, and more about that.

        Raises:
            ChildEnded: there will be none.
        """
        self._stopping = 0.0
        self._say({"sql": sql, "limits": [limits.rows, limits.bytes, limits.cell]})
        kind, found = self._hear()
        if kind in ("memory", "broken"):
            raise ChildEnded(kind, found or "")
        return kind, found

    def interrupt(self) -> None:
        """Asks it to stop what it does; one that is asked for longer than `PATIENCE` is ended. From any thread."""
        now = time.monotonic()
        if not self._stopping:
            self._stopping = now
            with suppress(ChildEnded):
                self._say(None)
        elif now - self._stopping > PATIENCE:
            self._process.kill()

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _say(self, question: object) -> None:
        data = json.dumps(question).encode()
        assert self._process.stdin is not None
        try:
            with self._speaking:
                self._process.stdin.write(struct.pack(">I", len(data)) + data)
                self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise ChildEnded from error

    def _hear(self) -> tuple[str, Any]:
        stream = self._process.stdout
        assert stream is not None
        head = stream.read(8)
        if len(head) < 8:
            raise ChildEnded
        size = struct.unpack(">Q", head)[0]
        data = stream.read(size)
        if len(data) < size:
            raise ChildEnded
        found: tuple[str, Any] = _Reader(io.BytesIO(data)).load()
        return found


__all__ = ["Child", "ChildEnded"]
