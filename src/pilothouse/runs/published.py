"""A run whose facts and deltas are published in this process: what all who look at one may ask of it."""

from __future__ import annotations

from typing import Protocol

from ..core.run import RunState
from .ring import Observer, Ring


class PublishedRun(Protocol):
    """`LiveRun` where the run is driven here, `Mirror` where another process drives it.

    Attributes:
        ring: what was published last, and those who wait for more.
        observers: called with each fact and delta, in the step that publishes it.
        followers: how many subscriptions are open; the last one clears the ring of a run that is over.
        over: nothing more will be published here.
    """

    run_id: str
    ring: Ring
    observers: list[Observer]
    followers: int
    over: bool

    @property
    def state(self) -> RunState:
        """The fold of the facts that were published."""
        ...

    @property
    def stoppable(self) -> bool:
        """Whether a stop can still decide how the run ends, as far as is known here."""
        ...


__all__ = ["PublishedRun"]
