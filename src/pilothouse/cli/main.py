"""`pilothouse serve | worker | chat | runs | record | decode`: thin commands over the library.

Every command that fails prints one line that says what to do and exits with 1; a wrong use exits with 2.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from .._version import __version__
from ..errors import PilothouseError, UsageError
from .options import DEFAULT, DatabaseOption
from .runs import app as runs_app

app = typer.Typer(
    name="pilothouse",
    help="An agent controller: durable, steerable conversations with models and agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(runs_app, name="runs")

TargetArgument = Annotated[
    Optional[str],  # noqa: UP045 - typer reads this annotation
    typer.Argument(
        help="An agent: file.py (which defines `agent`), file.py:NAME or module:NAME. Without it: a chat with the "
        "model of a key that is set, else with the local model.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    Optional[str],  # noqa: UP045 - as above
    typer.Option(
        "--model",
        "-m",
        help="openai:NAME, anthropic:NAME, gemini:NAME, ollama:NAME, local, local:/path/to.gguf, or "
        "http://host:port/v1#NAME.",
        show_default=False,
    ),
]

DispatchOption = Annotated[
    Optional[str],  # noqa: UP045 - as above
    typer.Option(
        help="Who gives runs to workers: dbos (in the journal's Postgres) or temporal://HOST:PORT.",
        show_default=False,
    ),
]
LeaseOption = Annotated[
    float,
    typer.Option(
        help="Seconds after which a worker that says nothing is taken for dead; the same everywhere.", min=0.5
    ),
]


def _show_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"pilothouse {__version__}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=lambda wanted: _show_version(wanted=wanted),
        ),
    ] = False,
) -> None:
    """An agent controller: durable, steerable conversations with models and agents."""


@app.command()
def serve(
    target: TargetArgument = None,
    *,
    model: ModelOption = None,
    db: DatabaseOption = DEFAULT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535, metavar="<port>")
    ] = 8700,
    recover: Annotated[
        str,
        typer.Option(
            help="When runs that a crash cut are taken up again: on_open (at start), on_command, or never."
        ),
    ] = "on_command",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    dispatch: DispatchOption = None,
    lease: LeaseOption = 10.0,
    embedded: Annotated[
        bool, typer.Option("--embedded", help="Drive the runs in this process; so it is without --dispatch.")
    ] = False,
) -> None:
    """Serve an agent: the chat page, the AG-UI endpoint and the run control API."""
    from .serve import serve as run

    if embedded and dispatch is not None:
        raise UsageError("--embedded drives runs here, --dispatch gives them to workers: choose one")
    run(
        target,
        model=model,
        db=db,
        host=host,
        port=port,
        recover=recover,
        open_page=open_page,
        dispatch=dispatch,
        lease=lease,
    )


@app.command()
def worker(
    target: TargetArgument = None,
    *,
    model: ModelOption = None,
    db: DatabaseOption = DEFAULT,
    dispatch: DispatchOption = "dbos",
    concurrency: Annotated[int, typer.Option(help="Runs that are driven at once.", min=1)] = 100,
    per_principal: Annotated[
        Optional[int],  # noqa: UP045 - as above
        typer.Option(help="Runs of one principal at once, on all workers.", min=1, show_default=False),
    ] = None,
    rate: Annotated[
        str, typer.Option(help="Starts in so many seconds, on all workers: 50/1.", show_default=False)
    ] = "",
    lease: LeaseOption = 10.0,
    config_change: Annotated[
        str,
        typer.Option(
            help="Take over runs that another model, prompt or tool set began, for this reason, which is recorded.",
            show_default=False,
        ),
    ] = "",
    host: Annotated[str, typer.Option(help="Address for health and metrics.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port for them; 0 takes a free one.", min=0, max=65535, metavar="<port>")
    ] = 0,
) -> None:
    """Drive the runs of an agent that `serve --dispatch` accepted, here or on other machines."""
    from .worker import worker as run

    run(
        target,
        model=model,
        db=db,
        dispatch=dispatch or "dbos",
        concurrency=concurrency,
        per_principal=per_principal,
        rate=rate,
        lease=lease,
        config_change=config_change,
        host=host,
        port=port,
    )


@app.command()
def chat(
    target: TargetArgument = None,
    *,
    model: ModelOption = None,
    db: DatabaseOption = DEFAULT,
    thread: Annotated[
        Optional[str],  # noqa: UP045 - as above
        typer.Option(help="Go on with this thread.", show_default=False),
    ] = None,
    message: Annotated[
        Optional[str],  # noqa: UP045 - as above
        typer.Option("--message", "-M", help="Send one message, print the answer, exit.", show_default=False),
    ] = None,
) -> None:
    """Chat in the terminal. TARGET may be an address too: any AG-UI endpoint. Ctrl-C stops the answer, Ctrl-D leaves."""
    from .chat import chat as run

    run(target, model=model, db=db, thread=thread, message=message)


@app.command()
def decode(
    file: Annotated[
        Path,
        typer.Argument(help="A recorded response body, or a .json that `record` wrote (kind wire_chunks)."),
    ],
    *,
    dialect: Annotated[
        Optional[str],  # noqa: UP045 - typer reads this annotation
        typer.Option(
            help="openai-chat, openai-responses, anthropic or gemini; a .json may say it itself.",
            show_default=False,
        ),
    ] = None,
    chunks: Annotated[
        int, typer.Option(help="Feed N bytes at a time; 0: in the recorded reads, or at once.", min=0)
    ] = 0,
    think_tags: Annotated[
        Optional[str],  # noqa: UP045 - as above
        typer.Option(help="Read <think> tags in text: explicit or implicit.", show_default=False),
    ] = None,
    status: Annotated[
        Optional[int],  # noqa: UP045 - as above
        typer.Option(help="The HTTP status, if it is not the recorded one or 200.", show_default=False),
    ] = None,
    end: Annotated[
        Optional[str],  # noqa: UP045 - as above
        typer.Option(
            help="How the connection ended: eof, reset or held-open; else as recorded, or eof.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print what Pilothouse makes of a recorded response, as one JSON object."""
    from .decode import decode as run

    run(file, dialect=dialect, chunks=chunks, think_tags=think_tags, status=status, end=end)


