"""JSON lines: bytes to lines, one JSON value each, over any split of the bytes."""

from __future__ import annotations

from typing import Final

MAX_LINE_BYTES: Final = 64 * 1024 * 1024


class LineTooLong(ValueError):
    """A line that does not end within the limit."""


class JSONLinesReader:
    """Bytes in, lines out: LF or CRLF ends a line, blank lines mean nothing, one byte-order mark is dropped."""

    def __init__(self, *, max_line_bytes: int = MAX_LINE_BYTES) -> None:
        self._limit = max_line_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._first = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """Takes the next bytes and returns the lines that they completed.

        Raises:
            LineTooLong: nothing can be read after it.
        """
        *whole, rest = chunk.split(b"\n")
        lines = []
        for end in whole:
            self._pieces.append(end)
            lines.extend(self._take())
        if rest:
            self._pieces.append(rest)
            self._size += len(rest)
            if self._size > self._limit:
                raise LineTooLong(f"a line of more than {self._limit} bytes")
        return lines

    def finish(self) -> list[bytes]:
        """The line that was not terminated when the bytes ended, if there is one."""
        return self._take()

    def _take(self) -> list[bytes]:
        line = b"".join(self._pieces)
        self._pieces = []
        self._size = 0
        if self._first:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._first = False
        line = line.strip(b" \t\r")
        return [line] if line else []


__all__ = ["MAX_LINE_BYTES", "JSONLinesReader", "LineTooLong"]
