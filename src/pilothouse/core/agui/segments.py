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


class Segments:
    """The segments of a run, as far as its facts were read; facts that come later are added."""

    def __init__(self, run_id: str) -> None:
        self.seq = 0
        self._found = [Segment(run_id, 1)]

    def add(self, records: Iterable[Record]) -> None:
        """Takes the next facts."""
        found = self._found
        for record in records:
            self.seq = record.seq
            if not isinstance(record.fact, RequestResolved) or record.causation is None:
                continue
            name = segment_of(record.causation)
            if name is None or name == found[-1].run_id:
                continue
            found[-1] = found[-1]._replace(until=record.seq)
            found.append(Segment(name, record.seq))

    def all(self) -> list[Segment]:
        """All that were found, in order."""
        return list(self._found)


def segments(records: Iterable[Record], run_id: str) -> list[Segment]:
    """All segments of a run, in order."""
    found = Segments(run_id)
    found.add(records)
    return found.all()


__all__ = ["Segment", "Segments", "command_id", "segment_of", "segments"]
