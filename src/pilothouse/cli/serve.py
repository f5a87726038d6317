"""`pilothouse serve`: an agent, its page and its APIs, on one address."""

from __future__ import annotations

import sys
import threading
import webbrowser

import typer

from ..errors import ConfigError
from ..server.app import Server
from ..server.auth import is_loopback
from ..server.run import run_alone, serve_forever
from . import process
from .agents import Agents
from .places import dispatcher_of, journal_at, shown

POLICIES = ("on_open", "on_command", "never")


def serve(
    target: str | None,
    *,
    model: str | None,
    db: str,
    dispatch: str | None = None,
    lease: float = 10.0,
    host: str,
    port: int,
    recover: str,
    open_page: bool,
) -> None:
    """Serves until SIGINT, SIGTERM or SIGHUP."""
    if recover not in POLICIES:
        raise ConfigError(f"--recover is one of {', '.join(POLICIES)}, not {recover!r}")
    if not is_loopback(host):
        raise ConfigError(
            f"{host} is open to other machines and this command has no sign-in: put a proxy that has one before "
            "127.0.0.1, or serve from Python with an authenticator (pilothouse.server.Server, auth=)"
        )
    process.run(
        lambda: _serve(
            target, model, db, host, port, recover, open_page=open_page, dispatch=dispatch, lease=lease
        ),
        by=run_alone,
    )


async def _serve(
    target: str | None,
    model: str | None,
    db: str,
    host: str,
    port: int,
    recover: str,
    *,
    open_page: bool,
    dispatch: str | None,
    lease: float,
) -> None:
    def say(text: str) -> None:
        typer.echo(text, err=True)

    journal = journal_at(db)
    dispatcher = None if dispatch is None else dispatcher_of(dispatch, db, journal, lease=lease)
    # The agent first: if it cannot be loaded, no journal is left behind.
    async with Agents(target, model, say) as definition, journal:
        await journal.open()
        app = Server(
            {"default": definition},
            journal=journal,
            auto_recover=recover,  # type: ignore[arg-type]
            dispatcher=dispatcher,
        )

        def ready(url: str) -> None:
            say(f"the chat is at {url}")
            say(f"the journal is {shown(db)}; Ctrl-C stops")
            if open_page and sys.stdout.isatty():
                threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

        await serve_forever(app, host, port, ready=ready)