@app.command()
def record(
    file: Annotated[
        Path,
        typer.Argument(help="Where to save it: .json with each read of the socket, else the body alone."),
    ],
    *,
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="openai:NAME, anthropic:NAME, gemini:NAME, local, or http://host:port/v1#name.",
        ),
    ],
    message: Annotated[str, typer.Option("--message", "-M", help="What to ask.")] = "Say hello.",
    tools: Annotated[
        Optional[Path],  # noqa: UP045 - as above
        typer.Option(
            help="A JSON file: a list of tools with name, description and parameters.", show_default=False
        ),
    ] = None,
    max_output_tokens: Annotated[
        Optional[int],  # noqa: UP045 - as above
        typer.Option(help="Output limit, to record a truncated answer.", min=1, show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Record one answer of a provider as it comes over the wire, keys and headers redacted; `decode` reads it."""
    from .record import record as run

    run(
        file,
        model=model,
        message=message,
        tools=tools,
        max_output_tokens=max_output_tokens,
        force=force,
    )


def main() -> None:
    """The console script: errors of ours are one line, not a traceback."""
    # What a command has to say it says itself; the library's warnings are for whoever embeds it. Except those of the loop:
    # they are faults of the agent that is served, and only its author can mend them.
    logging.basicConfig(level=logging.ERROR, format="pilothouse: %(name)s: %(message)s")
    logging.getLogger("pilothouse.loop").setLevel(logging.WARNING)
    try:
        app()
    except PilothouseError as error:
        fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read what is printed has left
        from .screen import to_nowhere

        to_nowhere(sys.stdout)
        sys.exit(1)


def fail(message: str) -> None:
    """Prints one line to stderr and exits with 1."""
    typer.echo(f"pilothouse: {' '.join(message.split())}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
