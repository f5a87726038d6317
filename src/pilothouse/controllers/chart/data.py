"""Rows as Vega-Lite takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from ...messages import JSON
from ..sql.cells import as_json


def value_of(cell: Any) -> JSON:
    """A cell for a chart.

    Decimals are numbers here. Dates and times without a zone are written with a time and without an offset: a bare
    date is read as UTC by JavaScript (ECMA-262 §21.4.1.32) and drawn a day early west of Greenwich.
    """
    match cell:
        case Decimal():
            number = float(cell)
            return number if math.isfinite(number) else None
        case datetime():
            return cell.isoformat(timespec="milliseconds" if cell.microsecond else "seconds")
        case date():
            return f"{cell.isoformat()}T00:00:00"
        case _:
            return as_json(cell)


def records(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> tuple[dict[str, JSON], ...]:
    """Rows as objects."""
    return tuple([{name: value_of(cell) for name, cell in zip(columns, row, strict=True)} for row in rows])
