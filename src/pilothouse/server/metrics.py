"""What a server counts, for Prometheus (SV-261).

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
from .watching import RunWatcher

if TYPE_CHECKING:
    from prometheus_client import Histogram
    from prometheus_client.core import Metric

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_APPEND_SECONDS: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_TOLD: Final = frozenset({TextTold, ReasoningTold, ArgumentsTold})
_MODEL: Final = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class Now:
    """What is not counted but looked up when somebody asks: figures by the value of one label."""

    def __init__(self, read: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """As the library asks its collectors."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        shown = (
            (GaugeMetricFamily, "pilothouse_runs_live", "Runs that this process drives.", "agent"),
            (GaugeMetricFamily, "pilothouse_streams_live", "Open streams.", "face"),
            (CounterMetricFamily, "pilothouse_stream_cuts", "Streams that were cut, by why.", "reason"),
            (CounterMetricFamily, "pilothouse_start_overs", "Streams told from the start again.", ""),
        )
        found = self._read()
        for kind, name, text, label in shown:
            family = kind(name, text, labels=(label,) if label else ())
            for value, count in found[name].items():
                family.add_metric((value,) if label else (), count)
            yield family


class Metrics:
    """All metrics of one server, in a registry of its own: what else the process counts is not here."""

    def __init__(self, clock: Clock, now: Callable[[], Mapping[str, Mapping[str, float]]]) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram

        registry = self._registry = CollectorRegistry()

        def histogram(
            name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = _SECONDS
        ) -> Histogram:
            return Histogram(name, text, labels, registry=registry, buckets=buckets)

        self.clock = clock
        registry.register(Now(now))
        self._ended = Counter(
            "pilothouse_runs_ended", "Runs that ended, by how.", ("agent", "outcome"), registry=registry
        )
        self._commands = Counter(
            "pilothouse_commands", "Commands, by kind and answer.", ("kind", "state"), registry=registry
        )
        self.stop_seconds = histogram("pilothouse_stop_seconds", "From a stop to the end of its run.")
        self.append_seconds = histogram(
            "pilothouse_journal_append_seconds", "Storing facts, until they are durable.", (), _APPEND_SECONDS
        )
        self.probe_seconds = histogram("pilothouse_journal_probe_seconds", "A look-up in the journal.")
        self._duration = histogram(
            "gen_ai_client_operation_duration_seconds", "Requests to models.", (*_MODEL, "error_type")
        )
        self._tokens = histogram(
            "gen_ai_client_token_usage",
            "Tokens of requests to models.",
            (*_MODEL, "gen_ai_token_type"),
            _TOKENS,
        )
        self._first_chunk = histogram(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "From a request to a model to its first piece.",
            _MODEL,
        )

    def exposition(self, accept: str) -> tuple[bytes, str]:
        """All of it in a form that the scraper takes, and its media type."""
        from prometheus_client.exposition import choose_encoder

        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def commanded(self, command: Command, ack: Ack) -> None:
        """A command was answered."""
        if not ack.duplicate:
            self._commands.labels(str(command.body.__struct_config__.tag), ack.state).inc()

    def ended(self, agent: str, outcome: str) -> None:
        """A run ended."""
        self._ended.labels(agent, outcome).inc()

    def attempted(self, request: ModelRequested, seconds: float, error: str, usage: Usage | None) -> None:
        """A request to a model ended."""
        model = ("chat", request.provider, request.model)
        self._duration.labels(*model, error).observe(seconds)
        for kind, count in (("input", usage.input), ("output", usage.output)) if usage else ():
            if count is not None:
                self._tokens.labels(*model, kind).observe(count)

    def began(self, request: ModelRequested, seconds: float) -> None:
        """The first piece of a response came."""
        self._first_chunk.labels("chat", request.provider, request.model).observe(seconds)

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
