"""Breakers against models that loop: the same rejected call, or the same calls with the same outcome (LP-39). Pure.

A call is its tool's name and the canonical JSON of its arguments, so the order of keys does not matter. Both breakers
first arm a note for the next request, then refuse the call, then end the run. They are rebuilt from facts by being told
the same things in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct

from ..errors import ConfigError
from ..messages import JSON, Part

_encode: Final = msgspec.json.Encoder(order="sorted").encode

Key: TypeAlias = tuple[str, bytes]

CONTRACT: Final = 240
"""Characters of a tool's contract that a note repeats."""


def key_of(tool: str, arguments: Mapping[str, JSON]) -> Key:
    """What makes two calls the same."""
    try:
        return tool, _encode(arguments)
    except (UnicodeEncodeError, TypeError):
        return tool, repr(sorted(arguments.items(), key=lambda item: item[0])).encode(errors="replace")


class ToolMisuseBreaker(msgspec.Struct, frozen=True, kw_only=True):
    """For calls that are rejected again and again with the same error text (invalid arguments, unknown tool).

    Attributes:
        note_after: equal rejections after which the model is told.
        refuse_after: equal rejections after which the call is refused for the rest of the run.
        stop_after_refusals: refusals after which the run ends.
    """

    note_after: int = 3
    refuse_after: int = 6
    stop_after_refusals: int = 3

    def __post_init__(self) -> None:
        _check("tool_misuse_breaker", self.note_after, self.refuse_after, self.stop_after_refusals)


class RepetitionBreaker(msgspec.Struct, frozen=True, kw_only=True):
    """For calls that are made again and again with the same outcome, also in cycles of up to `max_period` calls.

    Batches of any size that repeat as a whole count like calls: a cycle may have up to `max_period` of them. A changed
    result is progress. All figures count full cycles.
    """

    note_after: int = 3
    refuse_after: int = 5
    stop_after_refusals: int = 3
    max_period: int = 3

    def __post_init__(self) -> None:
        _check("repetition_breaker", self.note_after, self.refuse_after, self.stop_after_refusals)
        if self.max_period < 1:
            raise ConfigError(f"repetition_breaker.max_period must be at least 1, not {self.max_period!r}")


def _check(name: str, note_after: int, refuse_after: int, stop_after: int) -> None:
    if note_after < 2:
        raise ConfigError(f"{name}.note_after must be at least 2, not {note_after!r}")
    if refuse_after <= note_after:
        raise ConfigError(f"{name}.refuse_after must be more than note_after, not {refuse_after!r}")
    if stop_after < 1:
        raise ConfigError(f"{name}.stop_after_refusals must be at least 1, not {stop_after!r}")


class Trip(NamedTuple):
    """A note that was armed: for the model, and what is recorded of it."""

    text: str
    data: dict[str, JSON]


class _Rejections:
    __slots__ = ("count", "noted", "text")

    def __init__(self) -> None:
        self.text = ""
        self.count = 0
        self.noted = False


class Entry(Struct, frozen=True):
    """A call with its outcome."""

    key: Key
    outcome: str
    content: tuple[Part, ...]


