"""What a server counts, in the text format of Prometheus; no package is needed for it (SV-261).

Names of runs, threads and users never stand in a label, nor does anything that a model or a person said: labels are
agents, outcomes, models and kinds, of which there are few.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

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

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
_TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576)
_TOLD: Final = frozenset({TextTold, ReasoningTold, ArgumentsTold})

Labels = tuple[tuple[str, str], ...]


class Family:
    """One metric, by its labels. `buckets` makes it a histogram."""

    def __init__(self, name: str, kind: str, text: str, buckets: tuple[float, ...] = ()) -> None:
        self.name, self.kind, self.text = name, kind, text
        self._buckets = buckets
        self._values: dict[Labels, float] = {}
        self._counts: dict[Labels, list[int]] = {}

    def add(self, amount: float = 1.0, /, **labels: str) -> None:
        """Counts."""
        key = tuple(labels.items())
        self._values[key] = self._values.get(key, 0.0) + amount
        if self._buckets:
            counts = self._counts.setdefault(key, [0] * (len(self._buckets) + 1))
            counts[bisect_left(self._buckets, amount)] += 1

    def set(self, values: Mapping[Labels, float]) -> None:
        """Takes the place of what was there."""
        self._values = dict(values)

    def lines(self) -> Iterator[str]:
        """The metric as text."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in sorted(self._values.items()):
            if not self._buckets:
                yield f"{self.name}{_braced(labels)} {value:.9g}"
                continue
            total = 0
            for bound, count in zip((*self._buckets, None), self._counts[labels], strict=True):
                total += count
                edge = "+Inf" if bound is None else f"{bound:g}"
                yield f"{self.name}_bucket{_braced((*labels, ('le', edge)))} {total}"
            yield f"{self.name}_sum{_braced(labels)} {value:.9g}"
            yield f"{self.name}_count{_braced(labels)} {total}"


def _braced(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join([f'{name}="{_escaped(value)}"' for name, value in labels]) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """All metrics of one server."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.runs_live = Family("pilothouse_runs_live", "gauge", "Runs that this process drives.")
        self.runs_ended = Family("pilothouse_runs_ended_total", "counter", "Runs that ended, by how.")
        self.streams_live = Family("pilothouse_streams_live", "gauge", "Open streams.")
        self.stream_cuts = Family("pilothouse_stream_cuts_total", "counter", "Streams that were cut, by why.")
        self.start_overs = Family(
            "pilothouse_start_overs_total", "counter", "Streams that were told from the start again."
        )
        self.commands = Family("pilothouse_commands_total", "counter", "Commands, by kind and answer.")
        self.stop_seconds = Family(
            "pilothouse_stop_seconds", "histogram", "From a stop to the end of its run.", _SECONDS
        )
        self.probe_seconds = Family(
            "pilothouse_journal_probe_seconds", "histogram", "A look-up in the journal.", _SECONDS
        )
        self.duration = Family(
            "gen_ai_client_operation_duration_seconds", "histogram", "Requests to models.", _SECONDS
        )
        self.tokens = Family(
            "gen_ai_client_token_usage", "histogram", "Tokens of requests to models.", _TOKENS
        )
        self.first_chunk = Family(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "histogram",
            "From a request to a model to its first piece.",
            _SECONDS,
        )

    def families(self) -> Iterable[Family]:
        """Each of them."""
        return [value for value in vars(self).values() if isinstance(value, Family)]

    def text(self) -> str:
        """All of it, as it is scraped."""
        return "".join([f"{line}\n" for family in self.families() for line in family.lines()])

    def commanded(self, command: Command, ack: Ack) -> None:
        """A command was answered."""
        if not ack.duplicate:
            self.commands.add(kind=str(command.body.__struct_config__.tag), state=ack.state)

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
            self._metrics.runs_ended.add(agent=self._agent, outcome=status)

    def _labels(self, request: ModelRequested) -> dict[str, str]:
        return {
            "gen_ai_operation_name": "chat",
            "gen_ai_provider_name": request.provider,
            "gen_ai_request_model": request.model,
        }

    def _attempted(self, request: ModelRequested, at_ms: int, ended: ModelAttemptEnded, now_ms: int) -> None:
        self._request, self._waiting = None, False
        labels = self._labels(request)
        error = {"error_type": ended.error.kind} if ended.error is not None else {}
        self._metrics.duration.add(max(now_ms - at_ms, 0) / 1000, **labels, **error)
        usage: Usage | None = ended.usage
        if usage is not None:
            for kind, count in (("input", usage.input), ("output", usage.output)):
                if count is not None:
                    self._metrics.tokens.add(count, **labels, gen_ai_token_type=kind)

    def _first_piece(self) -> None:
        self._waiting = False
        if self._request is not None:
            request, at_ms = self._request
            seconds = max(self._metrics.clock.time_ms() - at_ms, 0) / 1000
            self._metrics.first_chunk.add(seconds, **self._labels(request))


__all__ = ["MEDIA_TYPE", "Family", "Metrics", "Watching"]
