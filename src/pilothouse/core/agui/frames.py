"""What a projector gives: events with their positions, and stands for what only the journal has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from ...events import ArgumentsTold, ReasoningTold, TextTold
from ...messages import Value
from .events import Event
from .position import DONE, Position
from .streamed import Kind

Told = TextTold | ReasoningTold | ArgumentsTold

KINDS: Final[Mapping[type, Kind]] = MappingProxyType(
    {TextTold: "text", ReasoningTold: "reasoning", ArgumentsTold: "arguments"}
)


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


def numbered(
    own: Sequence[Event | Snapshot | StateAt | None],
    at: Position,
    *,
    before: int,
    known: int,
    last: bool,
    terminal: bool,
) -> list[Frame]:
    """Positions for frames of one place, of which `before` stand already and the reader has `known`.

    `last` closes the place. A terminal event is given even if the reader has it, then without a position: a reader that
    drops ids which it has seen would wait for the end for ever.
    """
    frames = []
    total = before + len(own)
    for nth, event in enumerate(own, before + 1):
        closes = nth == total
        if event is not None and (nth > known or (terminal and closes)):
            number = DONE if last and closes else nth
            frames.append(Frame(event, None if nth <= known else at._replace(nth=number)))
    return frames


def call_of(body: Told) -> tuple[str, str]:
    """Id and tool of the call whose arguments it is a piece of."""
    return (body.call_id, body.tool) if isinstance(body, ArgumentsTold) else ("", "")


__all__ = ["KINDS", "Frame", "Snapshot", "StartOver", "StateAt", "Told", "call_of", "numbered"]
