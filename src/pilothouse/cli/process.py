"""A command as a process: what a signal asks of it, and how it leaves."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Timer
from types import FrameType
from typing import Any, Final, TypeVar

from ..server.signals import ENDING, heeding

T = TypeVar("T")

PATIENCE_S: Final = 30.0
"""A program that was asked to end is gone by then, whatever holds it up: a tool that blocks the event loop, say."""

LINGER_S: Final = 3.0
"""So long a command that is done waits for what was stopped and does not end: a tool that ignores its cancellation."""


def _asyncio(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(main())


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    by: Callable[[Callable[[], Coroutine[Any, Any, None]]], None] = _asyncio,
) -> T:
    """As `asyncio.run`, for a command that can be asked to end.

    Then `main` is cancelled, as by Ctrl-C: it stops what runs, closes what is open, so all of it is on the record. After
    that the process dies of the signal, as its caller expects.
    """
    caught: list[int] = []
    late: list[Timer] = []
    made: list[T] = []

    async def heard() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def end(number: int, _: FrameType | None) -> None:
            caught.append(number)
            if len(caught) > 1:  # a closed terminal says it twice: the shell does, too
                return
            loop.call_soon_threadsafe(task.cancel)
            _gone_after(PATIENCE_S, 128 + number)

        with heeding(end, *ENDING):
            try:
                made.append(await main())
            finally:
                if caught:
                    _die_of(caught[0])
                code = made[0] if made and isinstance(made[0], int) else int(not made)
                late.append(_gone_after(LINGER_S, code))

    try:
        by(heard)
    finally:
        for timer in late:
            timer.cancel()
    return made[0]


def _gone_after(seconds: float, code: int) -> Timer:
    """Ends the process, whatever still runs in it, unless the timer is cancelled."""

    def gone() -> None:
        _flush()
        os._exit(code)

    timer = Timer(seconds, gone)
    timer.daemon = True
    timer.start()
    return timer


def _die_of(number: int) -> None:
    """Ends here and now: threads that wait for a line, or in a tool, are not waited for."""
    _flush()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


__all__ = ["run"]
