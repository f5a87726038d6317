"""Supervision of calls that take too long: when one is told, asked, tried again, given up (LP-48). Pure.

A call is watched by its time alone. T is the larger of `factor` × its declared time and `floor`. What happens when is
`STAGES`: for calls that may be repeated, and for those that may not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, final

from msgspec import Struct

from ..core.calls import REPEATABLE
from ..errors import ConfigError
from ..events import Effect


@final
class StuckToolConfig(Struct, frozen=True, kw_only=True):
    """How long calls are supervised. All times are seconds.

    Attributes:
        floor: the shortest T.
        factor: T is this many times the declared time, if that is more.
        heartbeat: between two signs of life, from T/2 on.
        grace: that a call has for handing over, and for ending.
        mode: `advisory` notes what would be done and does nothing.
        exclude: names of tools that are not supervised.
    """

    floor: float = 300.0
    factor: float = 2.0
    heartbeat: float = 60.0
    grace: float = 10.0
    mode: Literal["autonomous", "advisory"] = "autonomous"
    exclude: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("floor", "factor", "grace"):
            if getattr(self, name) < 0:
                raise ConfigError(f"stuck_tool.{name} must not be negative, not {getattr(self, name)!r}")
        if not self.heartbeat > 0:
            raise ConfigError(f"stuck_tool.heartbeat must be positive, not {self.heartbeat!r}")
        if self.mode not in ("autonomous", "advisory"):
            raise ConfigError(f"stuck_tool.mode must be autonomous or advisory, not {self.mode!r}")

    def threshold(self, declared: float | None) -> float:
        """T of a call."""
        return max(self.factor * (declared or 0.0), self.floor)


Action: TypeAlias = Literal[
    "heartbeat",  # say that it still runs
    "yield",  # ask it to hand its work over
    "retry",  # stop it and make the same call once more
    "give_up",  # stop it and end it as stuck
]


class Stage(NamedTuple):
    """Something that happens `thresholds` × T and `graces` × grace after the start of an attempt."""

    thresholds: float
    graces: float
    action: Action


STAGES: Final[Mapping[tuple[bool, int], tuple[Stage, ...]]] = {
    (True, 1): (Stage(1, 0, "retry"),),
    (True, 2): (Stage(1, 0, "yield"), Stage(1, 1, "give_up")),
    (False, 1): (Stage(1, 0, "yield"), Stage(2, 0, "give_up")),
}
"""By whether the call may be repeated, and by attempt. Attempts beyond the second are like the second."""


@final
class StuckWatch:
    """The supervision of one attempt."""

    __slots__ = ("_beat", "_began", "_config", "_next", "_stages", "_threshold")

    def __init__(
        self, config: StuckToolConfig, effect: Effect, attempt: int, declared: float | None, now: float
    ) -> None:
        repeatable = effect in REPEATABLE
        self._config = config
        self._threshold = config.threshold(declared)
        self._began = now
        self._stages = STAGES[repeatable, min(attempt, 2) if repeatable else 1]
        self._next = 0
        self._beat = now + self._threshold / 2

    @property
    def due(self) -> float | None:
        """When something is to happen next."""
        if self._next >= len(self._stages):
            return self._beat
        return min(self._beat, self._moment(self._stages[self._next]))

    def _moment(self, stage: Stage) -> float:
        return self._began + stage.thresholds * self._threshold + stage.graces * self._config.grace

    def take(self, now: float) -> Action | None:
        """What is to happen now, None if nothing; to be asked until it says None."""
        if self._next < len(self._stages) and self._moment(self._stages[self._next]) <= now:
            self._next += 1
            return self._stages[self._next - 1].action
        if self._beat <= now:
            self._beat = now + self._config.heartbeat
            return "heartbeat"
        return None
