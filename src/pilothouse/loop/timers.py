"""Timers on an injected clock that cost no task on the real one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..clock import SystemClock
from ..contracts import Clock

_sleepers: Final[set[asyncio.Task[None]]] = set()
"""Strong references: the event loop itself keeps only weak ones to tasks."""


def call_later(clock: Clock, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
    """Calls back once after so many seconds of that clock; returns a function that takes this back.

    On the system clock this is a timer of the event loop. Any other clock is slept on in a task of its own.
    """
    if isinstance(clock, SystemClock):
        return asyncio.get_running_loop().call_later(seconds, callback).cancel

    async def sleep() -> None:
        await clock.sleep(seconds)
        callback()

    task = asyncio.get_running_loop().create_task(sleep())
    _sleepers.add(task)
    task.add_done_callback(_sleepers.discard)

    def cancel() -> None:
        task.cancel()

    return cancel


class Alarm:
    """One re-armed timer: it looks when it may be due, and never costs anything in between.

    `due` is asked for the moment (on the clock's `monotonic`) at which something is to happen, None for never; when
    that moment is over, `ring` is called, once. Moments that move into the future cost nothing: the timer finds out
    when it fires. Call `look` after a moment came nearer.
    """

    __slots__ = ("_cancel", "_clock", "_due", "_ring", "_set_for")

    def __init__(self, clock: Clock, due: Callable[[], float | None], ring: Callable[[], object]) -> None:
        self._clock = clock
        self._due = due
        self._ring = ring
        self._cancel: Callable[[], None] | None = None
        self._set_for = 0.0

    def look(self) -> None:
        """Rings if it is time, else sets the timer."""
        due = self._due()
        if due is None:
            self.stop()
            return
        now = self._clock.monotonic()
        if due <= now:
            self.stop()
            self._ring()
        elif self._cancel is None or due < self._set_for:
            self.stop()
            self._set_for = due
            self._cancel = call_later(self._clock, due - now, self._fired)

    def stop(self) -> None:
        """Takes the timer back."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _fired(self) -> None:
        self._cancel = None
        self.look()
