"""The limit on a whole send (TC-95): pauses and waits for people are not counted."""

from __future__ import annotations

from collections.abc import Callable

from ..contracts import Clock
from ..loop.timers import call_later


class Deadline:
    """Counts down while the send works, and calls back once it is used up."""

    __slots__ = ("_cancel", "_clock", "_expired", "_held", "_left", "_since")

    def __init__(self, clock: Clock, seconds: float, expired: Callable[[], object]) -> None:
        self._clock = clock
        self._left = seconds
        self._expired = expired
        self._held: set[str] = set()
        self._since = 0.0
        self._cancel: Callable[[], None] | None = None
        self._arm()

    def _arm(self) -> None:
        self._since = self._clock.monotonic()
        self._cancel = call_later(self._clock, self._left, self._fire)

    def _fire(self) -> None:
        self._cancel = None
        self._held.add("over")
        self._expired()

    def hold(self, why: str) -> None:
        """Time stands still for that reason."""
        if not self._held and self._cancel is not None:
            self._left = max(self._left - (self._clock.monotonic() - self._since), 0.0)
            self.stop()
        self._held.add(why)

    def go(self, why: str) -> None:
        """That reason is gone."""
        if why in self._held:
            self._held.discard(why)
            if not self._held:
                self._arm()

    def stop(self) -> None:
        """Takes the timer back."""
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
