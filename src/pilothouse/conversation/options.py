"""The options of a conversation: names, defaults, and what odd values mean (AC-70, AC-71, AC-163)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from math import inf, isnan
from numbers import Real
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

import msgspec

from ..core.canonical import NotJSON, encode
from ..core.lifecycle import AgentState
from ..errors import ConfigError
from ..messages import JSON, Message, Model
from .controllers import RequestEvent, ResponseEvent

logger = logging.getLogger("pilothouse.conversation")

Seconds: TypeAlias = float | int | timedelta | None
BusyPolicy: TypeAlias = Literal["raise", "queue", "drop", "supersede"]

LONGEST_S: Final = 2_147_483.0
"""24.8 days: the ceiling of the source, below which no timer overflows."""


class AgentOptions(TypedDict, total=False):
    """Keywords of the constructor and of `update_options`; None is the default of each."""

    model: str | Model | None
    params: Mapping[str, JSON] | None
    system_prompt: str | None
    send_timeout: Seconds
    stream_idle_timeout: Seconds
    max_message_length: int | float | None
    max_messages: int | float | None
    max_attachment_bytes: int | float | None
    pause_buffer: int | None
    close_timeout: Seconds
    reply_timeout: Seconds
    hook_timeout: Seconds
    when_busy: BusyPolicy
    queue_limit: int
    send_context: str | Callable[[RequestEvent], str | Awaitable[str | None] | None] | None
    request_listener: Callable[[RequestEvent], object] | None
    response_listener: Callable[[ResponseEvent], object] | None
    on_response_start: Callable[[str], object] | None
    on_response_chunk: Callable[[str, str], object] | None
    on_response_complete: Callable[[Message], object] | None
    on_error: Callable[[Exception], object] | None
    on_state_change: Callable[[AgentState], object] | None
    on_messages_change: Callable[[tuple[Message, ...]], object] | None
    on_callback_error: Callable[[Exception, str], object] | None


CALLBACKS: Final = (
    "on_response_start",
    "on_response_chunk",
    "on_response_complete",
    "on_error",
    "on_state_change",
    "on_messages_change",
)

_TIMES: Final = {
    "send_timeout": 60.0,
    "stream_idle_timeout": 60.0,
    "close_timeout": 5.0,
    "reply_timeout": inf,
    "hook_timeout": 30.0,
}
_COUNTS: Final = {"max_message_length": 100_000, "max_messages": 200, "max_attachment_bytes": 20_000_000}

DEFAULTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "model": None,
        "params": None,
        "system_prompt": None,
        **_TIMES,
        **_COUNTS,
        "pause_buffer": 1_000_000,
        "when_busy": "raise",
        "queue_limit": 16,
        "send_context": None,
        "request_listener": None,
        "response_listener": None,
        **dict.fromkeys(CALLBACKS),
        "on_callback_error": None,
    }
)


def seconds(name: str, value: object) -> float:
    """What a time limit means (AC-70): `inf` is no limit, nonsense keeps the guard, with a warning."""
    default = _TIMES[name]
    if value is None:
        return default
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        logger.warning(
            "%s must be a number of seconds, got %s: keeping %s", name, type(value).__name__, default
        )
        return default
    try:
        number = float(value)
    except OverflowError:
        return LONGEST_S if value > 0 else inf  # type: ignore[operator]
    except (TypeError, ValueError):
        logger.warning(
            "%s must be a number of seconds, got %s: keeping %s", name, type(value).__name__, default
        )
        return default
    if isnan(number):
        logger.warning("%s is NaN (%s): keeping %s", name, type(value).__name__, default)
        return default
    if number <= 0 or number == inf:
        return inf
    return min(number, LONGEST_S)


def _count(name: str, value: object, least: int, *, bounded: bool = False) -> int | float:
    if value is None:
        return DEFAULTS[name]  # type: ignore[no-any-return]
    if not bounded and isinstance(value, float) and value == inf:
        return inf
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        more = "" if bounded else " or math.inf"
        raise ConfigError(f"{name} must be an int ≥ {least}{more}, got {value!r}")
    return value


def _params(value: object) -> Mapping[str, JSON] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise ConfigError(f"params must be a mapping, got {type(value).__name__}")
    try:
        return msgspec.json.decode(encode(dict(value)))  # type: ignore[no-any-return]
    except NotJSON as error:
        raise ConfigError(f"params must be JSON: {error}") from error


def _one(name: str, value: Any) -> Any:
    if name in _TIMES:
        return seconds(name, value)
    if name in _COUNTS:
        return _count(name, value, 1)
    if name == "pause_buffer":
        return _count(name, value, 0, bounded=True)
    if name == "queue_limit":
        return _count(name, value, 1, bounded=True)
    if name == "params":
        return _params(value)
    if name == "model":
        if value is not None and not isinstance(value, str | Model):
            raise ConfigError(f"model must be a str or a Model, got {type(value).__name__}")
        return value
    if name == "system_prompt":
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"system_prompt must be a str, got {type(value).__name__}")
        return value if value is not None and value.strip() else None
    if name == "when_busy":
        return "raise" if value is None else busy_policy(value)
    if name == "send_context" and isinstance(value, str):
        return value if value.strip() else None
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be callable, got {type(value).__name__}")
    return value


def busy_policy(value: object) -> BusyPolicy:
    """What a send does where another one lives.

    Raises:
        ConfigError: there is no such policy.
    """
    if value not in get_args(BusyPolicy):
        way = "; to steer the run at work: await reply.run.steer(text)" if value == "steer" else ""
        raise ConfigError(f"when_busy must be raise, queue, drop or supersede, got {value!r}{way}")
    return value  # type: ignore[return-value]


_LOOP: Final = "AgentController(AgentLoop(provider, {}))"
_CALLED_HERE: Final[Mapping[str, str]] = MappingProxyType(
    {
        **dict.fromkeys(("instructions", "system", "prompt", "system_message"), "system_prompt=…"),
        **dict.fromkeys(
            ("response_format", "response_model", "result_type", "output_schema"),
            _LOOP.format("output_type=…"),
        ),
        **dict.fromkeys(
            ("max_turns", "max_steps", "max_iterations", "recursion_limit"),
            "config=LoopConfig(limits=Limits(turns=…))",
        ),
        **dict.fromkeys(("temperature", "top_p", "seed", "tool_choice"), "params={'NAME': …}"),
        **dict.fromkeys(("max_tokens", "max_output_tokens"), "params={'max_output_tokens': …}"),
        **dict.fromkeys(("model_settings", "settings", "model_kwargs"), "params={…}"),
        **dict.fromkeys(("session_id", "conversation_id", "thread", "session"), "thread_id=…"),
        **dict.fromkeys(("checkpointer", "memory", "store", "storage", "db"), "journal=SQLiteJournal(path)"),
        **dict.fromkeys(("mcp_servers", "toolsets"), "controllers=[MCPController(…)]"),
        **dict.fromkeys(("subagents", "sub_agents", "agents"), "tools=[agent_tool(…)]"),
        "timeout": "reply_timeout=… for a whole send, send_timeout=… until the answer begins",
    }
)
"""What this field's other libraries call it, and what it is here."""


def _instead(name: str) -> str:
    """Where what was probably meant is said; only for those who were wrong."""
    from difflib import get_close_matches
    from inspect import signature

    from ..loop.agent import AgentLoop
    from ..loop.config import LoopConfig
    from .controller import AgentController

    if name in LoopConfig.__struct_fields__:
        return f": say config=LoopConfig({name}=…)"
    if name in signature(AgentLoop).parameters:
        return f": say {_LOOP.format(f'{name}=…')}"
    if name in _CALLED_HERE:
        return f": say {_CALLED_HERE[name].replace('NAME', name)}"
    near = get_close_matches(name, (*DEFAULTS, *signature(AgentController).parameters), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def merged(current: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options with some changed, all or nothing; None is the default.

    Raises:
        ConfigError: naming the option and the value.
    """
    if not changes:
        return current  # shared: most conversations change nothing
    for name in changes:
        if name not in DEFAULTS:
            raise ConfigError(f"unknown option {name!r}{_instead(name)}; valid names: {', '.join(DEFAULTS)}")
    return {**current, **{name: _one(name, value) for name, value in changes.items()}}
