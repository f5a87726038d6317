"""JSON lines over any split of the bytes."""

from __future__ import annotations

import pytest

from pilothouse.core.jsonlines import JSONLinesReader, LineTooLong


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_lines_come_whole_whatever_the_split(size: int) -> None:
    """LF and CRLF end lines, blank ones mean nothing, a BOM is dropped, the last line may be unterminated."""
    body = b'\xef\xbb\xbf{"a":1}\r\n\n  \n{"b":"\xe6\x97\xa5"}\n{"c":3}'
    reader = JSONLinesReader()
    lines = [line for at in range(0, len(body), size) for line in reader.feed(body[at : at + size])]
    assert lines + reader.finish() == [b'{"a":1}', b'{"b":"\xe6\x97\xa5"}', b'{"c":3}']
    assert reader.finish() == []


def test_a_line_without_end_is_refused() -> None:
    """The buffer is bounded."""
    reader = JSONLinesReader(max_line_bytes=10)
    with pytest.raises(LineTooLong):
        reader.feed(b"x" * 11)
