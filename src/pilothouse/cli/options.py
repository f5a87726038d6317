"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DatabaseOption = Annotated[
    Path, typer.Option("--db", help="The journal: one SQLite file.", envvar="PILOTHOUSE_DB")
]
DEFAULT = Path("pilothouse.db")