class Breakers:
    """Both breakers of one run; either may be off."""

    def __init__(self, misuse: ToolMisuseBreaker | None, repetition: RepetitionBreaker | None) -> None:
        self._misuse = misuse
        self._repetition = repetition
        self._rejected: dict[Key, _Rejections] = {}
        self._recent: list[Entry] = []
        self._sizes: list[int] = []  # of the last batches: how many calls of each ran
        self._cycle: tuple[int, int] | None = None  # what the recent calls repeat: period and count
        self._ahead = 0  # refusals since: how far the model has gone on in its cycle without a call that ran
        self._noted_cycles: set[tuple[Key, ...]] = set()
        self._refusals = {"misuse": 0, "repetition": 0}

    @property
    def on(self) -> bool:
        """Whether there is anything to be told."""
        return self._misuse is not None or self._repetition is not None

    @property
    def stops(self) -> bool:
        """Whether so many calls were refused that the run is to end."""
        misuse, repetition = self._misuse, self._repetition
        return (misuse is not None and self._refusals["misuse"] >= misuse.stop_after_refusals) or (
            repetition is not None and self._refusals["repetition"] >= repetition.stop_after_refusals
        )

    # Before a call

    def refusal(self, key: Key) -> tuple[str, str] | None:
        """Which breaker refuses this call, and what the model is told; None if it may go on."""
        known = self._rejected.get(key)
        if self._misuse is not None and known is not None and known.count >= self._misuse.refuse_after:
            return "misuse", (
                f"{key[0]} was rejected {known.count} times with these arguments and the same error, so this call is "
                f"refused for the rest of the run. Change the arguments or use another tool. The error was: {known.text}"
            )
        cycle, repetition = self._cycle, self._repetition
        if repetition is not None and cycle is not None:
            period, count = cycle
            if count >= repetition.refuse_after and self._recent[self._ahead % period - period].key == key:
                return "repetition", (
                    f"{key[0]} was called {count} times in a row with these arguments and the same outcome, so this "
                    "call is refused. Nothing will change: use what you have, or do something else."
                )
        return None

    def refused(self, breaker: str) -> None:
        """Counts a refusal; of a cycle that is refused, only its first call."""
        if breaker == "repetition":
            self._ahead += 1
            if self._cycle is not None and (self._ahead - 1) % self._cycle[0]:
                return
        self._refusals[breaker] += 1

    # After a call

    def rejected(self, key: Key, text: str, contract: str) -> Trip | None:
        """Takes a rejection; a note if it is the one that arms it."""
        misuse = self._misuse
        if misuse is None:
            return None
        known = self._rejected.setdefault(key, _Rejections())
        known.count = known.count + 1 if known.text == text else 1
        known.text = text
        if known.count < misuse.note_after or known.noted:
            return None
        known.noted = True
        told = f"{contract[:CONTRACT]}…" if len(contract) > CONTRACT else contract
        note = f"[Note: {key[0]} was rejected {known.count} times with the same arguments. Read its contract again: {told}]"
        return Trip(note, {"guard": "misuse", "action": "note", "tool": key[0], "count": known.count})

    def finished(self, key: Key, outcome: str, content: tuple[Part, ...]) -> Trip | None:
        """Takes the outcome of a call that ran; a note if a cycle is long enough."""
        if self._misuse is not None and outcome == "succeeded":
            self._clear(key[0])
        repetition = self._repetition
        if repetition is None:
            return None
        self._recent.append(Entry(key, outcome, content))
        self._ahead = 0
        return self._told(self._found_cycle(range(1, repetition.max_period + 1)))

    def batch_over(self, ran: int) -> Trip | None:
        """All calls of a batch were told, and so many of them had run; a note if whole batches repeat long enough."""
        repetition = self._repetition
        if repetition is None or not ran:
            return None
        self._sizes = [*self._sizes, ran][-repetition.max_period :]
        periods = [sum(self._sizes[-count:]) for count in range(1, len(self._sizes) + 1)]
        longest = max(repetition.max_period, periods[-1]) * repetition.refuse_after
        if len(self._recent) > 2 * longest:
            del self._recent[:-longest]
        if periods[-1] <= repetition.max_period:  # the last call has looked at all of them
            return None
        return self._told(self._found_cycle({*range(1, repetition.max_period + 1), *periods}))

    def _told(self, cycle: tuple[int, int] | None) -> Trip | None:
        """Keeps what the recent calls repeat; a note if that is long enough, and new."""
        repetition = self._repetition
        assert repetition is not None
        self._cycle = cycle
        if cycle is None or cycle[1] < repetition.note_after:
            return None
        period, count = cycle
        keys = tuple(sorted({entry.key for entry in self._recent[-period:]}))
        if keys in self._noted_cycles:
            return None
        self._noted_cycles.add(keys)
        names = ", ".join(dict.fromkeys(name for name, _ in keys))
        note = (
            f"[Note: you have called {names} {count} times in a row with the same arguments and the same outcome. "
            "Repeating it will not change anything.]"
        )
        return Trip(note, {"guard": "repetition", "action": "note", "tool": names, "count": count})

    def _clear(self, tool: str) -> None:
        """A success clears its tool's counts, except those that are refused already: these stay so."""
        assert self._misuse is not None
        limit = self._misuse.refuse_after
        for key in [key for key, known in self._rejected.items() if key[0] == tool and known.count < limit]:
            del self._rejected[key]

    def _found_cycle(self, periods: Iterable[int]) -> tuple[int, int] | None:
        """The period that the last calls repeat most often, the shortest of several; None if they repeat nothing."""
        recent, best = self._recent, (1, 0)
        for period in periods:
            if period < len(recent) and recent[-1] == recent[-1 - period]:  # else it repeats nothing
                best = max(best, (_repeats(recent, period), -period))
        return (-best[1], best[0]) if best[0] >= 2 else None


def _repeats(entries: Sequence[Entry], period: int) -> int:
    """How many times in full the last `period` entries stand at the end, one after the other."""
    length = len(entries)
    same = 0
    while same + period < length and entries[length - 1 - same] == entries[length - 1 - same - period]:
        same += 1
    return same // period + 1 if same >= period else (1 if length >= period else 0)
