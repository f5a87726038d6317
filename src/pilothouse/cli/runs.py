"""`pilothouse runs …`: what the journal holds, and the decisions that only a person can make."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, Optional, get_args

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from ..contracts import Journal, RunPort
from ..core.run import TAKEOVERS_TRIED
from ..errors import ConfigError, RunNotFound, UsageError
from ..events import (
    CallFinished,
    CallStarted,
    CommandReceived,
    ContinuityLost,
    MessageAdded,
    ModelAttemptEnded,
    Opaque,
    PartialSaved,
    RequestOpened,
    RunAbandoned,
    RunEnded,
    ViolationRecorded,
)
from ..messages import Message
from ..records import Descriptor, Record, RunEntry, RunQuery, RunStateName, RunStatus, Start
from ..runs.controller import RunController
from . import process
from .explain import ended
from .moves import backup, export_runs, import_runs
from .options import DEFAULT, DatabaseOption
from .places import journal_at

app = typer.Typer(
    help="List, show, verify, recover, abandon, export, import and back up runs.", no_args_is_help=True
)
app.command("export")(export_runs)
app.command("import")(import_runs)
app.command()(backup)

RunArgument = Annotated[str, typer.Argument(help="A run id, or enough of its beginning.", show_default=False)]
STATUSES: tuple[str, ...] = get_args(RunStatus)


SHORT_ID: Final = 12


class _Reader:
    """A runtime that can only be looked at: listing and abandoning drive nothing."""

    def describe(self) -> Descriptor:
        return Descriptor("reader", cancel="none")

    async def run(self, start: Start, port: RunPort, /) -> None:
        raise UsageError("this controller starts no runs")


def _with_runs(db: str, work: Callable[[RunController], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            journal_at(db, must_be=True) as journal,
            RunController(_Reader(), "reader", journal=journal, auto_recover="never") as runs,
        ):
            await work(runs)

    process.run(main)


async def find(runs: RunController, prefix: str) -> str:
    """The run that an id, or the beginning of one, names.

    Raises:
        UsageError: none or several.
    """
    if await runs.has_run(prefix):
        return prefix
    cursor: str | None = None
    found: list[str] = []
    while True:
        page = await runs.catalog_runs(RunQuery(), cursor=cursor, limit=500)
        found += [entry.run_id for entry in page.items if entry.run_id.startswith(prefix)]
        cursor = page.cursor
        if cursor is None or len(found) > 1:
            break
    if not found:
        raise RunNotFound(prefix)
    if len(found) > 1:
        raise UsageError(f"{prefix} names several runs: {', '.join(found[:4])}")
    return found[0]


async def find_open(journal: Journal, prefix: str) -> str:
    """As `find`, a run that has not ended: told before an agent is loaded for it.

    Raises:
        UsageError: none, several, or it has ended.
    """
    async with RunController(_Reader(), "reader", journal=journal, auto_recover="never") as runs:
        run_id = await find(runs, prefix)
        view = await runs.inspect(run_id)
        if view.outcome is not None:
            raise UsageError(f"cannot recover run {run_id}: it has ended, {ended(view.outcome)}")
        if view.ownership == "elsewhere":
            raise UsageError(f"cannot recover run {run_id}: another process drives it")
        return run_id


@app.command("list")
def list_runs(
    *,
    db: DatabaseOption = DEFAULT,
    thread: Annotated[Optional[str], typer.Option(help="Only this thread.", show_default=False)] = None,  # noqa: UP045
    status: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help=f"Only one of {', '.join(STATUSES)}.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(help="How many.", min=1, max=500)] = 20,
) -> None:
    """The newest runs."""
    if status is not None and status not in STATUSES:
        raise ConfigError(f"--status is one of {', '.join(STATUSES)}, not {status!r}")

    async def work(runs: RunController) -> None:
        entries = await _newest(runs, thread, status, limit)
        if not entries:
            typer.echo("no runs")
            return
        rows = [
            (
                entry.run_id,
                entry.thread_id,
                shown_status(entry),
                str(entry.last_seq),
                _ago(entry.updated_at_ms),
            )
            for entry in entries
        ]
        heads = ("run", "thread", "status", "facts", "last change")
        console = Console()
        if not console.is_terminal:  # for a pipe: whole ids, one run a line
            for row in (heads, *rows):
                typer.echo("\t".join(row))
            return
        table = Table(box=None, pad_edge=False)
        for head in heads:
            table.add_column(head, overflow="fold")
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        whole = sum(widths) + 2 * len(widths) <= console.width
        for run, *rest in rows:  # the beginning of an id is enough for every command
            table.add_row(run if whole else run[:SHORT_ID], *rest)
        console.print(table)

    _with_runs(db, work)


async def _newest(runs: RunController, thread: str | None, status: str | None, limit: int) -> list[RunEntry]:
    """A status is what is seen, not what is stored: an orphan is unknown without a write. So pages are looked through."""
    found: list[RunEntry] = []
    cursor: str | None = None
    while len(found) < limit:
        size = limit if status is None else 500
        page = await runs.catalog_runs(RunQuery(thread_id=thread), cursor=cursor, limit=size)
        entries = [await _told_apart(runs, entry) for entry in page.items]
        found += [entry for entry in entries if status is None or entry.status == status]
        cursor = page.cursor
        if cursor is None:
            break
    return found[:limit]


async def _told_apart(runs: RunController, entry: RunEntry) -> RunEntry:
    """An orphan by itself, a run that waits for a worker by its right name."""
    if entry.ownership == "orphaned" and (state := await _queued_as(runs, entry.run_id)) is not None:
        return replace(entry, status=state, ownership="queued")
    return entry


async def _queued_as(runs: RunController, run_id: str) -> RunStateName | None:
    """The state of a run that waits for a worker: `serve --dispatch` accepted it, or a worker that left handed it over.

    Nobody's death has left it, or its last owner would stand there. What had begun can be handed over only where the
    journal is one of several machines, and what was taken over in vain for so often is taken by nobody.
    """
    head = await runs.journal.head(run_id)
    if head is None or head.owner is not None:
        return None
    summary = head.summary
    given = runs.journal.relay is not None and summary.takeovers < TAKEOVERS_TRIED
    return summary.state if summary.state == "accepted" or (given and not summary.loss_recorded) else None


def shown_status(entry: RunEntry) -> str:
    """The status, with what an operator wants to know of who drives it."""
    note = {
        "here": "",
        "none": "",
        "elsewhere": " (live)",
        "orphaned": " (owner gone)",
        "queued": " (waits for a worker)",
        "parked": " (at rest)",
    }
    return f"{entry.status}{note.get(entry.ownership, '')}"


def _ago(at_ms: int) -> str:
    seconds = max(0, int(time.time() - at_ms / 1000))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


@app.command()
def show(run: RunArgument, *, db: DatabaseOption = DEFAULT) -> None:
    """One run: where it stands, and its facts."""

    async def work(runs: RunController) -> None:
        run_id = await find(runs, run)
        view = await runs.inspect(run_id)
        queued = await _queued_as(runs, run_id) if view.ownership == "orphaned" else None
        stands = f"{queued} (waits for a worker)" if queued else f"{view.status} ({view.ownership})"
        typer.echo(f"run     {run_id}\nthread  {view.thread_id}\nstatus  {stands}")
        if view.outcome is not None:
            typer.echo(f"outcome {ended(view.outcome)}")
        if view.unknown is not None and not queued:
            # 0: nobody has put the loss on record yet.
            since = f"since fact {view.unknown.loss_seq}: " if view.unknown.loss_seq else ""
            typer.echo(f"unknown {since}{view.unknown.cause}: {view.unknown.reason}")
        if queued:
            typer.echo(
                f"next    pilothouse worker …, with the agent that it is for   or   pilothouse runs abandon {run_id} --reason …"
            )
        elif view.status == "unknown" and view.outcome is None:
            typer.echo(
                f"next    pilothouse runs recover {run_id}   or   pilothouse runs abandon {run_id} --reason …"
            )
        typer.echo("")
        for record in await runs.events(run_id):
            typer.echo(f"{record.seq:>5}  {record.fact.kind:<22}{summary(record)}")

    _with_runs(db, work)


def summary(record: Record) -> str:
    """One line of what a fact says."""
    fact = record.fact
    match fact:
        case MessageAdded(message=message):
            return f"{message.role}: {_short(message)}"
        case PartialSaved(part=part, text=text):
            return f"{part}: {_cut(text)}"
        case CallStarted(tool=tool, call_id=call_id, effect=effect):
            return f"{tool} {call_id} ({effect})"
        case CallFinished(call_id=call_id, outcome=outcome, reason=reason):
            return f"{call_id} {outcome} {reason}"
        case ModelAttemptEnded(end=end, error=error):
            return end if error is None else f"{end}: {error.kind} {_cut(error.message)}"
        case CommandReceived(command=command):
            return f"{command.id} {command.body.__struct_config__.tag}"
        case RequestOpened(request=request):
            return f"{request.id} {request.kind} {_cut(request.prompt)}"
        case ContinuityLost(cause=cause, reason=reason):
            return f"{cause} {_cut(reason)}"
        case ViolationRecorded(code=code, why=why):
            return f"{code}: {_cut(why)}"
        case RunAbandoned(reason=reason, by=by):
            return f"{_cut(reason)} ({by})" if by else _cut(reason)
        case RunEnded(outcome=outcome):
            return ended(outcome)
        case Opaque():
            return "(a newer vocabulary)"
        case _:
            return ""


def _short(message: Message) -> str:
    calls = " ".join(f"[calls {call.tool}]" for call in message.tool_calls)
    return f"{_cut(message.text)} {calls}".strip()


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:89]}…"


@app.command()
def recover(
    run: RunArgument,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="The agent that drove it, as given to `serve`; without it the default chat."),
    ] = None,
    *,
    model: Annotated[Optional[str], typer.Option("--model", "-m", help="As given to `serve`.")] = None,  # noqa: UP045
    db: DatabaseOption = DEFAULT,
    accept_config_change: Annotated[
        str, typer.Option(help="Why it may go on under another model or configuration.")
    ] = "",
    accept_violation: Annotated[
        str, typer.Option(help="Why it may go on although its runtime broke the contract.")
    ] = "",
) -> None:
    """Take a lost run up again from its facts and print how it ends."""
    from .recover import recover as work

    work(
        run,
        target,
        model=model,
        db=db,
        accept_config_change=accept_config_change,
        accept_violation=accept_violation,
    )


@app.command()
def abandon(
    run: RunArgument,
    *,
    reason: Annotated[str, typer.Option(help="Why; it is kept on the record.")],
    by: Annotated[str, typer.Option(help="Who decides.", envvar="USER")] = "",
    db: DatabaseOption = DEFAULT,
) -> None:
    """End an unknown run on the record, without knowing what happened."""

    async def work(runs: RunController) -> None:
        run_id = await find(runs, run)
        view = await runs.abandon(run_id, reason, by=by)
        typer.echo(f"run {run_id} is {view.status}, abandoned: {reason}")

    _with_runs(db, work)


@app.command()
def verify(
    run: Annotated[Optional[str], typer.Argument(help="One run; without it all.")] = None,  # noqa: UP045
    *,
    db: DatabaseOption = DEFAULT,
) -> None:
    """Check every body, digest and chain."""

    async def work(runs: RunController) -> None:
        found = await runs.journal.verify(None if run is None else await find(runs, run))
        typer.echo(f"{found.runs} runs, {found.facts} facts, {len(found.problems)} problems")
        for problem in found.problems:
            typer.echo(f"  {problem}")
        if found.problems:
            raise typer.Exit(1)

    _with_runs(db, work)
