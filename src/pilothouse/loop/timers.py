"""Timers on an injected clock that cost no task on the real one."""

from __future__ import annotations

from collections.abc import Callable

from ..clock import call_later
from ..contracts import Clock


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


__all__ = ["Alarm", "call_later"]
