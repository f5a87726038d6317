"""What all dialects have in common: bytes of a response body in, provider events out, no I/O.

A decoder is fed the body as it comes (`feed`) and told how the bytes ended (`finish`). The network, the tests and
`pilothouse decode` use the same object. A dialect gives it the type of its messages, what to do with one, and its
verdict when the bytes are over; everything that is a matter of bytes, JSON and order is here:

* a body that is no event stream is collected and judged whole, unless one of its lines is an error;
* a frame that the typed decoder refuses is read slowly (`frames.py`), and texts are mended from then on;
* the first `StreamEnd` is the last event; what comes after it is ignored;
* an unterminated last frame is read if it is whole, and changes nothing if it is not [049].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

import msgspec

from ..core.jsonlines import JSONLinesReader
from ..core.sse import Frame, FrameTooLong, SSEReader
from ..messages import JSON
from ..responses import ErrorInfo, Notice, ProviderEvent, StreamEnd
from .errors import EXCERPT_BYTES, classify, error_in, error_object, excerpt, malformed
from .frames import DONE, Unreadable, fit, values_of
from .surrogates import SurrogateMender

Cause: TypeAlias = Literal["eof", "reset"]
M = TypeVar("M", bound=msgspec.Struct)

_WHITE: Final = b" \t\r\n"
_BOM: Final = b"\xef\xbb\xbf"
_FIELDS: Final = (b"", b"data", b"event", b"id", b"retry", b"error")
_MAX_BODY: Final = 4 * 1024 * 1024
"""Of a body that is no event stream, this much is collected: an error object is far smaller."""


class Decoder(ABC, Generic[M]):
    """One response body.

    Attributes:
        ended: the `StreamEnd` was returned.
        lingering: the dialect's reason was seen; only figures may follow, and nobody should wait long for them.
    """

    message_type: ClassVar[type[msgspec.Struct]]
    json_decoder: ClassVar[msgspec.json.Decoder[msgspec.Struct]]

    def __init__(self) -> None:
        self.ended = False
        self.lingering = False
        self._reader = SSEReader(error_field=True)
        self._decode = self.json_decoder.decode
        self._sniffed = False  # it is known what the body is
        self._head = b""  # the body's beginning, until the first frame was read
        self._framed = False  # a frame was read
        self._body: bytearray | None = None  # all of a body that is no event stream
        self._lines = JSONLinesReader()  # and its lines
        self._mender: SurrogateMender | None = None

    # What a dialect gives

    @abstractmethod
    def _on_message(self, message: M, event: str, out: list[ProviderEvent]) -> None:
        """Takes one message of the stream; `event` is the frame's event name."""

    @abstractmethod
    def _verdict(self, out: list[ProviderEvent]) -> StreamEnd | None:
        """How the response ended by what was said so far; None if nothing was said about it."""

    @abstractmethod
    def _close_blocks(self, out: list[ProviderEvent]) -> None:
        """Tells what was held back and ends the open blocks, as far as they are finished."""

    def _on_done(self, out: list[ProviderEvent]) -> None:
        """Takes the word `[DONE]`."""

    # Reading

    def feed(self, data: bytes) -> list[ProviderEvent]:
        """Takes the next bytes of the body; returns the events that they completed."""
        out: list[ProviderEvent] = []
        if self.ended or not data:
            return out
        if not self._sniffed:
            data = self._sniff(data)
            if not data:
                return out
        if self._body is not None:
            self._on_body(data[: _MAX_BODY - len(self._body)], out)
            return out
        if not self._framed and len(self._head) < EXCERPT_BYTES:
            self._head += data[:EXCERPT_BYTES]
        try:
            frames = self._reader.feed(data)
        except FrameTooLong as error:
            self._end(malformed(data, str(error)), out)
            return out
        for frame in frames:
            self._on_frame(frame, out)
        return self._mended(out)

    def finish(self, cause: Cause = "eof") -> list[ProviderEvent]:
        """The body is over: by its regular end (`eof`) or because the connection broke (`reset`)."""
        out: list[ProviderEvent] = []
        if self.ended:
            return out
        if self._body is not None:
            self._end(self._judge_body(bytes(self._body), cause), out)
            return out
        for frame in self._reader.finish():
            self._on_frame(frame, out, whole=False)
        if not self.ended:
            self._close_blocks(out)
            end = self._verdict(out) or self._silent_end(cause)
            self._end(end, out)
        return self._mended(out)

    def _on_body(self, data: bytes, out: list[ProviderEvent]) -> None:
        """More of a body that is no event stream. An error that has a line to itself need not wait for the end."""
        assert self._body is not None
        self._body += data
        for line in self._lines.feed(data):
            if line[:1] in b"{[" and (error := error_in(line)) is not None:
                self._end(StreamEnd("error", None, classify(error)), out)
                return

    def _sniff(self, data: bytes) -> bytes:
        """Finds out what the body is by its first character: JSON and markup are no event stream."""
        data = self._head + data
        start = data.removeprefix(_BOM).lstrip(_WHITE)
        if not start or (len(data) < 3 and _BOM.startswith(data)):
            self._head = data
            return b""
        self._sniffed = True
        self._head = b""
        if start[:1] in b"{[<":
            self._body = bytearray()
            return start
        return data

    def _on_frame(self, frame: Frame, out: list[ProviderEvent], *, whole: bool = True) -> None:
        if self.ended:
            return
        data = frame.data
        if frame.event == "error":
            self._on_odd_frame(frame, out, whole=whole)
            return
        try:
            message = self._decode(data)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            self._on_odd_frame(frame, out, whole=whole)
            return
        self._framed = True
        if b"\\u0000" in data and self._mender is None:
            self._mender = SurrogateMender()
        self._on_message(message, frame.event, out)  # type: ignore[arg-type]

    def _on_odd_frame(self, frame: Frame, out: list[ProviderEvent], *, whole: bool) -> None:
        """A frame that the fast decoder refuses, or an error event, whose data may be anything."""
        data = frame.data.strip()
        if not data:
            return
        self._framed = True
        why = ""
        try:
            values = values_of(data)
        except Unreadable as error:
            values, why = error.values, str(error)
        if self._mender is None and data != b"[DONE]":
            self._mender = SurrogateMender()
        for value in values:
            if self.ended:
                return
            self._on_value(value, frame.event, out)
        if not why or self.ended:
            return
        if frame.event == "error":
            self._fail(classify(frame.text), out)
        elif whole:
            self._close_blocks(out)
            self._end(malformed(data, f"a frame is not JSON: {why}"), out)
        else:
            out.append(Notice("cut_frame", excerpt(data)))

    def _on_value(self, value: JSON, event: str, out: list[ProviderEvent]) -> None:
        if value == DONE:
            self._on_done(out)
        elif isinstance(value, dict):
            if event == "error" or value.get("type") == "error":
                self._fail(classify(error_object(value) or value), out)
            else:
                self._on_message(fit(value, self.message_type), event, out)  # type: ignore[arg-type]
        elif event == "error":
            self._fail(classify(value), out)
        elif isinstance(value, list):
            for item in value:
                if not self.ended:
                    self._on_value(item, event, out)
        elif value is not None:
            out.append(Notice("odd_frame", str(value)[:200]))

    # Ends

    def _end(self, end: StreamEnd, out: list[ProviderEvent]) -> None:
        self.ended = True
        out.append(end)

    def _fail(self, error: ErrorInfo, out: list[ProviderEvent]) -> None:
        """An error in the stream ends the response, wherever it stands and whatever follows it."""
        self._close_blocks(out)
        self._end(StreamEnd("error", None, error), out)

    def _silent_end(self, cause: Cause) -> StreamEnd:
        if self._sniffed and not self._framed and cause == "eof" and _is_junk(self._head):
            return malformed(self._head, "the body is not an event stream")
        return StreamEnd("unknown", cause=cause)

    def _judge_body(self, body: bytes, cause: Cause) -> StreamEnd:
        """A 200 that is no event stream: the error in it, in any JSON shape, or malformed; never a success (PV-12)."""
        error = error_in(body)
        if error is not None:
            return StreamEnd("error", None, classify(error))
        if cause == "reset" and not body:
            return StreamEnd("unknown", cause=cause)
        return malformed(body, "the body is not an event stream")

    def _mended(self, out: list[ProviderEvent]) -> list[ProviderEvent]:
        return out if self._mender is None else self._mender.mend(out)


def _is_junk(head: bytes) -> bool:
    """Whether a body without a frame has a line that belongs to no event stream. The last line may be cut."""
    *lines, last = head.replace(b"\r", b"\n").split(b"\n")
    if any(line.partition(b":")[0] not in _FIELDS for line in lines):
        return True
    name, colon, _ = last.partition(b":")
    return name not in _FIELDS if colon else not any(field.startswith(name) for field in _FIELDS)


__all__ = ["Cause", "Decoder"]
