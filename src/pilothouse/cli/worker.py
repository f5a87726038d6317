"""`pilothouse worker`: drives the runs of an agent that web nodes accepted, and nothing else."""

from __future__ import annotations

import typer

from ..errors import ConfigError
from ..runs.timing import RunTiming
from ..server.app import Server
from ..server.auth import is_loopback
from ..server.run import run_alone, serve_forever
from ..server.settings import WorkOptions
from . import process
from .agents import Agents
from .places import dispatcher_of, journal_at, shown

PARK_S = 10.0
"""A run that waits for a person is let go sooner than in a process that has nothing else to do."""


def worker(
    target: str | None,
    *,
    model: str | None,
    db: str,
    dispatch: str,
    concurrency: int,
    per_principal: int | None,
    rate: str,
    lease: float,
    config_change: str,
    host: str,
    port: int,
) -> None:
    """Works until SIGINT, SIGTERM or SIGHUP, then hands its runs over."""
    if not is_loopback(host):
        raise ConfigError(
            f"{host} is open to other machines: a worker shows its health and metrics to this one alone"
        )

    async def work() -> None:
        def say(text: str) -> None:
            typer.echo(text, err=True)

        journal = journal_at(db)
        dispatcher = dispatcher_of(dispatch, db, journal, worker=concurrency, rate=rate, lease=lease)
        async with Agents(target, model, say) as definition, journal:
            await journal.open()
            app = Server(
                {"default": definition},
                journal=journal,
                faces=(),
                openapi=False,
                timing=RunTiming(lease=lease, park_after=PARK_S),
                dispatcher=dispatcher,
                work=WorkOptions(config_change=config_change, per_principal=per_principal),
            )

            def ready(url: str) -> None:
                say(f"drives up to {concurrency} runs at once, by {dispatch}")
                say(f"health and metrics are at {url}/readyz and {url}/metrics")
                say(f"the journal is {shown(db)}; Ctrl-C hands the runs over and stops")

            await serve_forever(app, host, port, ready=ready)

    process.run(work, by=run_alone)
