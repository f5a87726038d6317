"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

DatabaseOption = Annotated[
    str,
    typer.Option(
        "--db", help="The journal: a SQLite file, or postgresql://HOST/DATABASE.", envvar="PILOTHOUSE_DB"
    ),
]
DEFAULT = "pilothouse.db"
