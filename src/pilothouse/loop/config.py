"""How a loop works: everything that a user may set, checked when it is built.

A configuration holds no state of a run and serves any number of them at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from decimal import Decimal
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Literal, final

from msgspec import Struct, field
from msgspec.structs import replace

from ..core.breaker import RepetitionBreaker, ToolMisuseBreaker
from ..errors import ConfigError
from ..messages import Model
from ..responses import ModelSettings
from .approval import ApprovalPolicy
from .dump import Redactor

if TYPE_CHECKING:
    from .hooks import (
        AfterToolCall,
        BeforeToolCall,
        OverWindowRelief,
        PrepareNextTurn,
        QueuedSource,
        ShouldStop,
        TransformContext,
    )
    from .stuck import StuckToolConfig

MIN_WINDOW: Final = 16_384
"""Tokens: a smaller window leaves no room for a conversation."""


def _check(field: str, value: object, fits: Callable[[Any], bool], wanted: str) -> None:
    try:
        good = fits(value)
    except (TypeError, ValueError, ArithmeticError):  # of another type, so that it cannot be compared
        good = False
    if not good:
        raise ConfigError(f"{field} must be {wanted}, not {value!r}")


def _not_negative(value: Any) -> bool:
    return bool(value >= 0)


def _at_least_one(value: Any) -> bool:
    return bool(value >= 1)


def _positive(value: Any) -> bool:
    return bool(value > 0)


def _is_money(value: Any) -> bool:
    amount = Decimal(str(value))
    return amount.is_finite() and amount >= 0


@final
class RetryPolicy(Struct, frozen=True, kw_only=True):
    """When a request that failed before anything was visible is made again (LP-18 … LP-20).

    Attributes:
        attempts: requests for one response at most, the first included.
        base: seconds before the second request; each further one waits `factor` times as long.
        jitter: how much a delay may differ, as a part of it.
        max_delay: seconds; a server's hint above it ends the response at once.
    """

    attempts: int = 4
    base: float = 2.0
    factor: float = 2.0
    jitter: float = 0.25
    max_delay: float = 60.0

    def __post_init__(self) -> None:
        _check("retry.attempts", self.attempts, _at_least_one, "at least 1")
        _check("retry.base", self.base, _not_negative, "not negative")
        _check("retry.factor", self.factor, _at_least_one, "at least 1")
        _check("retry.jitter", self.jitter, lambda part: 0 <= part <= 1, "between 0 and 1")
        _check("retry.max_delay", self.max_delay, _not_negative, "not negative")

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failed requests, without a hint of the server."""
        from random import random  # half a megabyte and a millisecond, for runs that go well

        seconds = min(self.base * self.factor ** (failures - 1), self.max_delay)
        return float(seconds * (1 + self.jitter * (2 * random() - 1)))  # noqa: S311 - no secret


_UNBOUNDED: Final = frozenset({"input_tokens", "output_tokens", "total_tokens", "cost", "deadline"})
"""Limits that may be None."""
_AMOUNT: Final = "a number from 0 on"


