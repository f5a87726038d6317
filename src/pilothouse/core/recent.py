"""What was made last, kept for the next time it is asked for: bounded in number and in weight.

Whoever misses a value makes it anew; so nothing depends on what is kept but the time that it takes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Generic, TypeVar, final

T = TypeVar("T")

THREADS: Final = 256
"""Threads of which something is kept, for each controller …"""

MESSAGES: Final = 20_000
"""… and how many messages all of that may hold together: 10 to 40 MB of talk."""


@final
class Recent(Generic[T]):
    """Values by key; the ones that were put in longest ago are let go of first."""

    __slots__ = ("_heaviest", "_kept", "_most", "weight")

    def __init__(self, most: int = THREADS, heaviest: int = MESSAGES) -> None:
        self._most = most
        self._heaviest = heaviest
        self._kept: OrderedDict[str, tuple[T, int]] = OrderedDict()
        self.weight = 0

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def get(self, key: str) -> T | None:
        """The value, which stays."""
        found = self._kept.get(key)
        return None if found is None else found[0]

    def pop(self, key: str) -> T | None:
        """The value, which is no longer kept."""
        found = self._kept.pop(key, None)
        if found is None:
            return None
        self.weight -= found[1]
        return found[0]

    def put(self, key: str, value: T, weight: int = 0) -> None:
        """Keeps a value, unless it alone is too heavy."""
        if key in self._kept:
            self.pop(key)
        self._kept[key] = value, weight
        self.weight += weight
        while len(self._kept) > self._most or self.weight > self._heaviest:
            _, (_, dropped) = self._kept.popitem(last=False)
            self.weight -= dropped

    def clear(self) -> None:
        """Keeps nothing."""
        self._kept.clear()
        self.weight = 0


__all__ = ["MESSAGES", "THREADS", "Recent"]
