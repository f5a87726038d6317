"""A run of the loop: turns of a response and its tool calls until nothing is left to do (LP-3).

The run is a small machine whose steps are `Step`; each step does its part and names the next one, so that a resumed
run enters at any of them. What may follow what is `STEPS`; what the end of a response leads to is `AFTER`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import IntEnum, auto
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, final

from msgspec import Struct

from ..core.calls import result_message, text_parts
from ..errors import ConfigError
from ..events import (
    CallFinished,
    Completed,
    Delivery,
    Failed,
    Incomplete,
    MessageAdded,
    Outcome,
    OutputAdded,
    RunEnded,
    Truncated,
    TurnEnded,
    TurnStarted,
)
from ..messages import StopReason, ToolCall, user_message
from .asking import Answer, Asking, is_empty
from .between import Between
from .handoff import Handoffs
from .queues import Item, Kind, Queues
from .recorder import Detached, Reopened, Stopped
from .requesting import Requests
from .tool_host import ToolHost
from .work import Work

if TYPE_CHECKING:
    from .phase import Phase


class Step(IntEnum):
    """Where a run is between two facts."""

    OPEN = auto()  # a turn begins
    ASK = auto()  # the model is asked
    JUDGE = auto()  # a response is there: what it leads to
    CALLS = auto()  # its calls are to be worked through
    CLOSE = auto()  # all calls of the turn have their result
    NEXT = auto()  # the turn is closed: another one, or the end
    END = auto()  # the outcome is known
    LEAVE = auto()  # nobody knows the outcome: the controller says so
    DONE = auto()  # nothing is left to do


Way: TypeAlias = Literal[
    "call",  # its calls are to be worked through
    "again",  # the model is to be asked in another turn
    "settle",  # the run would stop, unless somebody has more input
    "stop",  # the run ends now
    "leave",  # nobody knows how it ended
]


class Course(Struct, frozen=True):
    """What a response leads to; `refuse` is the reason for which none of its calls is run."""

    way: Way
    outcome: Outcome | None = None
    refuse: str = ""


@final
class Turns:
    """Drives one run."""

    def __init__(self, work: Work, tool_host: ToolHost, handoffs: Handoffs) -> None:
        self._work = work
        self._handoffs = handoffs
        self._tool_host = tool_host
        self._requests = Requests(work)
        self._queues = Queues(work)
        self._between = Between.of(work)
        self._phase: Phase | None = None
        self._repair: str | None = None  # what the model is told of an answer that is to be given again
        self._input: tuple[Kind, list[Item]] | None = None  # what opens the next turn
        self._answer: Answer | None = None
        self._course = Course("settle", Completed())
        self._outcome: Outcome | None = None

    async def drive(self, step: Step = Step.OPEN, answer: Answer | None = None) -> None:
        """Works from that step to the end of the run; returns when its end is recorded, or when it is lost.

        `answer` is the response of the turn that a resumed run is in, where there is one.
        """
        self._answer = answer
        if answer is not None and step is Step.NEXT:
            self._course = self._with_output(AFTER[answer.end.reason](self._work, answer), answer)
        work = self._work
        work.time.begin()
        try:
            while step is not Step.DONE:
                move = STEPS[step]
                taken = move.take(self)
                step = taken if type(taken) is Step else await taken  # type: ignore[misc]
                assert step in move.to, (move, step)
        except Stopped:
            await self._end_stopped()
        except Detached:
            return
        finally:
            work.time.end()
            work.scope.close()
            if self._phase is not None:
                self._phase.close()

    # Steps

    def _open(self) -> Step | Awaitable[Step]:
        work = self._work
        work.check_stop()
        if work.turn >= work.plan.limits.turns:
            return self._end(Incomplete("limit", "turns"))
        try:
            work.open_turn()
        except ConfigError as error:
            return self._end(Failed("config", message=str(error)))
        self._answer = None
        work.recorder.note(
            TurnStarted(work.turn, work.model.id, work.tools.digest if len(work.tools) else None)
        )
        if self._input is None and work.turn == 1 and work.plan.first_poll and not self._queues.quiet:
            return self._open_polled()
        return self._take_in()

    async def _open_polled(self) -> Step:
        await self._poll("steering")
        return self._take_in()

    def _take_in(self) -> Step:
        """What opens the turn is put into the context."""
        work = self._work
        if self._input is not None:
            self._queues.record(*self._input)
            self._input = None
        if self._repair is not None:
            work.repairs += 1
            message = user_message(self._repair, f"{work.run_id}-repair-{work.repairs}")
            work.recorder.note(MessageAdded(message, work.turn))
            work.add(message)
            self._repair = None
        return Step.ASK

    async def _ask(self) -> Step:
        work = self._work
        answer = self._answer = await Asking(work, self._requests).answer()
        if answer.message is not None:
            work.accept(answer.message, answer.end.reason)
        return Step.JUDGE

    def _judge(self) -> Step:
        answer = self._answer
        assert answer is not None
        course = self._course = self._with_output(AFTER[answer.end.reason](self._work, answer), answer)
        if course.way == "leave":
            # The turn stays open: what closes it is evidence or a person, and a resume asks again in it.
            return Step.LEAVE
        if course.way == "call":
            return Step.CALLS
        if course.refuse and answer.message is not None:
            self._refuse(answer.message.tool_calls, course.refuse)
        return Step.CLOSE

    async def _call(self) -> Step:
        answer = self._answer
        assert answer is not None
        assert answer.message is not None
        if self._phase is None:
            from .phase import Phase  # all of the tools' side: a run without calls does without it

            self._phase = Phase(self._work, self._tool_host)
        await self._phase.run(answer.message, steered=self._queues.open("steering"))
        self._course = AFTER[answer.end.reason](self._work, answer)
        return Step.CLOSE

    def _close(self) -> Step:
        message = None if self._answer is None else self._answer.message
        if self._handoffs and message is not None:
            to = self._handoffs.wanted(message, self._work)
            if to is not None:
                self._handoffs.take_over(to, self._work)
        self._note_turn_ended()
        return Step.NEXT

    async def _next(self) -> Step:
        course, answer = self._course, self._answer
        work = self._work
        if self._between is not None and answer is not None and not isinstance(course.outcome, Failed):
            ended = await self._between.hooks(answer)
            if ended is not None:
                return self._end(ended)
        if course.way == "stop":
            assert course.outcome is not None
            return self._end(course.outcome)
        if self._repair is not None:
            return Step.OPEN
        if self._queues.has_sources:
            await work.recorder.write()
        settles = course.way == "settle"
        if not self._queues.quiet and work.turn < work.plan.limits.turns:
            polls: tuple[Kind, ...] = ("steering", "follow_up", "steering") if settles else ("steering",)
            for kind in polls:
                if await self._poll(kind):
                    return Step.OPEN
        if not settles:
            return Step.OPEN
        assert course.outcome is not None
        return self._end(course.outcome)

    async def _finish(self) -> Step:
        outcome, answer, work = self._outcome, self._answer, self._work
        assert outcome is not None
        if isinstance(outcome, Completed | Truncated) and work.plan.output and work.output_id is None:
            outcome = Incomplete("no_output")
        delivery = Delivery()
        if isinstance(outcome, Completed | Truncated) and answer is not None and answer.message is not None:
            outputs = () if work.output_id is None else (work.output_id,)
            delivery = Delivery((answer.message.id,), outputs)
        while True:
            try:
                await work.recorder.write(RunEnded(outcome, delivery))
            except Reopened:
                if await self._said_meanwhile():
                    return Step.OPEN
            else:
                return Step.DONE

    async def _said_meanwhile(self) -> bool:
        """Whether the run goes on with what was said while its end was being recorded."""
        work = self._work
        if self._course.way != "settle" or work.turn >= work.plan.limits.turns:
            return False
        return await self._poll("steering") or await self._poll("follow_up")

    async def _leave(self) -> Step:
        await self._work.recorder.write()
        return Step.DONE

    async def _end_stopped(self) -> None:
        """The end of a stopped run (LP-43); under a shutdown there is none, the run is only left (RC-52)."""
        work = self._work
        try:
            work.recorder.drop_starts()
            if work.shut_down:
                await work.recorder.write()
                return
            if work.port.state.turn_open and not work.recorder.holds(TurnEnded):
                self._note_turn_ended()
            await work.recorder.write(RunEnded(work.scope.outcome()))
        except (Stopped, Detached):
            return

    # Parts of steps

    def _with_output(self, course: Course, answer: Answer) -> Course:
        """Where a final answer must be a value of some type: it is recorded, or asked for again (bounded)."""
        work, output = self._work, self._work.plan.output
        if output is None or course.way != "settle" or answer.end.reason != "complete":
            return course
        from .output import NAME, NotOutput, repair_text

        assert answer.message is not None
        try:
            content, _ = output.parse(answer.message.text)
        except NotOutput as problem:
            if work.repairs >= work.plan.config.output_retries:
                return Course("stop", Incomplete("limit", "output_retries"))
            self._repair = repair_text(str(problem))
            return Course("again")
        output_id = f"{work.run_id}-{NAME}-{work.turn}"
        if work.output_id != output_id:
            work.output_id = output_id
            work.recorder.note(OutputAdded(output_id, NAME, content))
        return course

    async def _poll(self, kind: Kind) -> bool:
        """Asks for queued messages; what there is opens the next turn."""
        if self._queues.empty(kind):
            return False
        items = await self._queues.poll(kind)
        if items:
            self._input = (kind, items)
        return bool(items)

    def _refuse(self, calls: Sequence[ToolCall], reason: str) -> None:
        for call in calls:
            if call.call_id in self._work.finished:
                continue
            end = CallFinished(call.call_id, "refused", text_parts(_REFUSED[reason]), True, reason)
            self._work.recorder.note(end)
            self._work.add(result_message(end))

    def _note_turn_ended(self) -> None:
        answer = self._answer
        reason: StopReason = "cancelled" if answer is None else answer.end.reason
        self._work.recorder.note(TurnEnded(self._work.turn, reason, self._work.turn_usage))

    def _end(self, outcome: Outcome) -> Step:
        self._outcome = outcome
        return Step.END


class Move(Struct, frozen=True):
    """What is done in a step, and where that may lead. What waits for nothing gives the next step at once."""

    take: Callable[[Turns], Step | Awaitable[Step]]
    to: frozenset[Step]


def _to(*steps: Step) -> frozenset[Step]:
    return frozenset(steps)


STEPS: Final[Mapping[Step, Move]] = MappingProxyType(
    {
        Step.OPEN: Move(Turns._open, _to(Step.ASK, Step.END)),  # noqa: SLF001 - the class's own table
        Step.ASK: Move(Turns._ask, _to(Step.JUDGE)),  # noqa: SLF001
        Step.JUDGE: Move(Turns._judge, _to(Step.CALLS, Step.CLOSE, Step.LEAVE)),  # noqa: SLF001
        Step.CALLS: Move(Turns._call, _to(Step.CLOSE)),  # noqa: SLF001
        Step.CLOSE: Move(Turns._close, _to(Step.NEXT)),  # noqa: SLF001
        Step.NEXT: Move(Turns._next, _to(Step.OPEN, Step.END)),  # noqa: SLF001
        Step.END: Move(Turns._finish, _to(Step.OPEN, Step.DONE)),  # noqa: SLF001
        Step.LEAVE: Move(Turns._leave, _to(Step.DONE)),  # noqa: SLF001
    }
)


def diagram() -> str:
    """The table as a Mermaid state diagram; the docs hold it and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> open"]
    for step, move in STEPS.items():
        lines += [f"    {step.name.lower()} --> {to.name.lower()}" for to in sorted(move.to)]
    return "\n".join([*lines, "    done --> [*]"]) + "\n"


