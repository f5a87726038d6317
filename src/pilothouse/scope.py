"""The stop of a run on its event loop (contracts.CancelScope): asked for once, and told to who waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from .cancel import tell
from .commands import StopSource


class Once:
    """What happens once on one event loop: callbacks run in order, their exceptions are logged.

    Attributes:
        cancelled: whether it has happened.
    """

    __slots__ = ("_callbacks", "cancelled")

    def __init__(self) -> None:
        self.cancelled = False
        self._callbacks: list[Callable[[], object]] = []

    def on_cancel(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when cancelled, at once if it is; the returned function takes this back."""
        if self.cancelled:
            callback()
            return nothing
        self._callbacks.append(callback)

        def take_back() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

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

    def _happen(self) -> None:
        self.cancelled = True
        callbacks, self._callbacks = self._callbacks, []
        tell(callbacks)


class Scope(Once):
    """The stop of a run. The first one gives reason and source.

    Attributes:
        deadline_ms: when the controller ends the run, epoch milliseconds.
    """

    __slots__ = ("__weakref__", "deadline_ms", "reason", "source")

    def __init__(self, deadline_ms: int | None) -> None:
        super().__init__()
        self.reason = ""
        self.source: StopSource | None = None
        self.deadline_ms = deadline_ms

    def fire(self, reason: str, source: StopSource) -> None:
        """Tells everybody."""
        if not self.cancelled:
            self.reason, self.source = reason, source
            self._happen()


def nothing() -> None:
    """What takes back a callback that was called already."""
