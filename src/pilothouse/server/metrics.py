"""What a server counts, for Prometheus and, where it is set up, for OpenTelemetry (SV-261).

Names of runs, threads and users never stand in a label, nor does anything that a model or a person said: labels are
agents, outcomes, models and kinds, of which there are few.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ..commands import Ack, Command
from ..contracts import Clock
from ..core.delivery import words
from ..events import (
    ArgumentsTold,
    Delta,
    ModelAttemptEnded,
    ModelRequested,
    ReasoningTold,
    RunAbandoned,
    RunEnded,
    TextTold,
)
from ..messages import Usage
from ..records import Record
from ..runs.controller import RunController
from .meters import Instrument, look, meter, tell
from .watching import RunWatcher

if TYPE_CHECKING:
    from prometheus_client import Counter, Histogram
    from prometheus_client.core import Metric as Family

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_APPEND_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_TOLD: Final = frozenset({TextTold, ReasoningTold, ArgumentsTold})
_MODEL: Final = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model")
NOW: Final = (
    ("gauge", "pilothouse_runs_live", "Runs that this process drives.", "agent"),
    ("gauge", "pilothouse_streams_live", "Open streams.", "face"),
    ("counter", "pilothouse_stream_cuts", "Streams that were cut, by why.", "reason"),
    ("counter", "pilothouse_start_overs", "Streams told from the start again.", ""),
)
"""What is looked up when somebody asks: kind, name, text, label."""


class Now:
    """What is not counted but looked up when somebody asks: figures by the value of one label."""

    def __init__(self, read: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        """As the library asks its collectors."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        kinds = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        found = self._read()
        for kind, name, text, label in NOW:
            family = kinds[kind](name, text, labels=(label,) if label else ())
            for value, count in found[name].items():
                family.add_metric((value,) if label else (), count)
            yield family


class Metric:
    """One metric, in both worlds. `labels` are named as OpenTelemetry has it; Prometheus takes no dots."""

    def __init__(
        self, prometheus: Counter | Histogram, told: Instrument | None, labels: tuple[str, ...]
    ) -> None:
        self._prometheus = prometheus
        self._told = told
        self._labels = labels

    def add(self, value: float, *labels: str) -> None:
        """Counts, or observes."""
        child = self._prometheus.labels(*labels) if labels else self._prometheus
        if (observe := getattr(child, "observe", None)) is not None:
            observe(value)
        else:
            child.inc(value)  # type: ignore[union-attr]
        if self._told is not None:
            tell(self._told, value, dict(zip(self._labels, labels, strict=True)))


