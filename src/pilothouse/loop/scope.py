"""The stop of a run as its parts see it: the controller's, and the loop's own (its deadline, its watchdog)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias, final

from ..commands import StopSource
from ..contracts import CancelScope, Clock
from ..events import Cancelled, Failed, Incomplete, Outcome
from .timers import Alarm

Own: TypeAlias = Literal[
    "limit",  # the time for work is over
    "watchdog",  # the run fell silent
    "full",  # its record takes no more than its end
]


@final
class WorkScope:
    """Implements `contracts.CancelScope`. The first reason wins.

    Attributes:
        cancelled: whether the run is to end.
    """

    __slots__ = ("_callbacks", "_count", "_outer", "_own", "_take_back", "cancelled")

    def __init__(self, outer: CancelScope) -> None:
        self.cancelled = False
        self._outer = outer
        self._own: Own | None = None
        self._callbacks: dict[int, Callable[[], object]] = {}
        self._count = 0
        self._take_back = outer.on_cancel(self._fire)

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
            self._fire()

    def outcome(self) -> Outcome:
        """How a run ends that was stopped like this (agent-loop §2.5)."""
        if self._own == "watchdog":
            return Failed("stalled", message="the run fell silent", retryable=True)
        if self._own == "full":
            return Incomplete("limit", "run_full")
        if self.source == "deadline":
            return Incomplete("limit", "deadline")
        return Cancelled(self._outer.reason, self._outer.source or "user")

    def on_cancel(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when cancelled, at once if it is already; returns a function that takes this back."""
        if self.cancelled:
            callback()
            return _nothing
        self._count += 1
        key = self._count
        self._callbacks[key] = callback

        def take_back() -> None:
            self._callbacks.pop(key, None)

        return take_back

    async def wait(self) -> None:
        """Waits until cancelled."""
        if not self.cancelled:
            event = asyncio.Event()
            take_back = self.on_cancel(event.set)
            try:
                await event.wait()
            finally:
                take_back()

    def close(self) -> None:
        """Listens to the controller no more."""
        self._take_back()
        self._take_back = _nothing  # no cycle is left for the collector

    def _fire(self) -> None:
        self.cancelled = True
        callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            callback()


def _nothing() -> None:
    return None


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
