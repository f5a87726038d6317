"""Assertions on what a run recorded: what it did, in a test's words, and what holds for every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, final

from ..core.pairing import repair
from ..core.transcript import Transcript
from ..events import (
    CallFinished,
    CallProposed,
    CallStarted,
    Fact,
    MessageAdded,
    ModelRequested,
    Outcome,
    RunEnded,
    StopRequested,
    TurnStarted,
)
from ..messages import JSON, Message, ToolCall
from ..records import Record, RunSpec

F = TypeVar("F", bound=Fact)


@final
class RunFacts:
    """The facts of one run.

    Args:
        records: in order, from the first one on.
        spec: of the run, where its input is to be part of the transcript.
    """

    def __init__(self, records: Iterable[Record], spec: RunSpec | None = None) -> None:
        self.records: Sequence[Record] = list(records)
        run_id = self.records[0].run_id if self.records else ""
        self._spec = spec or RunSpec(run_id, run_id)

    @property
    def facts(self) -> list[Any]:
        """Without their envelopes."""
        return [record.fact for record in self.records]

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, None while it has not."""
        ends = self.of(RunEnded)
        return ends[-1].outcome if ends else None

    @property
    def messages(self) -> list[Message]:
        """The complete messages of the transcript, results in the order of their calls."""
        transcript = Transcript(self._spec)
        for record in self.records:
            transcript.add(record)
        return [entry.message for entry in transcript.messages() if entry.complete]

    @property
    def calls(self) -> list[ToolCall]:
        """All calls that a model proposed, in order."""
        return [call for fact in self.of(MessageAdded) for call in fact.message.tool_calls]

    def result(self, call_id: str) -> CallFinished:
        """The result of a call.

        Raises:
            AssertionError: it has none.
        """
        for end in self.of(CallFinished):
            if end.call_id == call_id:
                return end
        raise AssertionError(f"call {call_id} has no result")

    def assert_called(self, tool: str, times: int | None = None, **arguments: JSON) -> None:
        """That a tool was entered, so often (None: at all), with at least these arguments."""
        proposed = {call.call_id: call for call in self.calls}
        found = [
            start
            for start in self.of(CallStarted)
            if start.tool == tool and start.attempt == 1 and _has(_arguments(start, proposed), arguments)
        ]
        wanted = "at all" if times is None else f"{times} times"
        assert (len(found) == times) if times is not None else found, (
            f"{tool} was not called {wanted} with {arguments}, but {len(found)} times; "
            f"calls were: {[(start.tool, _arguments(start, proposed)) for start in self.of(CallStarted)]}"
        )

    def assert_valid(self) -> None:
        """What holds for every run, whatever happened to it (agent-loop §7.19)."""
        ends = Counter(end.call_id for end in self.of(CallFinished))
        twice = [call_id for call_id, count in ends.items() if count > 1]
        assert not twice, f"calls with more than one result: {twice}"
        assert len(self.of(RunEnded)) <= 1, "a run ends once"
        for start in self.of(CallStarted):
            repeated = start.effect == "non_idempotent" and start.attempt > 1
            assert not repeated or _was_undone(self.facts, start), f"{start.call_id} was run again"
        stopped = next((at for at, fact in enumerate(self.facts) if isinstance(fact, StopRequested)), None)
        if stopped is not None:
            after = [fact.kind for fact in self.facts[stopped:] if isinstance(fact, _STARTS)]
            assert not after, f"started after the stop: {after}"
        if self.outcome is not None:
            proposed = [call.call_id for call in self.calls] + [
                fact.call_id for fact in self.of(CallProposed)
            ]
            assert sorted(proposed) == sorted(ends), "each call has its result"
            assert repair(self.messages)[1] is None, "the transcript is a valid request"


_STARTS = (TurnStarted, ModelRequested, CallStarted)


def _arguments(start: CallStarted, proposed: dict[str, ToolCall]) -> dict[str, JSON]:
    if start.arguments is not None:
        return start.arguments
    return proposed[start.call_id].arguments if start.call_id in proposed else {}


def _has(arguments: dict[str, JSON], wanted: dict[str, JSON]) -> bool:
    return all(name in arguments and arguments[name] == value for name, value in wanted.items())


def _was_undone(facts: Sequence[Any], start: CallStarted) -> bool:
    """Whether the attempt before provably did not happen."""
    return any(
        getattr(fact, "not_run", False)
        and fact.call_id == start.call_id
        and fact.attempt == start.attempt - 1
        for fact in facts
    )
