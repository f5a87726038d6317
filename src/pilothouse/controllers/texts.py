"""Text of strangers (schemas, servers, labels) as a model may read it: data, without marks that act on whoever shows it."""

from __future__ import annotations

import re
from typing import Final

_ACTING: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, separators that end lines, marks that turn the direction of text, halves of characters."""

_IN_LINES: Final = re.compile(f"[{_ACTING}]|\r(?!\n)")


def lines(text: str) -> str:
    """A text of several lines without control characters."""
    return _IN_LINES.sub(" ", text).replace("\r\n", "\n")


def one_line(text: str) -> str:
    """A name, label or comment in one line without control characters."""
    return " ".join(lines(text).split())


__all__ = ["lines", "one_line"]
