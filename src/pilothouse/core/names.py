"""Names that a run has used up: what must not come again is known without being kept (RC-23, RC-24, EF-2).

The store refuses a second fact under one event id, but a foreign runtime gives event ids of its own, and a call is
proposed inside a message: so the ids of messages, outputs, ended requests and finished calls are remembered here, in
eight bytes each. 100,000 of them are 800 kB; two of those are taken for the same once in about 4 × 10⁹ such runs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from functools import lru_cache
from hashlib import blake2b
from typing import final


@final
class Names:
    """A set of names that only grows; a sorted array, so that a copy is a copy of bytes."""

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        self._marks = array("Q")

    def add(self, kind: str, name: str) -> None:
        """Takes a name; nothing happens if it is in."""
        marks, mark = self._marks, _mark(kind, name)
        place = bisect_left(marks, mark)
        if place == len(marks) or marks[place] != mark:
            marks.insert(place, mark)

    def has(self, kind: str, name: str) -> bool:
        """Whether it was taken."""
        marks, mark = self._marks, _mark(kind, name)
        place = bisect_left(marks, mark)
        return place < len(marks) and marks[place] == mark

    def __len__(self) -> int:
        return len(self._marks)

    def marks(self) -> tuple[int, ...]:
        """What is kept of the names, in order: equal for equal sets of names."""
        return tuple(self._marks)

    def copy(self) -> Names:
        """An independent copy."""
        twin = Names()
        twin._marks = self._marks[:]
        return twin


@lru_cache(maxsize=256)  # a name is asked for, taken and often delivered: one hash for the three
def _mark(kind: str, name: str) -> int:
    # 0.9 µs; `hash()` is another one in each process, and what is folded must not depend on the process.
    return int.from_bytes(blake2b(f"{kind}:{name}".encode("utf-8", "replace"), digest_size=8).digest(), "big")


__all__ = ["Names"]
