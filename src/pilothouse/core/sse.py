"""Server-sent events: bytes to frames and frames to bytes (WHATWG HTML §9.2.6).

Shared by the providers, the AG-UI client and the server. It knows the format and nothing of what is in the data: a
`Frame` holds bytes, so that a JSON decoder can read them without a text in between.

Reading is incremental. Any split of the same bytes gives the same frames: CR, LF and CRLF never occur inside a UTF-8
sequence, so lines are found in bytes and decoded as a whole.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""An inline image is some megabytes; more than this is no frame."""

_BOM: Final = b"\xef\xbb\xbf"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")


class FrameTooLong(ValueError):
    """A frame that does not end within the limit."""


class Frame(Struct, frozen=True, gc=False):
    """One event. `data` holds the data lines, joined by LF; `id` is the last event id in force."""

    data: bytes
    event: str = ""
    id: str = ""

    @property
    def text(self) -> str:
        """The data as text; broken UTF-8 becomes U+FFFD."""
        return self.data.decode("utf-8", "replace")


class SSEReader:
    """Bytes in, frames out.

    Attributes:
        last_id: the last event id that was told.
        retry_ms: how long to wait before a reconnection, if it was told.

    `error_field=True` takes the field `error`, which some servers send instead of an event, for an event of that name.
    """

    def __init__(self, *, error_field: bool = False, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.last_id = ""
        self.retry_ms: int | None = None
        self._error_field = error_field
        self._limit = max_frame_bytes
        self._started = False  # the byte-order mark is behind us
        self._skip_lf = False  # the last chunk ended with CR: an LF that comes next belongs to it
        self._pieces: list[bytes] = []  # of a line that has not ended
        self._size = 0  # bytes in them and in the data lines
        self._data: list[bytes] = []
        self._event = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Takes the next bytes and returns the frames that they completed.

        Raises:
            FrameTooLong: nothing can be read after it.
        """
        if not self._started and (chunk := self._start(chunk)) == b"":
            return []
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._skip_lf = chunk[-1] == 13
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            self._keep(chunk)
            return []
        if self._pieces:
            self._pieces.append(chunk)
            chunk = b"".join(self._pieces)
            self._pieces = []
        lines = chunk.split(b"\n")
        rest = lines.pop()
        frames: list[Frame] = []
        for line in lines:
            if not line:
                if self._data:
                    frames.append(self._dispatch())
                self._event = b""
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            else:
                self._field(line)
        self._size = sum(map(len, self._data)) if self._data else 0
        if rest:
            self._keep(rest)
        return frames

    def finish(self) -> list[Frame]:
        """The frame that was not terminated when the bytes ended, if there is one.

        WHATWG drops it; a response that ends without a last blank line is common enough to be read (PV-12).
        """
        head = self._pieces
        self._pieces = []
        line = b"".join(head)
        if not self._started and line.startswith(_BOM):
            line = line[3:]
        if line:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            else:
                self._field(line)
        return [self._dispatch()] if self._data else []

    def _start(self, chunk: bytes) -> bytes:
        """Drops one byte-order mark; returns b"" while it cannot be told yet whether there is one."""
        self._pieces.append(chunk)
        head = b"".join(self._pieces)
        if len(head) < 3 and _BOM.startswith(head):
            return b""
        self._started = True
        self._pieces = []
        return head[3:] if head.startswith(_BOM) else head

    def _keep(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            raise FrameTooLong(f"a frame of more than {self._limit} bytes")

    def _dispatch(self) -> Frame:
        data = self._data
        self._data = []
        event = self._event.decode("utf-8", "replace") if self._event else ""
        self._event = b""
        return Frame(data[0] if len(data) == 1 else b"\n".join(data), event, self.last_id)

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if name == b"event":
            self._event = value
        elif name == b"data":  # the field name alone is an empty data line
            self._data.append(value)
        elif name == b"id":
            if b"\0" not in value:
                self.last_id = value.decode("utf-8", "replace")
        elif name == b"retry":
            if value.isdigit():
                self.retry_ms = int(value)
        elif name == b"error" and self._error_field:
            self._event = b"error"
            self._data.append(value)


def write(data: bytes | str, *, event: str = "", event_id: str = "", retry_ms: int | None = None) -> bytes:
    """One frame as bytes. Data with line ends becomes several data lines, so that no text can forge a field.

    Compact JSON needs no splitting: pass it as bytes that hold neither CR nor LF.
    """
    head = f"event: {_one_line(event)}\n" if event else ""
    if event_id:
        head += f"id: {_one_line(event_id)}\n"
    if retry_ms is not None:
        head += f"retry: {retry_ms}\n"
    if isinstance(data, bytes) and b"\n" not in data and b"\r" not in data:
        return b"%bdata: %b\n\n" % (head.encode(), data) if head else b"data: %b\n\n" % data
    text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
    body = "".join([f"data: {line}\n" for line in _LINE_END.split(text)])
    return f"{head}{body}\n".encode("utf-8", "replace")


def comment(text: str = "") -> bytes:
    """A comment: keeps a connection alive, means nothing."""
    return f": {_one_line(text)}\n\n".encode("utf-8", "replace")


def _one_line(text: str) -> str:
    return _LINE_END.sub(" ", text).replace("\0", "")


__all__ = ["MAX_FRAME_BYTES", "Frame", "FrameTooLong", "SSEReader", "comment", "write"]
