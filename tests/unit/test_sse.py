"""Server-sent events, byte by byte (PV-12)."""

from __future__ import annotations

import pytest

from pilothouse.core.sse import Frame, FrameTooLong, SSEReader, comment, write


def read(*chunks: bytes, **options) -> list[Frame]:
    reader = SSEReader(**options)
    frames = [frame for chunk in chunks for frame in reader.feed(chunk)]
    return frames + reader.finish()


def datas(*chunks: bytes) -> list[bytes]:
    return [frame.data for frame in read(*chunks)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_each_line_end_ends_lines(end: bytes) -> None:
    """LF, CRLF and CR, also alone."""
    assert datas(b"data: a" + end + b"data: b" + end + end + b"data: c" + end + end) == [b"a\nb", b"c"]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    """CR in one read and LF in the next do not end two lines."""
    assert datas(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == [b"a\nb"]


def test_a_cr_alone_dispatches_at_once() -> None:
    """A server that ends lines with CR is not kept waiting for an LF that never comes."""
    reader = SSEReader()
    assert [frame.data for frame in reader.feed(b"data: a\r\r")] == [b"a"]


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0c", "\x0b"])
def test_no_other_character_ends_a_line(odd: str) -> None:
    """Only CR and LF do; Python's splitlines would cut here."""
    assert datas(f"data: a{odd}b\n\n".encode()) == [f"a{odd}b".encode()]


def test_one_byte_order_mark_is_dropped_also_when_cut() -> None:
    """The first event survives a BOM that comes in pieces; a second BOM is text."""
    assert datas(b"\xef", b"\xbb", b"\xbfdata: a\n\n") == [b"a"]
    assert datas(b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\ndata: b\n\n") == [b"b"]
    assert datas(b"\xef\xbb\xbfdata: a") == [b"a"]


def test_comments_unknown_fields_and_missing_spaces_are_legal() -> None:
    """Comments mean nothing, one space after the colon is optional, fields may have no colon."""
    frames = read(b": hi\n\n:\nevent:x\ndata:a\ndata\ndata:  b\nfoo: bar\nbaz\n\nevent: y\n\ndata: c\n\n")
    assert frames == [Frame(b"a\n\n b", "x"), Frame(b"c")]


def test_ids_and_retry_follow_the_standard() -> None:
    """An id stays in force, an id with NUL is ignored, retry takes digits only."""
    reader = SSEReader()
    frames = reader.feed(
        b"id: 7\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\nid\ndata: d\n\nretry: 1500\nretry: no\n\n"
    )
    assert [frame.id for frame in frames] == ["7", "7", "7", ""]
    assert reader.retry_ms == 1500


def test_an_unterminated_last_frame_is_read_at_the_end() -> None:
    """A body that ends without its blank line, or without any line end, loses nothing."""
    assert datas(b"data: a\n\ndata: b") == [b"a", b"b"]
    assert datas(b"data: a\n") == [b"a"]
    assert datas(b"event: x\n") == []


def test_the_field_error_is_an_event_only_on_request() -> None:
    """Some servers write `error: {…}` instead of an event."""
    assert read(b'error: {"a":1}\n\n') == []
    assert read(b'error: {"a":1}\n\n', error_field=True) == [Frame(b'{"a":1}', "error")]


def test_a_frame_without_end_is_refused() -> None:
    """The buffer is bounded."""
    reader = SSEReader(max_frame_bytes=100)
    with pytest.raises(FrameTooLong):
        for _ in range(20):
            reader.feed(b"data: 12345678")


def test_what_is_written_is_read_back() -> None:
    """Data with line ends becomes several lines: no text can forge a field."""
    text = "a\r\nevent: forged\n\ndata: x\ry"
    written = write(text, event="e\nx", event_id="4", retry_ms=10)
    assert read(written, comment("busy\nid: 9")) == [Frame(b"a\nevent: forged\n\ndata: x\ny", "e x", "4")]
    assert write(b'{"a":1}') == b'data: {"a":1}\n\n'
    assert write(b'{"a":1}', event="x") == b'event: x\ndata: {"a":1}\n\n'
    assert write(b"a\nb") == b"data: a\ndata: b\n\n"