# What the end of a response leads to (§3.3)


def _completed(_work: Work, answer: Answer) -> Course:
    return Course("settle", Completed(empty=answer.message is None or is_empty(answer.message)))


def _called(work: Work, answer: Answer) -> Course:
    """A batch is worked through; its results may end the asking (LP-6, LP-38)."""
    if not work.finished:
        return Course("call")
    calls = () if answer.message is None else answer.message.tool_calls
    ends = [work.finished.get(call.call_id) for call in calls]
    if not all(ends):
        return Course("call")
    if any(end is not None and end.reason == "limit" for end in ends):
        return Course("stop", Incomplete("limit", "tool_calls"))
    if work.breakers.stops:
        return Course("stop", Incomplete("breaker"))
    if work.failed_turns >= work.plan.limits.consecutive_errors > 0:
        return Course("stop", Incomplete("limit", "errors"))
    if all(end is not None and "terminate" in end.marks for end in ends):
        return Course("settle", Completed(stopped_by="terminate"))
    return Course("again")


def _cut_off(work: Work, answer: Answer) -> Course:
    """LP-15: none of its calls is run; the model may send them again in smaller pieces, a few times."""
    calls = answer.message is not None and answer.message.tool_calls
    if calls and work.streak <= work.plan.limits.length_continuations:
        return Course("again", refuse="truncated")
    return Course("stop", Truncated(), refuse="truncated")


