"""A progress bar for the one long step, the fetch of the local model; quiet where nobody watches."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Called with a text and a fraction (None: unknown). A context manager."""

    def __init__(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task: TaskID | None = None
        self._text = ""

    def __call__(self, text: str, fraction: float | None) -> None:
        """Shows where it is; on a pipe, each new text is one line."""
        if text != self._text and not sys.stderr.isatty():
            sys.stderr.write(f"{text} …\n")
            sys.stderr.flush()
        self._text = text
        if self._task is None:
            self._task = self._bar.add_task(text, total=None)
        self._bar.update(self._task, description=text, total=None if fraction is None else 1.0)
        if fraction is not None:
            self._bar.update(self._task, completed=fraction)

    def __enter__(self) -> Self:
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Takes it away."""
        self._bar.stop()
