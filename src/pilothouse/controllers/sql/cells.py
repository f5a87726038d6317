"""Cells of a grid: their types, how they are shown, and how they are written as JSON and CSV."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias, final
from uuid import UUID

from ...messages import JSON

ColumnType: TypeAlias = Literal[
    "int", "float", "decimal", "text", "bool", "date", "datetime", "time", "bytes", "mixed"
]

SAFE_INTEGER: Final = 2**53
"""From here on a reader in JavaScript gets another number."""

_OF_VALUES: Final[tuple[tuple[type, ColumnType], ...]] = (
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (Decimal, "decimal"),
    (str, "text"),
    (datetime, "datetime"),
    (date, "date"),
    (time, "time"),
    (bytes, "bytes"),
)
_OF_WORDS: Final[tuple[tuple[str, ColumnType], ...]] = (
    (r"^bool", "bool"),
    (r"int(eger)?\b|^(big|small|tiny|huge|u)?int|serial", "int"),
    (r"decimal|numeric|money", "decimal"),
    (r"real|floa|doub", "float"),
    (r"datetime|timestamp", "datetime"),
    (r"^date", "date"),
    (r"^time", "time"),
    (r"blob|bytea|binary", "bytes"),
    (r"char|text|clob|json|uuid|enum", "text"),
)
"""What the databases' words for types mean, first match wins; for columns without a value."""


@final
@dataclass(frozen=True, slots=True)
class Column:
    """A column of a grid.

    Attributes:
        name: as in the query.
        title: for a reader; `group` is what stands before the dot of an alias like `Group.Column`.
        align: `right` for numbers.
    """

    name: str
    title: str
    type: ColumnType
    align: Literal["left", "right"]
    group: str | None = None


def described(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]]) -> tuple[Column, ...]:
    """Columns with types from the values of the first page, and from the driver's words where there are none."""
    made = []
    for at, (name, word) in enumerate(columns):
        kind = _type_of([row[at] for row in rows if row[at] is not None], word)
        group, dot, own = name.rpartition(".")
        title = (own if dot and own else name).replace("_", " ").strip() or name
        made.append(
            Column(
                name,
                title[:1].upper() + title[1:],
                kind,
                "right" if kind in ("int", "float", "decimal") else "left",
                group if dot and group and own else None,
            )
        )
    return tuple(made)


def _type_of(values: Iterable[Any], word: str) -> ColumnType:
    kinds = {
        next((kind for known, kind in _OF_VALUES if isinstance(value, known)), "mixed") for value in values
    }
    if not kinds:
        return next((kind for pattern, kind in _OF_WORDS if re.search(pattern, word, re.IGNORECASE)), "text")
    if len(kinds) == 1:
        return kinds.pop()  # type: ignore[return-value]
    if kinds <= {"int", "float"}:
        return "float"
    if kinds <= {"int", "decimal"}:
        return "decimal"
    return "mixed"


def as_json(value: Any) -> JSON:
    """A cell for a page: nothing that a reader in JavaScript would get wrong."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if abs(value) < SAFE_INTEGER else str(value)
        case float():
            return value if math.isfinite(value) else None
        case Decimal() | UUID():
            return str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return str(value)
        case bytes():
            return {"type": "bytes", "size": len(value)}
        case dict():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
        case _:
            return str(value)


_RISKY: Final = ("=", "+", "-", "@")


def as_csv(value: Any, *, escape_formulas: bool) -> str:
    """A cell for a file that may be opened in a spreadsheet.

    A text that a spreadsheet would take for a formula gets a `'` before it (OWASP, CSV Injection); numbers stay.
    """
    if value is None:
        return ""
    if isinstance(value, bytes):
        return value.hex()
    text = value.isoformat() if isinstance(value, datetime | date | time) else str(value)
    is_number = isinstance(value, int | float | Decimal)
    if escape_formulas and not is_number and text and (text[0] in _RISKY or not text[0].isprintable()):
        return f"'{text}"
    return text
