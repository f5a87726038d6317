"""How much may be driven at once, and where."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLimits:
    """Limits of the workers of one deployment; say the same in each of its processes.

    Attributes:
        worker: runs that one worker drives at once.
        principal: runs of one principal that are driven at once, on all workers together; None: any number.
        thread: runs of one thread at once; most runtimes take one at a time by themselves.
        rate: so many starts in so many seconds, on all workers together.

    Raises:
        ConfigError: a limit below 1.
    """

    worker: int = 100
    principal: int | None = None
    thread: int | None = None
    rate: tuple[int, float] | None = None

    def __post_init__(self) -> None:
        """Refuses what would drive nothing."""
        for name in ("worker", "principal", "thread"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"the limit {name} must be at least 1, got {value}")
        if self.rate is not None and (self.rate[0] < 1 or self.rate[1] <= 0):
            raise ConfigError(f"the limit rate must be (starts, seconds), both positive, got {self.rate}")


__all__ = ["DispatchLimits"]
