"""Regular expressions that somebody else wrote, asked only where that cannot take long.

Python's engine goes back and tries again: some expressions take longer than the universe lasts on a text of fifty characters,
and hold the event loop meanwhile. How long one can take follows from its quantifiers and the length of the text; where that
is too long, the question is not asked.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

STEPS: Final = 2_000_000
"""Steps that a search may take at worst: some tens of milliseconds."""

LONGEST: Final = 4_000
"""Characters of an expression."""

_NEVER: Final = 1_000
"""An exponent: not to be asked of any text."""

_TOKENS: Final = re.compile(
    r"\\(?P<back>[1-9])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]"  # escapes and sets: one character each, but references
    r"|(?P<open>\((?:\?(?:P<\w+>|[:=!]|<[=!]))?)|(?P<close>\))|(?P<or>\|)"
    r"|(?P<many>[*+]|\{\d*(?:,\d*)?\})[?+]?|(?P<maybe>\?)[?+]?|.",
    re.DOTALL,
)


def found(pattern: str, text: str) -> bool | None:
    """Whether a text has a place that an expression matches; None if it is none, or could take too long."""
    compiled, power = _read(pattern)
    if compiled is None or power >= _NEVER or max(len(text), 2) ** power > STEPS:
        return None
    return compiled.search(text) is not None


@lru_cache(256)
def _read(pattern: str) -> tuple[re.Pattern[str] | None, int]:
    if len(pattern) > LONGEST:
        return None, 0
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None, 0
    return compiled, _power(pattern)


def _power(pattern: str) -> int:
    """The exponent of the length of a text in the worst time: one for each choice of how often, one for where to begin.

    A loop around something with a choice in it has no such exponent.
    """
    choices = 0
    groups: list[int] = []  # choices before each open group
    closed: int | None = None  # choices before the group that has just ended
    for token in _TOKENS.finditer(pattern):
        before, closed = closed, None
        kind = token.lastgroup
        if kind == "open":
            groups.append(choices)
        elif kind == "close":
            closed = groups.pop() if groups else 0
        elif kind == "many" and token["many"] not in ("{1}", "{1,1}", "{0}", "{0,0}"):
            if before is not None and choices > before:
                return _NEVER
            fixed = token["many"].startswith("{") and "," not in token["many"]
            choices += not fixed
        elif kind in ("maybe", "or", "back"):
            choices += 1
    return choices + (not pattern.startswith("^") or "|" in pattern)


__all__ = ["found"]
