"""The loop as a runtime: one object that serves any number of runs; of each it keeps what need not be found out again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from decimal import Decimal
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self, final

from msgspec import Struct

from ..clock import SystemClock
from ..contracts import Clock, Provider, RunPort
from ..core.canonical import digest_of
from ..core.prices import cost_of
from ..core.transcript import Transcript
from ..errors import ConfigError, OutcomeError, StartRefused, UsageError
from ..events import CallStarted, Completed, ModelRequested, Outcome, OutputAdded, Truncated, Unknown
from ..messages import JSON, Message, Model, Price, Usage, user_message
from ..records import Descriptor, RunSpec, Start
from .config import LoopConfig
from .handoff import Handoff, Handoffs
from .plan import Plan, Providers, check_prices
from .tool_host import ToolHost
from .tools import Tool, ToolLike, ToolSet, tool_source
from .trail import Trails
from .turn import Step, Turns
from .work import Work

if TYPE_CHECKING:
    from .output import Output
    from .port import MemoryPort


@final
class LoopResult(Struct, frozen=True, kw_only=True, eq=False):
    """How `AgentLoop.ask` ended.

    Attributes:
        outcome: the typed end; `Unknown` where nobody saw it.
        messages: of this run, the input included, results in the order of their calls.
        usage: tokens of all requests.
        cost: money of all requests, None where neither the provider told it nor the model has prices.
        output: the validated value, where `output_type` is set and the run completed.
        turns, requests, tool_calls: how many there were.
    """

    outcome: Outcome
    messages: tuple[Message, ...]
    usage: Usage | None
    cost: Decimal | None
    output: Any
    turns: int
    requests: int
    tool_calls: int
    run_id: str

    @property
    def text(self) -> str:
        """Text of the last assistant message."""
        for message in reversed(self.messages):
            if message.role == "assistant":
                return message.text
        return ""

    def raise_for_outcome(self) -> None:
        """Does nothing for completed and truncated runs.

        Raises:
            OutcomeError: for every other outcome.
        """
        if not isinstance(self.outcome, Completed | Truncated):
            raise OutcomeError(self.outcome, self.run_id)


@final
class AgentLoop:
    """Takes a model through turns of responses and tool calls; implements `contracts.Runtime`.

    Args:
        provider: who serves the model; a mapping if models of several are used.
        system_prompt: given with every request.
        tools: what the model may call: tools or plain functions, or a callable that gives them for each turn.
        config: how the loop works.
        handoffs: agents that a conversation can be handed to.
        output_type: a type that pydantic knows; the final answer is validated JSON of it.
        deps: what tools get as `ToolContext.deps`.
        clock: measures time; tests move one of their own.

    Attributes:
        config: with the model resolved, never None.
        reopens: it goes on where its end is refused because somebody has said something meanwhile.
        config_digest: of model, prompt, tools, limits and policies.
    """

    reopens: Final = True

    def __init__(
        self,
        provider: Provider | Mapping[str, Provider],
        *,
        system_prompt: str | None = None,
        tools: Sequence[ToolLike] | Callable[[], Sequence[ToolLike]] = (),
        config: LoopConfig | None = None,
        handoffs: Sequence[Handoff] = (),
        output_type: type[Any] | None = None,
        deps: object = None,
        clock: Clock | None = None,
    ) -> None:
        self._output = None if output_type is None else _output_of(output_type)
        self._providers = Providers(provider)
        _check_config(config)
        if config is None:
            config = LoopConfig.plain(self._providers.default_model)
        elif config.model is None:
            config = config.copy_with(model=self._providers.default_model)
        self.config: Final = config
        assert self.config.model is not None
        self._providers.of(self.config.model)
        check_prices(self.config.model, self.config.limits)
        self._system_prompt = system_prompt
        self._clock: Clock = clock or SystemClock()
        self._handoffs = Handoffs(handoffs)
        for model in self._handoffs.models:
            self._providers.of(model)
            check_prices(model, self.config.limits)
        doors = self._handoffs.doors()
        self._tools = tool_source(tools if not doors else _with_doors(tools, doors))
        self._tool_host = ToolHost(deps)
        self._trails = Trails()
        self._plan: Plan | None = None  # of a run without options
        self._instructions = ""
        self._with_reader: Callable[[Work, ToolSet], ToolSet] = _with_reader
        self.config_digest: str = _digest_of(self.config, system_prompt, self._tools().digest)

    def offering(self, tools: Sequence[Tool], instructions: str = "", *, digest: str = "") -> AgentLoop:
        """The same loop with more tools behind its own and more to say behind its system prompt.

        Everything else is shared, what tools have started too. `digest` is its `config_digest`: by default that of all
        this together; a host whose tools vary by send gives the one that they all go by.

        Raises:
            ConfigError: two tools have the same name.
        """
        own, more = self._tools, tuple(tools)
        made: dict[str, ToolSet] = {}

        def supply() -> ToolSet:
            first = own()
            if first.digest not in made:
                made[first.digest] = ToolSet([*first, *more])
            return made[first.digest]

        twin = copy(self)
        vars(twin).update(
            _tools=supply if more else own,
            _instructions=instructions,
            _plan=None,
            config_digest=digest or digest_of([self.config_digest, supply().digest, instructions]),
        )
        return twin

    def played(self, config: LoopConfig, wrap: Callable[[Tool], Tool]) -> AgentLoop:
        """The same loop for a run that is played again: under another configuration, its own tools wrapped as others are."""
        twin = copy(self)
        vars(twin).update(config=config, _plan=None, _with_reader=partial(_with_reader, wrap=wrap))
        return twin

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Ends what the loop itself has started; a given provider stays open. Idempotent."""
        await self._tool_host.close()

    @property
    def clock(self) -> Clock:
        """What measures time."""
        return self._clock

    @property
    def tool_names(self) -> tuple[str, ...]:
        """What its own tools are called at present."""
        return tuple(self._tools().names)

    @property
    def abandoned(self) -> int:
        """Calls that did not end when they were asked to and still run."""
        return len(self._tool_host.abandoned)

    def describe(self) -> Descriptor:
        """The contract; the same for the life of the loop."""
        return Descriptor(
            "pilothouse.loop",
            accepts=("*/*",),
            commands=("steer", "follow_up", "answer", "cancel", "withdraw", "replace"),
            inputs="queue",
            requests=("input", "approval", "external"),
            cancel="confirmed",
            recovery="journal",
            thread_reuse="sequential",
            structured_output=True,
        )

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works until the run's end is recorded, or until nobody knows it.

        Raises:
            StartRefused: the run's options cannot work; nothing was recorded.
        """
        work = self._work(start, port)
        await Turns(work, self._tool_host, self._handoffs).drive(Step.OPEN)
        self._trails.keep(work.thread_id, work.trail)

    async def run_alone(self, start: Start, port: RunPort, /) -> None:
        """`run` in a thread that will not go on: nothing is kept for its next run.

        Raises:
            StartRefused: as of `run`.
        """
        await self.run(start, port)
        self._trails.forget(start.spec.thread_id)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts alone: what is known is not done again (LP-49)."""
        work = self._work(start, port)
        from .resume import Log

        step, answer = await Log(work, self._handoffs).read()
        await Turns(work, self._tool_host, self._handoffs).drive(step, answer)
        self._trails.keep(work.thread_id, work.trail)

    def check(self, options: Mapping[str, JSON]) -> None:
        """Sees that a run can have these options.

        Raises:
            ConfigError: naming the option and the value.
        """
        self._planned(options, self._output)

    def _planned(self, options: Mapping[str, JSON], output: Output | None) -> Plan:
        return Plan(
            self.config,
            self._providers,
            self._system_prompt,
            self._tools,
            options,
            output,
            self._instructions,
        )

    def _work(self, start: Start, port: RunPort) -> Work:
        self._tool_host.attach()
        plan, spec = self._plan, start.spec
        if plan is None or spec.options or spec.output_schema is not None:
            try:
                output = self._output if spec.output_schema is None else _output_by(spec.output_schema)
                plan = self._planned(spec.options, output)
            except ConfigError as error:
                raise StartRefused("config", str(error)) from error
            if not spec.options and spec.output_schema is None:
                self._plan = plan
        trail = self._trails.take(spec.thread_id, [*start.history, *spec.input])
        try:
            work = Work(plan, start, port, self._clock, trail)
        except ConfigError as error:  # of the tools, where a user's code gives them
            raise StartRefused("config", str(error)) from error
        # Given the work when it is called: a run leaves no cycle for the collector.
        work.with_reader = self._with_reader
        return work

    async def ask(
        self, prompt: str | Message | Sequence[Message] = (), *, history: Sequence[Message] = ()
    ) -> LoopResult:
        """Runs once in memory and returns how it ended; failures are in the result.

        Raises:
            UsageError: there is nothing to answer.
        """
        run_id = os.urandom(8).hex()
        given: tuple[Message, ...]
        if isinstance(prompt, str | Message):
            given = (user_message(prompt, f"{run_id}-input"),)
        else:
            given = tuple(prompt)
        if not given and (not history or history[-1].role == "assistant"):
            raise UsageError("cannot ask because there is nothing to answer: give a prompt")
        spec = RunSpec(run_id, run_id, given)
        start = Start(spec, tuple(history), "", "memory", "", 1, "")
        from .port import MemoryPort

        port = MemoryPort(start, self._clock)
        port.attended = False
        try:
            await self.run_alone(start, port)
        except StartRefused as refusal:
            raise UsageError(str(refusal)) from refusal
        return _result(port, spec, self.config.model, self._output)