class Metrics:
    """All metrics of one server, in a registry of its own: what else the process counts is not here."""

    def __init__(self, clock: Clock, now: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry()
        self.clock = clock
        self._meter = meter()
        self._registry.register(Now(now))
        if self._meter is not None:
            look(self._meter, NOW, now)
        self._ended = self._count("pilothouse_runs_ended", "Runs that ended, by how.", ("agent", "outcome"))
        self._commands = self._count(
            "pilothouse_commands", "Commands, by kind and answer.", ("kind", "state")
        )
        self.stop_seconds = self._measure(
            "pilothouse_stop_seconds", "From a stop to the end of its run.", unit=""
        )
        self.append_seconds = self._measure(
            "pilothouse_journal_append_seconds",
            "Storing facts, until they are durable.",
            buckets=_APPEND_SECONDS,
            unit="",
        )
        self.probe_seconds = self._measure(
            "pilothouse_journal_probe_seconds", "A look-up in the journal.", unit=""
        )
        self._duration = self._measure(
            "gen_ai.client.operation.duration", "Requests to models.", (*_MODEL, "error.type")
        )
        self._tokens = self._measure(
            "gen_ai.client.token.usage",
            "Tokens of requests to models.",
            (*_MODEL, "gen_ai.token.type"),
            buckets=_TOKENS,
            unit="",
            measured="{token}",
        )
        self._first_chunk = self._measure(
            "gen_ai.client.operation.time_to_first_chunk",
            "From a request to a model to its first piece.",
            _MODEL,
        )

    def _count(self, name: str, text: str, labels: tuple[str, ...]) -> Metric:
        from prometheus_client import Counter

        told = None if self._meter is None else self._meter.create_counter(name, description=text)
        return Metric(Counter(name, text, labels, registry=self._registry), told, labels)

    def _measure(
        self,
        name: str,
        text: str,
        labels: tuple[str, ...] = (),
        *,
        buckets: tuple[float, ...] = _SECONDS,
        unit: str = "_seconds",
        measured: str = "s",
    ) -> Metric:
        from prometheus_client import Histogram

        plain = [label.replace(".", "_") for label in labels]
        made = Histogram(name.replace(".", "_") + unit, text, plain, registry=self._registry, buckets=buckets)
        told = None
        if self._meter is not None:
            told = self._meter.create_histogram(name, unit=measured, description=text)
        return Metric(made, told, labels)

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All of it in a form that the scraper takes, and its media type."""
        from prometheus_client.exposition import choose_encoder

        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def commanded(self, command: Command, ack: Ack) -> None:
        """A command was answered."""
        if not ack.duplicate:
            self._commands.add(1, str(command.body.__struct_config__.tag), ack.state)

    def ended(self, agent: str, outcome: str) -> None:
        """A run ended."""
        self._ended.add(1, agent, outcome)

    def attempted(self, request: ModelRequested, seconds: float, error: str, usage: Usage | None) -> None:
        """A request to a model ended."""
        model = ("chat", request.provider, request.model)
        self._duration.add(seconds, *model, error)
        for kind, count in (("input", usage.input), ("output", usage.output)) if usage else ():
            if count is not None:
                self._tokens.add(count, *model, kind)

    def began(self, request: ModelRequested, seconds: float) -> None:
        """The first piece of a response came."""
        self._first_chunk.add(seconds, "chat", request.provider, request.model)

    async def watch(self, runs: RunController, key: str, agent: str, *, since: int = 0) -> None:
        """Counts what a run did behind fact `since` and does from now on."""
        await Watching(self, agent, since).follow(runs, key)


class Watching(RunWatcher):
    """One run, as it is counted."""

    def __init__(self, metrics: Metrics, agent: str, since: int = 0) -> None:
        super().__init__(since)
        self._metrics = metrics
        self._agent = agent
        self._request: tuple[ModelRequested, int] | None = None
        self._waiting = False  # for the first piece of a response

    def told(self, delta: Delta) -> None:
        """Only the first piece of a response matters."""
        if self._waiting and type(delta.body) in _TOLD:
            self._first_piece()

    def fact(self, record: Record) -> None:
        """Counts it."""
        fact = record.fact
        if isinstance(fact, ModelRequested):
            self._request, self._waiting = (fact, record.at_ms), True
        elif isinstance(fact, ModelAttemptEnded) and self._request is not None:
            self._attempted(*self._request, fact, record.at_ms)
        elif isinstance(fact, RunEnded | RunAbandoned):
            status = str(words(fact.outcome).status) if isinstance(fact, RunEnded) else "abandoned"
            self._metrics.ended(self._agent, status)

    def _attempted(self, request: ModelRequested, at_ms: int, ended: ModelAttemptEnded, now_ms: int) -> None:
        self._request, self._waiting = None, False
        error = "" if ended.error is None else ended.error.kind
        self._metrics.attempted(request, max(now_ms - at_ms, 0) / 1000, error, ended.usage)

    def _first_piece(self) -> None:
        self._waiting = False
        if self._request is not None:
            request, at_ms = self._request
            self._metrics.began(request, max(self._metrics.clock.time_ms() - at_ms, 0) / 1000)


__all__ = ["Metrics", "Watching"]
