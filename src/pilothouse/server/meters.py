"""OpenTelemetry's side of the metrics (SV-261, SV-262): nothing without the package, and no failure of it is ours."""

from __future__ import annotations

import logging
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias
from weakref import WeakMethod

from .._version import __version__

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

    Instrument: TypeAlias = Counter | Histogram
else:
    Instrument = object

logger = logging.getLogger("pilothouse.server")


def meter() -> Meter | None:
    """Where figures go, as the process has set OpenTelemetry up; None without the package."""
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    return metrics.get_meter("pilothouse", __version__)


def tell(instrument: Instrument, value: float, attributes: Mapping[str, str]) -> None:
    """Adds to a counter, or records in a histogram. An empty attribute is none: no error, for example."""
    known = {name: text for name, text in attributes.items() if text}
    try:
        add = getattr(instrument, "add", None)
        if add is not None:
            add(value, known)
        else:
            instrument.record(value, known)  # type: ignore[union-attr]
    except Exception:
        logger.exception("a figure could not be told")


Read: TypeAlias = Callable[[], Mapping[str, Mapping[str, float]]]

_LOOKED_UP: Final[list[WeakMethod[Read]]] = []
"""One for each server: a process has each instrument once, and it tells the sum of them."""


def look(meter: Meter, shown: Sequence[tuple[str, str, str, str]], read: Read) -> None:
    """Figures that are looked up when somebody asks for them. `read` is a method, of whose object this keeps nothing."""
    _LOOKED_UP[:] = [known for known in _LOOKED_UP if known() is not None]
    _LOOKED_UP.append(WeakMethod(read))
    for kind, name, text, label in shown:
        make = meter.create_observable_gauge if kind == "gauge" else meter.create_observable_counter
        make(name, callbacks=[_looking(name, label)], description=text)


def _looking(name: str, label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observed(_options: CallbackOptions) -> Iterable[Observation]:
        sums: Counted[str] = Counted()
        for known in _LOOKED_UP:
            if (read := known()) is not None:
                for value, count in read()[name].items():
                    sums[value] += count  # type: ignore[assignment]
        return [Observation(count, {label: value} if label else {}) for value, count in sums.items()]

    return observed


__all__ = ["Instrument", "look", "meter", "tell"]
