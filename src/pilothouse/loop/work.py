"""What all parts of the loop share while they work on one run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import cached_property, partial
from typing import Final, final

import msgspec

from ..commands import Request, Resolution
from ..contracts import Clock, RunPort
from ..core.breaker import Breakers
from ..core.calls import CallState
from ..events import CallFinished, Noted
from ..messages import JSON, Message, StopReason, Usage
from ..records import Start
from ..responses import ModelSettings
from .hooks import Caller
from .plan import Plan
from .recorder import Recorder, Stopped
from .scope import WorkScope, WorkTime
from .spending import Spending
from .tools import ToolSet
from .trail import Trail

CHARGE_NOTE: Final = "loop/charge"


def figures(usage: Usage) -> dict[str, JSON]:
    """What a note says of tokens and money that were used elsewhere; `charge` takes it back."""
    return {"input": usage.input, "output": usage.output, "cost": usage.cost}


@final
class Work:
    """One run under way. Made for one attachment; the facts are what lasts.

    Attributes:
        context: the run's working message list; grows, and is never changed in place by anybody else.
        left_out: ids of messages of contexts that were replaced; the thread has them still.
        trail: that list with what was found out about it; `meter` is of it, too.
        turn, attempt: where the run is; `attempt` counts requests of the turn.
        requests: attempts of the whole run.
        usage: of all attempts, discarded and failed ones included (LP-21); `turn_usage` of this turn's.
        full_budget: the next request gets the model's full output budget.
        streak: accepted responses in a row that ended for the same reason.
        finished: the results of calls of the turn.
        tools: what the model may call in this turn; `tool_set` is what `prepare_next_turn` chose, if anything.
        calls_started, calls_total: calls entered so far, by tool and together.
        past_calls: calls that an earlier attachment left open, as it left them.
        batches: how many batches of queued messages were taken, by queue.
        notes: what the next payload tells the model besides, once.
        spilled: the thread has results that were left out: a tool is offered that reads them.
        with_reader, reader_sets: adds that tool to a set, given by whoever makes the work; sets that have it.
        pairing_noted: the model was told of results that are gone.
        system_prompt, settings: as `prepare_next_turn` left them.
        scope, time: the stop, the controller's and the loop's own; the time for work.
        spending: what the run has used.
        output_id: of the last structured output.
        repairs: answers that were asked for again because they were none.
        compact: the context is to be made smaller before the first request.
        relieved: the context was made smaller for this response already.
        failed_turns: turns in a row in which no call succeeded.
        attended: whether anybody can answer a request.
        past_requests, answers: what was asked and answered so far in this run.
    """

    __slots__ = (
        "__dict__",  # of what is made when it is looked at
        "_reason",
        "answers",
        "attempt",
        "attended",
        "batches",
        "call_ids",
        "calls_started",
        "calls_total",
        "clock",
        "compact",
        "context",
        "failed_turns",
        "finished",
        "full_budget",
        "left_out",
        "meter",
        "model",
        "notes",
        "output_id",
        "pairing_noted",
        "past_calls",
        "past_requests",
        "plan",
        "port",
        "reader_sets",
        "recorder",
        "relieved",
        "repairs",
        "requests",
        "run_id",
        "scope",
        "settings",
        "spending",
        "spilled",
        "streak",
        "system_prompt",
        "thread_id",
        "time",
        "tool_set",
        "tools",
        "trail",
        "turn",
        "turn_usage",
        "usage",
        "with_reader",
    )

    def __init__(self, plan: Plan, start: Start, port: RunPort, clock: Clock, trail: Trail) -> None:
        self.plan = plan
        self.run_id = start.spec.run_id
        self.thread_id = start.spec.thread_id
        self.port = port
        self.scope = WorkScope(port.scope)
        self.time = WorkTime(plan.limits.deadline, clock, self.scope)
        self.spending = Spending(plan.limits)
        self.relieved = False
        self.compact = plan.compact
        self.output_id: str | None = None
        self.repairs = 0
        self.reader_sets: dict[str, ToolSet] = {}
        self.with_reader: Callable[[Work, ToolSet], ToolSet] = _as_they_are
        self.failed_turns = 0
        self.clock = clock
        self.recorder = Recorder(port, partial(self.scope.stop, "full"))
        self.model = plan.model
        self.left_out: set[str] = set()
        self.trail = trail
        self.context, self.meter = trail.messages, trail.meter
        self.turn = 0
        self.attempt = 0
        self.requests = 0
        self.usage: Usage | None = None
        self.turn_usage: Usage | None = None
        self.full_budget = False
        self.streak = 0
        self.finished: dict[str, CallFinished] = {}
        self.tools = plan.tools()
        self.calls_started: dict[str, int] = {}
        self.calls_total = 0
        self.past_calls: dict[str, CallState] = {}
        self.batches = {"steering": 0, "follow_up": 0}
        self.notes: list[str] = []
        self.pairing_noted = False
        self.spilled = trail.spilled
        self.attended: bool = getattr(port, "attended", True)
        self.past_requests: dict[str, Request] = {}
        self.answers: dict[str, Resolution] = {}
        self.system_prompt = plan.system_prompt
        self.settings = plan.settings
        self.tool_set: ToolSet | None = None
        self._reason: StopReason | None = None
        self.call_ids = _CallIds(self.context)

    # What most runs do without is made when it is first looked at.

    @cached_property
    def breakers(self) -> Breakers:
        """Guards against models that loop."""
        config = self.plan.config
        return Breakers(config.tool_misuse_breaker, config.repetition_breaker)

    @cached_property
    def hooks(self) -> Caller:
        """Calls a user's code."""
        config = self.plan.config
        return Caller(self.scope, self.clock, config.hook_timeout, config.run_idle_timeout or None)

    def check_stop(self) -> None:
        """Goes on only if the run is not being stopped.

        Raises:
            Stopped: it is.
        """
        if self.scope.cancelled:
            raise Stopped

    def count_call(self, tool: str, by: int = 1) -> None:
        """Counts a call that is entered for the first time."""
        self.calls_started[tool] = self.calls_started.get(tool, 0) + by
        self.calls_total += by

    def add(self, message: Message) -> None:
        """Appends a message to the context."""
        self.context.append(message)

    def spend(self, usage: Usage | None) -> None:
        """Counts what an attempt used."""
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage + usage
            self.turn_usage = usage if self.turn_usage is None else self.turn_usage + usage

    def charge(self, usage: Usage) -> None:
        """Counts what a call used elsewhere against the limits, on the record: a resumed run has used it, too."""
        self.spending.charge(usage)
        if self.spending.bounded:
            self.recorder.note(Noted(CHARGE_NOTE, figures(usage)))

    def tokens_left(self) -> int | None:
        """Tokens that are left, None without a limit."""
        return self.spending.tokens_left()

    @property
    def agents_above(self) -> int:
        """How many agents the run stands below."""
        return self.plan.agents_above

    def open_turn(self) -> None:
        """Goes on to the next turn.

        Raises:
            ConfigError: the tools that its user's code gives cannot be those of a request.
        """
        self.tools = self.tool_set or self.plan.tools()
        self.turn += 1
        self.attempt = 0
        self.turn_usage = None
        self.finished = {}
        if self.spilled:
            self.tools = self.with_reader(self, self.tools)

    def accept(self, message: Message, reason: StopReason) -> None:
        """Takes a response into the context."""
        self.streak = self.streak + 1 if reason == self._reason else 1
        self._reason = reason
        self.full_budget = reason == "length"
        self.add(message)
        if reason != "complete":
            self.call_ids.add(message)

    def estimate(self) -> int:
        """Estimated tokens of a request with the context as it is."""
        return self.meter.estimate(self.context, self.model, self.system_prompt, self.tools.specs)

    def replace_context(self, messages: Sequence[Message]) -> None:
        """Puts another list in the place of the context, for this and all later requests."""
        self.left_out.update([message.id for message in self.context])
        trail = self.trail = Trail(list(messages))
        self.context, self.meter = trail.messages, trail.meter

    def request_settings(self) -> ModelSettings:
        """How the model is to answer this time; after a cut response with its full output budget (LP-15)."""
        settings = self.settings
        if self.plan.output is not None and settings.response_schema is None:
            settings = self.settings = msgspec.structs.replace(
                settings, response_schema=self.plan.output.schema
            )
        if self.full_budget and settings.max_output_tokens is not None:
            return msgspec.structs.replace(settings, max_output_tokens=self.model.max_output_tokens or None)
        return settings

    @property
    def shut_down(self) -> bool:
        """Whether the run is only left, not stopped: a recovery goes on with it (RC-52)."""
        # A stop acts before it is durable (AC-122), so that the state alone does not tell.
        return self.scope.source == "shutdown" and self.port.state.state != "stopping"


def _as_they_are(_work: Work, tools: ToolSet) -> ToolSet:
    return tools


@final
class _CallIds(Container[str]):
    """The ids of all calls of the thread: read once, and only if a model makes a call at all (PV-5)."""

    __slots__ = ("_history", "_ids")

    def __init__(self, context: Sequence[Message]) -> None:
        self._history: Sequence[Message] | None = tuple(context)
        self._ids: set[str] = set()

    def add(self, message: Message) -> None:
        """Takes the calls of an accepted message."""
        self._ids.update([call.call_id for call in message.tool_calls])

    def __contains__(self, call_id: object) -> bool:
        if self._history is not None:
            for message in self._history:
                if message.role == "assistant":
                    self.add(message)
            self._history = None
        return call_id in self._ids


@final
class Payload(Sequence[Message]):
    """The first `len` messages of a list that goes on growing: what one request sends, without a copy."""

    __slots__ = ("_length", "_messages")

    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages
        self._length = len(messages)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:  # type: ignore[override]
        if isinstance(index, slice):
            return [self._messages[at] for at in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._messages[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages[: self._length])