def _filtered(_work: Work, answer: Answer) -> Course:
    return Course("stop", Incomplete(answer.end.reason), refuse=answer.end.reason)


def _paused(work: Work, _answer: Answer) -> Course:
    if work.streak <= work.plan.limits.pauses:
        return Course("again", refuse="pause_turn")
    return Course("stop", Incomplete("limit", "pauses"), refuse="pause_turn")


def _failed(_work: Work, answer: Answer) -> Course:
    error = answer.end.error
    assert error is not None
    failed = Failed(error.kind, error.code, error.message, error.retryable, answer.retry_after_ms)
    return Course("stop", failed)


def _lost(_work: Work, _answer: Answer) -> Course:
    return Course("leave")


def _limited(_work: Work, answer: Answer) -> Course:
    assert answer.outcome is not None
    return Course("stop", answer.outcome)


AFTER: Final[Mapping[StopReason, Callable[[Work, Answer], Course]]] = MappingProxyType(
    {
        "complete": _completed,
        "tool_calls": _called,
        "length": _cut_off,
        "content_filter": _filtered,
        "refusal": _filtered,
        "pause_turn": _paused,
        "error": _failed,
        "unknown": _lost,
        "cancelled": _limited,  # the loop's own: it asked no more; a stop is an exception, because it comes anywhere
    }
)

_REFUSED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "truncated": (
            "This call was not run: the output limit cut your response. Send it again in smaller pieces."
        ),
        "content_filter": "This call was not run: a content filter ended the response.",
        "refusal": "This call was not run: the response was a refusal.",
        "pause_turn": "This call was not run: the response was paused. Send it again if it is still needed.",
    }
)
