"""Which way a database is opened, from what the user gave."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...errors import ConfigError
from ..errors import MissingExtra
from .rows import Limits, QuerySource

if TYPE_CHECKING:
    from sqlalchemy import Engine

_DUCKDB_ENDS: Final = (".duckdb", ".ddb")


def open_source(
    source: str | Path | Engine | QuerySource,
    *,
    limits: Limits,
    tables: Collection[str] | None = None,
    functions: Collection[str] = (),
    max_query: int = 20_000,
    assume_read_only: bool = False,
) -> tuple[QuerySource, bool]:
    """Opens a source; the second value says whether it was opened here and is to be closed.

    A path or `sqlite:` URL, and an Engine over a SQLite file, are read with the journal's library; a `.duckdb` file or
    `duckdb:` URL with DuckDB; any other URL or Engine with SQLAlchemy; an object with `run` and `schema` is taken as it is.

    Raises:
        ConfigError: there is no such file or database, or it is not one that can be read safely.
    """

    def file(path: str | Path, *, duck: bool) -> QuerySource:
        if duck:
            from .duck import DuckDBSource

            return DuckDBSource(path, limits=limits, tables=tables)
        from .sqlite import SQLiteSource

        return SQLiteSource(path, limits=limits, tables=tables, functions=functions, max_query=max_query)

    if isinstance(source, QuerySource):
        return source, False
    if isinstance(source, Path):
        return file(source, duck=source.name.endswith(_DUCKDB_ENDS)), True
    if isinstance(source, str) and "://" not in source:
        if source.startswith((":memory:", "sqlite:", "duckdb:", "file:")):
            raise ConfigError(f"cannot show {source}: name a file, or a URL like sqlite:///data.db")
        return file(source, duck=source.endswith(_DUCKDB_ENDS)), True
    if (path := _file_behind(source)) is not None:
        return file(path[1], duck=path[0] == "duckdb"), True
    from .alchemy import AlchemySource

    return AlchemySource(
        source, limits=limits, tables=tables, functions=functions, assume_read_only=assume_read_only
    ), True


def _file_behind(source: str | Engine) -> tuple[str, str] | None:
    """The database and file of a URL or Engine that is about a file; None for a server."""
    try:
        from sqlalchemy import Engine
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError
    except ImportError:
        raise MissingExtra("sql", "sqlalchemy", "open a database by its URL") from None
    if not isinstance(source, str | Engine):
        raise ConfigError(
            f"cannot show {type(source).__name__}: give a path, a URL, an Engine or a QuerySource"
        )
    try:
        url = make_url(source) if isinstance(source, str) else source.url
    except ArgumentError:
        raise ConfigError("cannot read the URL of the database: write it as dialect://…") from None
    backend = url.get_backend_name()
    if backend not in ("sqlite", "duckdb"):
        return None
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise ConfigError(f"cannot show a {backend} database in memory: give one in a file")
    return backend, url.database
