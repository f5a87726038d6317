"""`pilothouse runs recover`: a lost run is driven to its end by the agent that it belongs to."""

from __future__ import annotations

import typer

from ..records import Accept
from ..runs.controller import RunController
from . import process
from .agents import Agents, template_of
from .places import journal_at
from .runs import find_open


def recover(
    run: str,
    target: str | None,
    *,
    model: str | None,
    db: str,
    accept_config_change: str,
    accept_violation: str,
) -> None:
    """Recovers one run and waits for its end."""
    accept = Accept(accept_violation, accept_config_change)
    process.run(lambda: _recover(run, target, model, db, accept))


async def _recover(run: str, target: str | None, model: str | None, db: str, accept: Accept) -> None:
    say = lambda text: typer.echo(text, err=True)  # noqa: E731
    async with journal_at(db, must_be=True) as journal:
        run_id = await find_open(journal, run)
        async with Agents(target, model, say) as definition:
            template = template_of(definition)
            async with RunController(template.runtime, journal=journal, auto_recover="never") as runs:
                await _drive(runs, run_id, accept)


async def _drive(runs: RunController, run_id: str, accept: Accept) -> None:
    view = await runs.recover(run_id, accept=accept)
    typer.echo(f"run {run_id} is {view.status}", err=True)
    result = await runs.wait_for_terminal(run_id)
    for entry in await runs.own_messages(run_id):
        if entry.message.role == "assistant":
            typer.echo(entry.message.text)
    typer.echo(f"run {run_id} is {result.view.status}", err=True)
    if result.view.status not in ("completed", "truncated"):
        raise typer.Exit(1)
