"""Where a command's journal is: a SQLite file, or the Postgres of several machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ConfigError, UsageError
from ..journal.sqlite import SQLiteJournal

if TYPE_CHECKING:
    from ..cluster import Dispatcher
    from ..journal.postgres import PostgresJournal

AnyJournal: TypeAlias = "SQLiteJournal | PostgresJournal"

SCHEMA = "pilothouse"
"""Of a Postgres address that names none."""

POSTGRES = ("postgresql://", "postgres://")


def is_postgres(place: str) -> bool:
    """Whether it names a server rather than a file."""
    return place.startswith(POSTGRES)


def journal_at(place: str, *, must_be: bool = False) -> AnyJournal:
    """The journal at a path or a Postgres address; `#schema` at the end of an address names the schema.

    Raises:
        UsageError: it must be there, and there is no such file.
        ConfigError: the package for Postgres is missing.
    """
    if not is_postgres(place):
        if must_be and not Path(place).is_file():
            raise UsageError(f"no journal at {place}: name one with --db")
        return SQLiteJournal(Path(place))
    try:
        from ..journal.postgres import PostgresJournal
    except ModuleNotFoundError as error:
        raise ConfigError(
            'a journal in Postgres needs a package: pip install "pilothouse[postgres]"'
        ) from error
    dsn, _, schema = place.partition("#")
    return PostgresJournal(dsn, schema=schema or SCHEMA)


def shown(place: str) -> str:
    """The place without user and password."""
    if not is_postgres(place):
        return place
    scheme, _, rest = place.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def dispatcher_of(
    word: str, place: str, journal: AnyJournal, *, worker: int = 100, rate: str = "", lease: float = 10.0
) -> Dispatcher:
    """The engine that `--dispatch` names: `dbos`, or `temporal://HOST:PORT[/NAMESPACE]`.

    Raises:
        ConfigError: there is no such engine, or it does not go with this journal.
    """
    if not is_postgres(place):
        raise ConfigError("--dispatch needs the journal of several machines: --db postgresql://…")
    from ..dispatch.limits import DispatchLimits
    from ..journal.postgres import PostgresJournal

    assert isinstance(journal, PostgresJournal)
    limits = DispatchLimits(worker=worker, rate=_rate(rate))
    dsn, _, schema = place.partition("#")
    schema = schema or SCHEMA
    if word == "dbos":
        from ..dispatch.dbos import DBOSDispatcher

        return DBOSDispatcher(dsn, journal, schema=f"{schema}_dbos", limits=limits)
    if word.startswith("temporal://"):
        from ..dispatch.temporal import TemporalDispatcher

        target, _, namespace = word.removeprefix("temporal://").partition("/")
        return TemporalDispatcher(  # journals that share a namespace have runs of the same ids
            target, namespace=namespace or "default", deployment=schema, limits=limits, lease=lease
        )
    raise ConfigError(f"--dispatch is dbos or temporal://HOST:PORT, not {word!r}")


def _rate(text: str) -> tuple[int, float] | None:
    if not text:
        return None
    starts, _, seconds = text.partition("/")
    try:
        return int(starts), float(seconds or "1")
    except ValueError:
        raise ConfigError(f"--rate is STARTS/SECONDS, as in 50/1, not {text!r}") from None
