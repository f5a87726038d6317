"""Where a reader of a projected stream is: `SEQ[.PART-OFFSET[e]][:J]~TAG` (server page §5).

A position names facts and characters, not frames, so it does not depend on how text was cut into pieces, on the
process, or on a restart. Positions compare in the order in which a stream passes them.

| form | what was sent |
|---|---|
| `18~TAG` | fact 18 and everything before it |
| `17.1-57~TAG` | fact 17, then 57 characters of part 1 of the message being streamed, and all parts before it |
| `17.1-57e~TAG` | the same, and the end of that part |
| `18:2~TAG` | the first two frames of fact 18; more of them follow |
| `17.0-0:1~TAG`, `17.0-57e:1~TAG` | the first frame of the opening, of the closing of that part |
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

DONE: Final = 1 << 30
"""All frames of a position."""

_FORM: Final = re.compile(
    r"(?P<seq>\d{1,12})(?:\.(?P<part>\d{1,6})-(?P<offset>\d{1,12})(?P<ended>e?))?(?::(?P<nth>\d{1,6}))?~(?P<tag>[0-9a-f]{8})",
    re.ASCII,
)


class Position(NamedTuple):
    """What was sent: fact `seq`, then (part ≥ 0) `offset` characters of a part, then `nth` frames of that place."""

    seq: int
    part: int = -1
    offset: int = 0
    ended: bool = False
    nth: int = DONE

    @property
    def inside_fact(self) -> bool:
        """Whether more frames of fact `seq` itself follow."""
        return self.nth != DONE and self.part < 0

    def write(self, tag: str) -> str:
        """The frame id."""
        seq, part, offset, ended, nth = self
        if nth == DONE:
            if part < 0:
                return f"{seq}~{tag}"
            return f"{seq}.{part}-{offset}e~{tag}" if ended else f"{seq}.{part}-{offset}~{tag}"
        place = f".{part}-{offset}{'e' if ended else ''}" if part >= 0 else ""
        return f"{seq}{place}:{nth}~{tag}"


def read(text: str) -> tuple[Position, str] | None:
    """A position and the tag of its run's lifetime; None if it is no id of ours (the stream then starts over)."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        return None
    part, nth = found["part"], found["nth"]
    place = Position(
        int(found["seq"]),
        -1 if part is None else int(part),
        0 if part is None else int(found["offset"]),
        bool(found["ended"]),
        DONE if nth is None else int(nth),
    )
    return place, found["tag"]


__all__ = ["DONE", "Position", "read"]
