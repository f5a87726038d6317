"""`pilothouse runs export | import | backup`: a journal's content from one store to another, and a copy of a whole file."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Optional

import typer

from ..errors import UsageError
from ..journal.jsonl import Exported, Imported, export, import_
from ..journal.sqlite import SQLiteJournal
from ..records import RunQuery
from .options import DEFAULT, DatabaseOption
from .places import AnyJournal, is_postgres, journal_at
from .process import run
from .screen import to_nowhere

STDOUT = "-"


def _with_journal(db: str, work: Callable[[AnyJournal], Awaitable[None]], *, create: bool = False) -> None:
    async def main() -> None:
        async with journal_at(db, must_be=not create) as journal:
            await work(journal)

    run(main)


def _new(target: Path) -> Path:
    if target.exists():
        raise UsageError(f"{target} exists: name a new file")
    if not target.parent.is_dir():
        raise UsageError(f"no folder {target.parent}")
    return target


def export_runs(
    target: Annotated[str, typer.Argument(help="A new file, or - for standard output.")],
    *,
    thread: Annotated[Optional[str], typer.Option(help="Only this thread.", show_default=False)] = None,  # noqa: UP045
    db: DatabaseOption = DEFAULT,
) -> None:
    """Write runs as JSON lines, with their artifacts; work on the journal may go on meanwhile."""

    async def work(journal: AnyJournal) -> None:
        query = RunQuery(thread_id=thread)
        try:
            if target == STDOUT:
                found = await export(journal, sys.stdout.buffer, query)
                sys.stdout.buffer.flush()
            else:
                found = await _to_new_file(journal, query, _new(Path(target)))
        except BrokenPipeError:
            raise
        except OSError as error:
            if target == STDOUT:
                to_nowhere(sys.stdout)
            where = "to standard output" if target == STDOUT else target
            raise UsageError(f"cannot write {where}: {error.strerror or error}") from error
        typer.echo(f"{found.runs} runs, {found.facts} facts, {found.blobs} artifacts", err=True)
        for problem in found.problems:
            typer.echo(f"  left out: {problem}", err=True)
        if found.problems:
            raise typer.Exit(1)

    _with_journal(db, work)


async def _to_new_file(journal: AnyJournal, query: RunQuery, path: Path) -> Exported:
    """Whole, or not there."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        with unfinished.open("xb") as file:
            found = await export(journal, file, query)
        unfinished.rename(path)
    except FileExistsError as error:
        raise UsageError(f"{unfinished} exists: another export is under way, or was cut") from error
    except BaseException:
        with suppress(OSError):
            unfinished.unlink()
        raise
    return found


def import_runs(
    source: Annotated[Path, typer.Argument(help="What `export` wrote.")], *, db: DatabaseOption = DEFAULT
) -> None:
    """Add the runs of an export, each whole or not at all; the journal is made if it is not there."""
    if not source.is_file():
        raise UsageError(f"no such file: {source}")

    fresh = not is_postgres(db) and not Path(db).exists()
    added = 0

    async def work(journal: AnyJournal) -> None:
        nonlocal added
        with source.open("rb") as file:
            found = await import_(journal, file)
        added = found.runs
        typer.echo(f"{found.runs} runs, {found.facts} facts added; {found.skipped} runs were there already")
        for line in _left_out(found):
            typer.echo(f"  {line}", err=True)
        if found.torn or found.problems or found.conflicts:
            raise typer.Exit(1)

    try:
        _with_journal(db, work, create=True)
    finally:
        if fresh and not added:  # nothing came of it: no empty journal is left behind
            Path(db).unlink(missing_ok=True)


def _left_out(found: Imported) -> list[str]:
    lines = [f"run {run_id} is here with other content: left as it is" for run_id in found.conflicts]
    lines += [f"left out: {problem}" for problem in found.problems]
    return [*lines, f"the file is torn: {found.torn}"] if found.torn else lines


def backup(
    target: Annotated[Path, typer.Argument(help="A new file.")], *, db: DatabaseOption = DEFAULT
) -> None:
    """Copy the whole journal, as of now, while work on it goes on."""

    async def work(journal: AnyJournal) -> None:
        if not isinstance(journal, SQLiteJournal):
            raise UsageError(
                "a journal in Postgres is backed up by the database's own tools: pg_dump, or a base backup"
            )
        await journal.backup(_new(target))
        typer.echo(f"{target}: {target.stat().st_size:,} bytes")

    _with_journal(db, work)
