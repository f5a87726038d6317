"""The places where a user's code takes part in the loop: what it is given, what it may return, and how it is called.

A hook is sync or async; sync ones run on the event loop and must be quick. It may be let go of at any time by a stop, and
by `hook_timeout`; what its failure means is said where it is called (agent-loop §2.4).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, final

from msgspec import Struct

from ..cancel import LEAVING, is_closing
from ..contracts import CancelScope, Clock
from ..events import Effect
from ..messages import JSON, Message, Model, Part, ToolSpec, Usage
from ..responses import ModelSettings
from .interrupt import Interrupted, Interruptible
from .recorder import Stopped
from .scope import WorkScope

logger: Final = logging.getLogger("pilothouse.loop")
T = TypeVar("T")


class HookFailed(Exception):
    """A hook raised, took too long, or returned what it may not; the text says which and never what it raised."""


@final
class CallCheck(Struct, frozen=True, eq=False):
    """A call before it runs. `args` are the validated arguments; `effect` what it would do."""

    call_id: str
    tool: str
    args: Mapping[str, JSON]
    effect: Effect
    message: Message
    history: Sequence[Message]
    turn: int
    run_id: str
    scope: CancelScope


@final
class CallDone(Struct, frozen=True, eq=False):
    """A call after it ran. `duration` is seconds."""

    check: CallCheck
    result: tuple[Part, ...]
    is_error: bool
    duration: float


@final
class Block(Struct, frozen=True):
    """Says no; the reason is for the model."""

    reason: str | None = None


@final
class Rewrite(Struct, frozen=True):
    """Other arguments; they are validated again."""

    args: Mapping[str, JSON]


@final
class Override(Struct, frozen=True):
    """Another result; what is left out stays as it was."""

    parts: tuple[Part, ...] | None = None
    structured: JSON = None
    is_error: bool | None = None
    terminate: bool | None = None


@final
class TransformInfo(Struct, frozen=True, eq=False):
    """What a request is about to be."""

    run_id: str
    thread_id: str
    turn: int
    attempt: int
    model: Model
    scope: CancelScope


@final
class TurnInfo(Struct, frozen=True, eq=False):
    """A turn that is over: its message, the results of its calls, and what the run has used so far."""

    run_id: str
    turn: int
    message: Message
    results: tuple[Message, ...]
    context: Sequence[Message]
    model: Model
    usage: Usage | None
    scope: CancelScope


@final
class NextTurn(Struct, frozen=True, kw_only=True, eq=False):
    """Changes for the turns to come; what is left out stays."""

    messages: Sequence[Message] | None = None
    model: Model | None = None
    tools: Sequence[Any] | None = None
    system_prompt: str | None = None
    settings: ModelSettings | None = None


@final
class PollInfo(Struct, frozen=True, eq=False):
    """Who asks for queued messages, and when."""

    run_id: str
    thread_id: str
    turn: int
    scope: CancelScope


@final
class OverWindow(Struct, frozen=True, eq=False):
    """A request that is too large. `cause` is `estimate`, `provider` or `asked`; sizes are tokens."""

    messages: Sequence[Message]
    estimate: int
    window: int
    cause: str
    model: Model
    tools: Sequence[ToolSpec]
    scope: CancelScope


@final
class Relief(Struct, frozen=True, eq=False):
    """A smaller context, with how it was made and what that used; a plain list says the same in short."""

    messages: Sequence[Message]
    method: str = "over_window_relief"
    usage: Usage | None = None
    model: Model | None = None


Queued: TypeAlias = Sequence[Message | str]
BeforeToolCall: TypeAlias = Callable[[CallCheck], Block | Rewrite | Awaitable[Block | Rewrite | None] | None]
AfterToolCall: TypeAlias = Callable[[CallDone], Override | Awaitable[Override | None] | None]
TransformContext: TypeAlias = Callable[
    [list[Message], TransformInfo], list[Message] | Awaitable[list[Message] | None] | None
]
PrepareNextTurn: TypeAlias = Callable[[TurnInfo], NextTurn | Awaitable[NextTurn | None] | None]
ShouldStop: TypeAlias = Callable[[TurnInfo], bool | str | Awaitable[bool | str | None] | None]
QueuedSource: TypeAlias = Callable[[PollInfo], Queued | Awaitable[Queued | None] | None]
OverWindowRelief: TypeAlias = Callable[
    [OverWindow],
    Sequence[Message] | Relief | Awaitable[Sequence[Message] | Relief | None] | None,
]


@final
class Caller:
    """Calls hooks of one run."""

    __slots__ = ("_clock", "_net", "_scope", "_timeout")

    def __init__(
        self, scope: WorkScope, clock: Clock, timeout: float | None, net: float | None = None
    ) -> None:
        self._scope = scope
        self._clock = clock
        self._timeout = timeout
        # The last net: a run that hangs in a hook has fallen silent.
        self._net = net if timeout is None else None

    async def call(self, name: str, hook: Callable[..., Any], *args: Any, returns: tuple[type, ...]) -> Any:
        """What the hook returns; None where it wants no change.

        Raises:
            HookFailed: it raised, exceeded its time, or returned another type.
            Stopped: the run was stopped; this wins over what the hook returned.
        """
        task = asyncio.current_task()
        try:
            value = self._called(hook, args)
            if inspect.isawaitable(value):
                value = await self._awaited(value)
        except (Stopped, HookFailed):
            raise
        except Interrupted:
            raise HookFailed(f"{name} took too long") from None
        except LEAVING:
            raise
        except BaseException as error:
            if is_closing(error, task):
                raise
            if self._scope.cancelled:
                raise Stopped from None
            logger.exception("hook %s failed", name)
            raise HookFailed(f"{name} raised {type(error).__name__}") from error
        if self._scope.cancelled:
            raise Stopped
        if value is not None and not isinstance(value, returns):
            raise HookFailed(f"{name} returned {type(value).__name__}")
        return value

    def _called(self, hook: Callable[..., Any], args: Sequence[Any]) -> Any:
        try:
            return hook(*args)
        except asyncio.CancelledError:  # nothing was awaited, so nobody has cancelled the run's task
            raise HookFailed("it was cancelled from inside") from None

    async def _awaited(self, value: Awaitable[Any]) -> Any:
        region = Interruptible(self._clock, limit=self._timeout if self._net is None else self._net)
        task = asyncio.current_task()
        assert task is not None
        cancels = task.cancelling()
        take_back = self._scope.on_cancel(region.interrupt)
        try:
            return await region.run(_coroutine(value))
        except Interrupted:
            if self._net is not None:
                self._scope.stop("watchdog")
            if self._scope.cancelled:
                raise Stopped from None
            raise
        except asyncio.CancelledError:
            if task.cancelling() > cancels:
                raise
            raise HookFailed("it was cancelled from inside") from None  # nobody had cancelled the run's task
        finally:
            take_back()


async def _coroutine(value: Awaitable[T]) -> T:
    return await value
