"""The AG-UI runs of one run: it is one *segment* from its start to each pause or end (server page §6.1).

The first segment has the run's own id. An answer begins the next one, under the id that the client chose: it stands in
the ids of the answer commands, so segments are computed from facts and a repeated request finds its own (SV-70, SV-72).
An answer that was refused begins nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...events import RequestResolved
from ...records import Record

_PREFIX = "agui"


class Segment(NamedTuple):
    """One AG-UI run: the facts from `since` on, up to the first one of the next segment."""

    run_id: str
    since: int
    until: int | None = None


def command_id(run_id: str, request_id: str) -> str:
    """The id of the command by which a segment answers a request."""
    return f"{_PREFIX}:{len(run_id)}:{run_id}:{request_id}"


def segment_of(command: str) -> str | None:
    """The AG-UI run that a command id names; None if it is not such an id."""
    prefix, _, rest = command.partition(":")
    length, _, rest = rest.partition(":")
    if prefix != _PREFIX or not length.isdecimal() or rest[int(length) : int(length) + 1] != ":":
        return None
    return rest[: int(length)]


def segments(records: Iterable[Record], run_id: str) -> list[Segment]:
    """All segments of a run, in order."""
    found = [Segment(run_id, 1)]
    for record in records:
        if not isinstance(record.fact, RequestResolved) or record.causation is None:
            continue
        name = segment_of(record.causation)
        if name is None or name == found[-1].run_id:
            continue
        found[-1] = found[-1]._replace(until=record.seq)
        found.append(Segment(name, record.seq))
    return found


__all__ = ["Segment", "command_id", "segment_of", "segments"]
