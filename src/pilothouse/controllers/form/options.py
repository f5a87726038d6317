"""Options of a field: a fixed list, or a search whose findings can be chosen from."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...errors import ToolError
from ...messages import JSON
from ..texts import one_line

logger: Final = logging.getLogger("pilothouse.form")

MOST: Final = 200
LABEL: Final = 200


@dataclass(frozen=True, slots=True)
class Option:
    """A value that may be chosen, and what a person calls it."""

    value: JSON
    label: str


OptionSearch: TypeAlias = Callable[[str, int], Sequence[Option] | Awaitable[Sequence[Option]]]
"""Finds options by a text, at most so many; sync or async."""


def as_options(given: Sequence[Option | JSON]) -> list[Option]:
    """Plain values become options that are called like them; labels are of one line."""
    return [
        Option(one.value, _label(one.label)) if isinstance(one, Option) else Option(one, _label(str(one)))
        for one in given
    ]


def chosen(options: Sequence[Option], given: JSON) -> Option | None:
    """The option that is meant by a value or label: exact, then without regard to case if that is one."""
    for one in options:
        if _same(one.value, given) or one.label == given:
            return one
    if isinstance(given, str):
        folded = [
            one for one in options if given.casefold() in (one.label.casefold(), str(one.value).casefold())
        ]
        if len(folded) == 1:
            return folded[0]
    return None


def nearest(options: Sequence[Option], given: JSON) -> list[str]:
    """Labels that are like what was given, at most three."""
    labels = [one.label for one in options]
    return difflib.get_close_matches(str(given), labels[:5000], n=3, cutoff=0.3) or labels[:3]


async def search(find: OptionSearch, text: str, limit: int) -> tuple[list[Option], bool]:
    """Options for a text; the second value says whether there are more.

    Raises:
        ToolError: the search failed.
    """
    try:
        found = find(text, limit + 1)
        if inspect.isawaitable(found):
            found = await found
        options = as_options([*found])
    except Exception as error:
        logger.exception("a search for options failed")
        raise ToolError("options are not available") from error
    return options[:limit], len(options) > limit


def within(options: Sequence[Option], text: str, limit: int) -> tuple[list[Option], bool]:
    """Those of a fixed list whose label holds a text."""
    found = [one for one in options if text.casefold() in one.label.casefold()]
    return found[:limit], len(found) > limit


def _same(one: JSON, other: JSON) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _label(text: str) -> str:
    return one_line(text)[:LABEL]
