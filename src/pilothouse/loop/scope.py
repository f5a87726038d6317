"""The stop of a run as its parts see it: the controller's, and the loop's own (its deadline, its watchdog)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, final

from ..commands import StopSource
from ..contracts import CancelScope, Clock
from ..events import Cancelled, Failed, Incomplete, Outcome
from ..scope import Once, nothing
from .timers import Alarm

Own: TypeAlias = Literal[
    "limit",  # the time for work is over
    "watchdog",  # the run fell silent
    "full",  # its record takes no more than its end
]


@final
class WorkScope(Once):
    """Implements `contracts.CancelScope`. The first reason wins."""

    __slots__ = ("_outer", "_own", "_take_back")

    def __init__(self, outer: CancelScope) -> None:
        super().__init__()
        self._outer = outer
        self._own: Own | None = None
        self._take_back = outer.on_cancel(self._happen)

    @property
    def reason(self) -> str:
        """Why."""
        return self._own or self._outer.reason

    @property
    def source(self) -> StopSource | None:
        """Who asked; the loop's own deadline counts as one."""
        return "deadline" if self._own == "limit" else self._outer.source

    @property
    def deadline_ms(self) -> int | None:
        """When the controller ends the run, epoch milliseconds."""
        return self._outer.deadline_ms

    @property
    def own(self) -> Own | None:
        """The loop's own reason, if that was the first."""
        return self._own

    def stop(self, why: Own) -> None:
        """Ends the run for a reason of the loop itself."""
        if not self.cancelled:
            self._own = why
            self._happen()

    def outcome(self) -> Outcome:
        """How a run ends that was stopped like this (agent-loop §2.5)."""
        if self._own == "watchdog":
            return Failed("stalled", message="the run fell silent", retryable=True)
        if self._own == "full":
            return Incomplete("limit", "run_full")
        if self.source == "deadline":
            return Incomplete("limit", "deadline")
        return Cancelled(self._outer.reason, self._outer.source or "user")

    def close(self) -> None:
        """Listens to the controller no more."""
        self._take_back()
        self._take_back = nothing  # no cycle is left for the collector


@final
class WorkTime:
    """The time that a run may work (`Limits.deadline`): waiting for people and pauses do not count (LP-37).

    Args:
        limit: seconds, None for no limit.
        clock: measures.
        scope: is stopped when the time is over.
    """

    __slots__ = ("_alarm", "_clock", "_due", "_idle_since", "_scope")

    def __init__(self, limit: float | None, clock: Clock, scope: WorkScope) -> None:
        self._clock = clock
        self._scope = scope
        self._due = None if limit is None else clock.monotonic() + limit
        self._idle_since: float | None = None
        self._alarm = None if limit is None else Alarm(clock, self._next, self._over)

    def begin(self) -> None:
        """Sets the timer."""
        if self._alarm is not None:
            self._alarm.look()

    def end(self) -> None:
        """Takes it back."""
        if self._alarm is not None:
            self._alarm.stop()

    def left(self) -> float | None:
        """Seconds of work that are left, None without a limit."""
        return None if self._due is None else self._due - self._clock.monotonic()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Stands still: nothing is worked on, somebody else is waited for."""
        if self._due is None:
            yield
            return
        began = self._idle_since = self._clock.monotonic()
        try:
            yield
        finally:
            self._idle_since = None
            self._due += self._clock.monotonic() - began
            self.begin()

    def _next(self) -> float | None:
        return None if self._idle_since is not None else self._due

    def _over(self) -> None:
        self._scope.stop("limit")
