"""Where a run is, read from its facts alone (LP-49): the same facts always give the same next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, final

from ..core.calls import CallState, result_message
from ..core.window import message_tokens
from ..events import (
    CallFinished,
    CallStarted,
    HistoryCompacted,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    OutputAdded,
    RequestOpened,
    RequestResolved,
    RunEnded,
    TurnEnded,
    TurnStarted,
)
from ..messages import JSON, Message, Usage
from ..responses import StreamEnd
from .asking import Answer
from .between import NEXT_NOTE, apply_note
from .guards import Guards
from .handoff import NOTE as HANDOFF_NOTE
from .handoff import Handoffs
from .turn import Step
from .work import CHARGE_NOTE, Work


class Entry(NamedTuple):
    """Where a resumed run goes on; `answer` is the response of the turn it is in."""

    step: Step
    answer: Answer | None = None


@final
class Log:
    """Reads the facts of a run into its work."""

    def __init__(self, work: Work, handoffs: Handoffs) -> None:
        self._work = work
        self._handoffs = handoffs
        self._turn_open = False
        self._requested: ModelRequested | None = None
        self._answer: Message | None = None  # of the turn that is open, or was last
        self._usage: Usage | None = None  # of the last attempt
        self._estimate = 0  # of the last request: what counts where its provider told nothing
        self._guards = Guards(work, replay=True)
        self._ended = False

    async def read(self) -> Entry:
        """Reads all facts; closes the attempt that nobody saw the end of; says where to go on."""
        async for record in self._work.port.facts():
            read = _READ.get(type(record.fact))
            if read is not None:
                read(self, record.fact)
        self._put_results()
        if self._work.tool_set is not None:
            self._work.tools = self._work.tool_set
        calls = self._work.port.state.calls.values()
        self._work.past_calls = {call.call_id: call for call in calls if isinstance(call, CallState)}
        return self._entry()

    def _entry(self) -> Entry:
        if self._ended:
            return Entry(Step.DONE)
        if self._requested is not None:
            self._close_attempt(self._requested)
        answer = None
        if self._answer is not None:
            assert self._answer.stop_reason is not None
            answer = Answer(StreamEnd(self._answer.stop_reason), self._answer)
        if self._turn_open:
            return Entry(Step.ASK if answer is None else Step.JUDGE, answer)
        return Entry(Step.OPEN if answer is None else Step.NEXT, answer)

    def _close_attempt(self, requested: ModelRequested) -> None:
        end = ModelAttemptEnded(requested.turn, requested.attempt, "interrupted", "recovered")
        self._work.recorder.note(end)
        self._usage = None
        self._settle(0)

    def _settle(self, said: int) -> None:
        """Counts the last attempt against the limits, as it was counted when it ended (LP-38)."""
        self._work.spending.settle(self._work.model, self._usage, self._estimate, said)

    def _spent(self, used: Mapping[str, JSON]) -> Usage:
        usage = Usage(input=used["input"], output=used["output"], cost=used.get("cost"))
        self._work.spending.charge(usage)
        return usage

    # One fact

    def _turn_started(self, fact: TurnStarted) -> None:
        self._put_results()
        self._turn_open, self._answer = True, None
        self._work.open_turn()
        self._work.turn = fact.turn

    def _turn_ended(self, _fact: TurnEnded) -> None:
        self._turn_open = False
        if self._answer is not None and self._answer.stop_reason == "tool_calls":
            self._guards.batch_over(self._answer.tool_calls, self._work.finished)

    def _model_requested(self, fact: ModelRequested) -> None:
        self._requested = fact
        self._work.attempt = fact.attempt
        self._work.requests += 1

    def _attempt_ended(self, fact: ModelAttemptEnded) -> None:
        self._requested = None
        self._usage = fact.usage
        self._work.spend(fact.usage)
        if fact.end == "answered":
            self._work.relieved = False
            self._work.notes.clear()
        if fact.end != "answered":  # an answer is counted with its message
            self._settle(0)

    def _message_added(self, fact: MessageAdded) -> None:
        self._put_results()
        if fact.message.role == "assistant" and fact.message.stop_reason is not None:
            self._answer = fact.message
            self._work.accept(fact.message, fact.message.stop_reason)
            self._work.meter.accept(fact.message, self._work.model, self._usage)
            self._settle(0 if self._usage is not None else message_tokens(fact.message))
        else:
            self._work.add(fact.message)
            self._work.repairs += fact.message.id.startswith(f"{self._work.run_id}-repair-")

    def _compacted(self, fact: HistoryCompacted) -> None:
        kept = set(fact.kept)
        context = [message for message in self._work.context if message.id in kept]
        self._work.replace_context([*fact.messages, *context])
        self._work.relieved = fact.method != "prepare_next_turn"
        self._work.compact = False

    def _noted(self, fact: Noted) -> None:
        if fact.name == "loop/poll":
            self._work.batches[fact.data["kind"]] += 1
        elif fact.name == "loop/request":
            self._estimate = fact.data["estimate"]
        elif fact.name == CHARGE_NOTE:
            self._spent(fact.data)
        elif fact.name == "loop/guard":
            if used := fact.data.get("usage"):
                self._work.spend(self._spent(used))
        elif fact.name == "loop/pairing":
            self._work.pairing_noted = True
        elif fact.name == HANDOFF_NOTE:
            self._handoffs.take_over(fact.data["to"], self._work, note=False)
        elif fact.name == NEXT_NOTE:
            apply_note(self._work, fact.data)

    def _output_added(self, fact: OutputAdded) -> None:
        self._work.output_id = fact.output_id

    def _request_opened(self, fact: RequestOpened) -> None:
        self._work.past_requests[fact.request.id] = fact.request

    def _request_resolved(self, fact: RequestResolved) -> None:
        self._work.answers[fact.request_id] = fact.resolution

    def _call_started(self, fact: CallStarted) -> None:
        if fact.attempt == 1:
            self._work.count_call(fact.tool)

    def _call_finished(self, fact: CallFinished) -> None:
        self._work.finished[fact.call_id] = fact
        for call in () if self._answer is None else self._answer.tool_calls:
            if call.call_id == fact.call_id:
                self._guards.read(call, fact)

    def _run_ended(self, _fact: RunEnded) -> None:
        self._ended = True

    def _put_results(self) -> None:
        """Puts the results of the last batch into the context, once all are there, in the order of the calls."""
        work = self._work
        if self._answer is None or work.context[-1] is not self._answer:
            return
        ends = [work.finished.get(call.call_id) for call in self._answer.tool_calls]
        if all(ends):
            for end in ends:
                assert end is not None
                work.add(result_message(end))


_READ: Final[Mapping[type, Callable[[Log, Any], None]]] = MappingProxyType(
    {
        TurnStarted: Log._turn_started,  # noqa: SLF001 - the class's own table
        TurnEnded: Log._turn_ended,  # noqa: SLF001
        ModelRequested: Log._model_requested,  # noqa: SLF001
        ModelAttemptEnded: Log._attempt_ended,  # noqa: SLF001
        MessageAdded: Log._message_added,  # noqa: SLF001
        HistoryCompacted: Log._compacted,  # noqa: SLF001
        Noted: Log._noted,  # noqa: SLF001
        OutputAdded: Log._output_added,  # noqa: SLF001
        RequestOpened: Log._request_opened,  # noqa: SLF001
        RequestResolved: Log._request_resolved,  # noqa: SLF001
        CallStarted: Log._call_started,  # noqa: SLF001
        CallFinished: Log._call_finished,  # noqa: SLF001
        RunEnded: Log._run_ended,  # noqa: SLF001
    }
)
