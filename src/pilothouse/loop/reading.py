"""What a reader of a response is told of its surroundings: the stop, the pause, the limits on silence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol

from msgspec import Struct

from ..responses import ErrorKind


class Stop(Protocol):
    """The part of a cancel scope that a reader needs."""

    def on_cancel(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back once when cancelled, at once if it is already."""
        ...


class Gate(Struct, frozen=True, eq=False):
    """Where reading waits while it is paused.

    Attributes:
        paused: a live collection, empty while nothing is paused: the look at it is all that a read costs then.
        wait: returns when reading may go on.
        watch: calls back whenever a gate of the run was shut or opened; returns a function that takes this back.
    """

    paused: Collection[object] = ()
    wait: Callable[[], Awaitable[None]] | None = None
    watch: Callable[[Callable[[], object]], Callable[[], None]] | None = None


class Silence(Struct, eq=False):
    """How long a provider may be silent (LP-51); None for no limit.

    Attributes:
        first_due: moment on the clock's `monotonic` by which the first event must be there.
        idle: seconds between two events.
        first_kind, idle_kind: what a trip is called.
    """

    first_due: float | None = None
    idle: float | None = None
    first_kind: ErrorKind = "send_timeout"
    idle_kind: ErrorKind = "idle_timeout"
