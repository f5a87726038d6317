"""OpenTelemetry's side of the metrics (SV-261, SV-262): nothing without the package, and no failure of it is ours."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias
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


def look(
    meter: Meter,
    shown: Sequence[tuple[str, str, str, str]],
    read: Callable[[], Mapping[str, Mapping[str, float]]],
) -> None:
    """Figures that are looked up when somebody asks for them. `read` is a method, of whose object this keeps nothing."""
    from opentelemetry.metrics import Observation

    reading = WeakMethod(read)  # the meter outlives a server

    def looking(name: str, label: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observed(_options: CallbackOptions) -> Iterable[Observation]:
            if (now := reading()) is None:
                return
            for value, count in now()[name].items():
                yield Observation(count, {label: value} if label else {})

        return observed

    for kind, name, text, label in shown:
        make = meter.create_observable_gauge if kind == "gauge" else meter.create_observable_counter
        make(name, callbacks=[looking(name, label)], description=text)


__all__ = ["Instrument", "look", "meter", "tell"]
