"""A whole result as a CSV file or a data frame."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ..errors import MissingExtra
from .cells import Column, as_csv


def csv_bytes(columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, escape_formulas: bool) -> bytes:
    """UTF-8, a line of names first, RFC 4180."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow([as_csv(column.name, escape_formulas=escape_formulas) for column in columns])
    for row in rows:
        writer.writerow([as_csv(cell, escape_formulas=escape_formulas) for cell in row])
    return text.getvalue().encode()


def write_csv(
    path: Path, columns: Sequence[Column], rows: Sequence[Sequence[Any]], *, escape_formulas: bool
) -> None:
    """Writes beside the target and replaces it at the end: a reader sees the old file or the new one."""
    data = csv_bytes(columns, rows, escape_formulas=escape_formulas)
    handle, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise


def frame(
    library: Literal["pandas", "polars"], columns: Sequence[Column], rows: Sequence[Sequence[Any]]
) -> Any:
    """A data frame of pandas or polars, which are imported here and nowhere else."""
    try:
        module = import_module(library)
    except ImportError:
        raise MissingExtra("", library, f"make a {library} frame") from None
    names = [column.name for column in columns]
    if library == "pandas":
        return module.DataFrame.from_records(list(rows), columns=names)
    return module.DataFrame(list(rows), schema=names, orient="row", infer_schema_length=None)