@final
class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of one run (LP-38). What reaches one ends `Incomplete("limit", name)` unless said otherwise.

    Attributes:
        turns: model responses with what they cause; 0 sends nothing.
        requests: attempts at providers, retries included.
        input_tokens, output_tokens, total_tokens: tokens of all requests, discarded and failed ones included. The
            estimate of a request and its output budget are reserved before it is sent.
        cost: money of all requests, in the currency of the model's prices.
        deadline: seconds of work; waiting for people and pauses do not count.
        consecutive_errors: turns in a row in which calls were made and none succeeded.
        tool_calls: calls started; one beyond it is refused, and the run ends after its batch.
        per_tool: the same for single tools, by name.
        parallel_tools: calls that run at once; the others wait.
        length_continuations: turns in a row that an output limit cut; then the run is `Truncated`.
        pauses: turns in a row that the provider wanted to go on with.
        follow_up_batches: batches of follow-ups that may extend one run.
    """

    turns: int = 100
    requests: int = 300
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cost: float | str | None = None
    deadline: float | None = None
    consecutive_errors: int = 10
    tool_calls: int = 500
    per_tool: Mapping[str, int] = field(default_factory=dict)
    parallel_tools: int = 16
    length_continuations: int = 3
    pauses: int = 8
    follow_up_batches: int = 50

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name == "per_tool":
                for tool, count in value.items():
                    _check(f"limits.per_tool[{tool!r}]", count, _not_negative, "not negative")
            elif value is not None or name not in _UNBOUNDED:
                _check(f"limits.{name}", value, _is_money if name == "cost" else _not_negative, _AMOUNT)
        _check("limits.parallel_tools", self.parallel_tools, _at_least_one, "at least 1")

    def lowered(self, changes: dict[str, Any]) -> Limits:
        """These limits with some lowered, never raised: what `loop.limits` of one run may do.

        Raises:
            ConfigError: for a name that is no limit or a value that is no number.
        """
        lower: dict[str, Any] = {}
        for name, value in changes.items():
            if name not in self.__struct_fields__:
                raise ConfigError(f"loop.limits: no limit is called {name!r}")
            if name == "per_tool":
                lower[name] = _lower_each(self.per_tool, value)
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"loop.limits.{name}: {value!r} is no number")
            mine = getattr(self, name)
            lower[name] = value if mine is None else min(mine, value, key=_amount)
        return replace(self, **lower)


def _amount(value: Any) -> Decimal:
    return Decimal(str(value))  # a limit on money may be written as text


def _lower_each(mine: Mapping[str, int], given: Any) -> dict[str, int]:
    if not isinstance(given, dict) or not all(type(count) is int for count in given.values()):
        raise ConfigError(f"loop.limits.per_tool: {given!r} is no object of numbers")
    return {**mine, **{tool: min(count, mine.get(tool, count)) for tool, count in given.items()}}


_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "tool_execution": ("parallel", "sequential"),
    "batch_policy": ("preflight_all", "after_approvals", "as_ready"),
    "steering_policy": ("boundary", "skip_unstarted", "stop_now"),
    "steering_mode": ("one_at_a_time", "all"),
    "follow_up_mode": ("one_at_a_time", "all"),
}


_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "model": (Model, type(None)),
    "settings": (ModelSettings,),
    "retry": (RetryPolicy,),
    "limits": (Limits,),
    "approval": (ApprovalPolicy,),
}
_HOOKS: Final = (
    "before_tool_call",
    "after_tool_call",
    "transform_context",
    "prepare_next_turn",
    "should_stop_after_turn",
    "get_steering_messages",
    "get_follow_up_messages",
    "has_pending_steering",
    "over_window_relief",
)


def _is_one(kinds: tuple[type, ...], value: object) -> bool:
    return isinstance(value, kinds)


def _is_hook(value: object) -> bool:
    return value is None or callable(value)


def _check_subscribable(source: AsyncIterable[object] | None) -> None:
    """A one-shot iterator would serve the first tool phase alone: each `aiter()` must be a new subscription."""
    if source is None:
        return
    if not hasattr(source, "__aiter__"):
        raise ConfigError(f"steering_notifications must be an asynchronous iterable, not {source!r}")
    if hasattr(source, "__anext__"):
        raise ConfigError(
            "steering_notifications must be subscribable more than once, not a one-shot iterator: use Notifier"
        )


@final
class LoopConfig(Struct, frozen=True, kw_only=True, eq=False):
    """The loop's settings; compared by identity.

    Attributes:
        model: called each turn; None is the provider's default model.
        settings: how the model is to answer.
        retry: the one retry there is.
        limits: bounds of a run.
        max_empty_retries: how often an empty completion is asked again before it is accepted.
        send_timeout: seconds from the first request of a response to its first event, retries included.
        stream_idle_timeout: seconds between two events of a response.
        tool_execution: how the calls of one message run.
        tool_timeout: seconds for a tool that declares no time limit of its own; None is no limit.
        cancel_grace: seconds that a cancelled call may take to end; then it is abandoned.
        batch_policy: when a call of a batch may start: once all are checked (`preflight_all`), once all approvals are
            answered too (`after_approvals`), or as soon as it is checked itself (`as_ready`).
        approval: which calls a person is asked about.
        before_tool_call: before each execution; may block it or rewrite its arguments.
        after_tool_call: after each execution; may override the result.
        transform_context: rewrites a copy of the messages before each request; payload only.
        prepare_next_turn: adjusts context, model, tools, prompt and settings after each turn.
        should_stop_after_turn: whether the run ends with this turn.
        get_steering_messages: a host's own steering, injected at the next turn boundary.
        get_follow_up_messages: a host's own input for when the run would stop.
        steering_notifications: an item says that the host's steering has arrived; the first one in a tool phase asks
            running tools to hand over.
        has_pending_steering: the same as a question, asked every `yield_probe_interval` seconds of a tool phase.
        max_steering_turns: steering batches that may extend one run; then the rest waits for the next one.
        steering_policy: what steering does to calls: nothing but asking (`boundary`), keep those from starting that have
            not (`skip_unstarted`), stop running ones too (`stop_now`).
        steering_mode, follow_up_mode: items taken a poll.
        over_window_relief: makes the context smaller when a request does not fit, at most once a response.
        context_window_cap: the owner's window in tokens, used instead of the model's, lower or higher.
        output_retries: how often an answer that is not of the wanted type is asked for again.
        stuck_tool: supervision of calls that take too long; None is off.
        spill_above: bytes of a text that stay in the transcript; more becomes an artifact.
        result_limit: bytes of a result; more is an error.
        tool_misuse_breaker: for calls that are rejected again and again; None is off.
        repetition_breaker: for calls that are made again and again with the same outcome; None is off.
        run_idle_timeout: seconds of silence outside tools, pauses and open requests, where nothing else limits it; 0 is
            off.
        wire_dump: each request is recorded as it was before its provider shaped it, without secrets.
        redactor: takes secrets out of what is recorded.
        wire_dump_limit: bytes of a dump.
        hook_timeout: seconds for each hook; None is no limit.
    """

    model: Model | None = None
    settings: ModelSettings = field(default_factory=ModelSettings)
    retry: RetryPolicy = RetryPolicy()
    limits: Limits = Limits()
    max_empty_retries: int = 1
    send_timeout: float | None = None
    stream_idle_timeout: float | None = None
    tool_execution: Literal["parallel", "sequential"] = "parallel"
    tool_timeout: float | None = 120.0
    cancel_grace: float = 1.5
    batch_policy: Literal["preflight_all", "after_approvals", "as_ready"] = "preflight_all"
    approval: ApprovalPolicy = field(default_factory=ApprovalPolicy)
    before_tool_call: BeforeToolCall | None = None
    after_tool_call: AfterToolCall | None = None
    transform_context: TransformContext | None = None
    prepare_next_turn: PrepareNextTurn | None = None
    should_stop_after_turn: ShouldStop | None = None
    get_steering_messages: QueuedSource | None = None
    get_follow_up_messages: QueuedSource | None = None
    steering_notifications: AsyncIterable[object] | None = None
    has_pending_steering: Callable[[], Awaitable[bool]] | None = None
    max_steering_turns: int = 20
    steering_policy: Literal["boundary", "skip_unstarted", "stop_now"] = "boundary"
    steering_mode: Literal["one_at_a_time", "all"] = "one_at_a_time"
    follow_up_mode: Literal["one_at_a_time", "all"] = "one_at_a_time"
    over_window_relief: OverWindowRelief | None = None
    context_window_cap: int | None = None
    output_retries: int = 2
    stuck_tool: StuckToolConfig | None = None
    spill_above: int = 32_768
    result_limit: int = 67_108_864
    tool_misuse_breaker: ToolMisuseBreaker | None = None
    repetition_breaker: RepetitionBreaker | None = field(default_factory=cache(RepetitionBreaker))
    run_idle_timeout: float = 480.0
    wire_dump: bool = False
    redactor: Redactor = field(default_factory=cache(Redactor))  # it never changes: one for all
    wire_dump_limit: int = 262_144
    hook_timeout: float | None = None
    yield_probe_interval: float = 2.0

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            _check(
                name,
                getattr(self, name),
                partial(_is_one, kinds),
                " or ".join([kind.__name__ for kind in kinds]),
            )
        for name in _HOOKS:
            _check(name, getattr(self, name), _is_hook, "a function, or None")
        _check("max_empty_retries", self.max_empty_retries, _not_negative, "not negative")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            _check(name, value, choices.__contains__, " or ".join(choices))
        _check("output_retries", self.output_retries, _not_negative, "not negative")
        _check("max_steering_turns", self.max_steering_turns, _not_negative, "not negative")
        _check("yield_probe_interval", self.yield_probe_interval, _positive, "more than zero")
        _check("run_idle_timeout", self.run_idle_timeout, _not_negative, "not negative")
        _check("wire_dump_limit", self.wire_dump_limit, _not_negative, "not negative")
        _check(
            "spill_above", self.spill_above, lambda size: size >= 8_192, "at least 8192: both ends are kept"
        )
        _check(
            "result_limit", self.result_limit, lambda size: size >= self.spill_above, "at least spill_above"
        )
        cap = self.context_window_cap
        _check(
            "context_window_cap",
            cap,
            lambda size: size is None or size >= MIN_WINDOW,
            f"at least {MIN_WINDOW}, or None",
        )
        _check_subscribable(self.steering_notifications)
        _check("cancel_grace", self.cancel_grace, _not_negative, "not negative")
        for name in ("send_timeout", "stream_idle_timeout", "tool_timeout", "hook_timeout"):
            value = getattr(self, name)
            if value is not None:
                _check(name, value, _positive, "positive, or None for no limit")

    @staticmethod
    @lru_cache(maxsize=64)
    def plain(model: Model) -> LoopConfig:
        """Every setting at its default, for a model: one for all who want no other."""
        return LoopConfig(model=model)

    def copy_with(self, **changes: Any) -> LoopConfig:
        """A copy with some settings changed.

        Raises:
            ConfigError: for a name that is no setting, or a value that cannot work.
        """
        for name in changes:
            if name not in self.__struct_fields__:
                raise ConfigError(f"LoopConfig has no setting {name!r}")
        return replace(self, **changes)