def _with_doors(
    tools: Sequence[ToolLike] | Callable[[], Sequence[ToolLike]], doors: Sequence[Tool]
) -> Sequence[ToolLike] | Callable[[], Sequence[ToolLike]]:
    return (lambda: [*tools(), *doors]) if callable(tools) else [*tools, *doors]


@lru_cache(maxsize=64)
def _digest_of(config: LoopConfig, system_prompt: str | None, tools: str) -> str:
    """Names what a run was made under; remembered, since hosts make a loop for each conversation of one configuration."""
    return digest_of(
        {
            "model": config.model,
            "system_prompt": system_prompt,
            "tools": tools,
            "settings": config.settings,
            "limits": repr(config.limits),
        }
    )


# What few loops need is loaded when it is needed: a first answer without tools comes in half the time.


def _check_config(given: object) -> None:
    if given is not None and not isinstance(given, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, got {type(given).__name__}")


def _output_of(wanted: type[Any]) -> Output:
    from .output import output_of

    return output_of(wanted)


def _output_by(schema: JSON) -> Output:
    from .output import output_by

    if not isinstance(schema, Mapping):
        raise ConfigError(f"output_schema: {schema!r} is no JSON schema")
    return output_by(schema)


def _with_reader(work: Work, tools: ToolSet, wrap: Callable[[Tool], Tool] | None = None) -> ToolSet:
    """The tools of a thread that has results which were left out (TL-15)."""
    if "read_artifact" in tools.names:
        return tools
    made = work.reader_sets.get(tools.digest)
    if made is None:
        from .spill import reader

        read = reader(work)
        made = work.reader_sets[tools.digest] = ToolSet([*tools, read if wrap is None else wrap(read)])
    return made


def _cost(usage: Usage | None, prices: Price | None) -> Decimal | None:
    """What the responses told, else what their tokens cost."""
    if usage is not None and usage.cost is not None:
        return Decimal(usage.cost)
    if usage is None or prices is None:
        return None
    return cost_of(prices, usage.input or 0, usage.output or 0, usage)


def _result(port: MemoryPort, spec: RunSpec, model: Model | None, output: Output | None) -> LoopResult:
    state = port.state
    usage = state.usage
    transcript = Transcript(spec)
    requests = calls = 0
    value: Any = None
    for record in port.records:
        transcript.add(record)
        if isinstance(record.fact, OutputAdded) and output is not None:
            value = output.read(record.fact.content)
        requests += isinstance(record.fact, ModelRequested)
        calls += isinstance(record.fact, CallStarted) and record.fact.attempt == 1
    return LoopResult(
        outcome=state.outcome or Unknown("eof", "the loop left without an end"),
        messages=tuple([entry.message for entry in transcript.messages() if entry.complete]),
        usage=usage,
        cost=_cost(usage, None if model is None else model.prices),
        output=value,
        turns=state.turn,
        requests=requests,
        tool_calls=calls,
        run_id=state.run_id,
    )
