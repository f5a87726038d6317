"""What a projector gives: events with their positions, and stands for what only the journal has."""

from __future__ import annotations

from typing import Literal, NamedTuple

from ...messages import Value
from .events import Event
from .position import Position


class Snapshot(Value):
    """Stands for a MESSAGES_SNAPSHOT.

    `front`: what stands in front of the run, and its input. `path`: that, and the run's messages up to fact `until`.
    """

    scope: Literal["front", "path"]
    until: int


class StateAt(Value):
    """Stands for a STATE_SNAPSHOT: the shared state behind fact `until` of the run, 0 in front of the run."""

    until: int


class Frame(NamedTuple):
    """One event to send. Without a position it is ephemeral; `key` then says of what it may be thinned out."""

    event: Event | Snapshot | StateAt
    position: Position | None
    key: str | None = None


class StartOver(Exception):
    """The cursor cannot be gone on from: the run is to be projected from its first frame again (SV-47)."""


__all__ = ["Frame", "Snapshot", "StartOver", "StateAt"]
