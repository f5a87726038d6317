"""What a model is told when a database refuses a query: enough to mend it, and no value of any row."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Final

from ..errors import QueryFailed

logger: Final = logging.getLogger("pilothouse.sql")

MESSAGE: Final = 300
"""Characters of a database's message."""

_ABOUT_TEXT: Final = re.compile(
    r"no such (table|column|function)|does not exist|unknown column|unknown table|ambiguous|syntax error"
    r"|not found in from|referenced (table|column)|must appear in the group by|misuse of (aggregate|window)"
    r"|operator does not exist|no function matches|wrong number of arguments|each union|same number of"
    r"|not authorized|prohibited|no matching|binder error|parser error|catalog error|string or blob too big"
    r"|cannot be cast automatically|aggregate functions are not allowed|missing from-clause|prohibited",
    re.IGNORECASE,
)
"""Messages that speak of names, syntax and types; others may quote what is in the rows."""

_QUOTED: Final = re.compile(r"'(?:[^']|'')*'")


def told(error: BaseException, message: str, *, kind: bool = True, sure: bool = False) -> QueryFailed:
    """The error as a model may read it; the whole goes to the log under a reference.

    Args:
        error: what the driver raised.
        message: its primary message, without context that quotes rows.
        kind: whether the driver's type of error can be about the query's text at all.
        sure: whether its code says that it is.
    """
    first = message.strip().splitlines()[0] if message.strip() else ""
    if sure or (kind and _ABOUT_TEXT.search(first)):
        return QueryFailed(_QUOTED.sub("'…'", first)[:MESSAGE])
    reference = secrets.token_hex(4)
    logger.warning("a query failed (reference %s)", reference, exc_info=error)
    return QueryFailed(f"the database refused the query (reference {reference})")


def stopped_after(seconds: float) -> str:
    """Says that a query took too long."""
    return f"stopped after {seconds:g} s; narrow it"
