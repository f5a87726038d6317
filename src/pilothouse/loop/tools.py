"""Tools: functions that a model may call, and what the loop must know of them."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, TypeVar, final, overload

from ..core.canonical import digest_of
from ..errors import ConfigError, ToolDefinitionError
from ..events import Effect
from ..messages import JSON, UNSET, ToolSpec, Unset
from .answers import Backgrounded, NotRun, ToolResult

if TYPE_CHECKING:
    from .coercion import Args
    from .context import ToolContext
    from .hooks import CallCheck
    from .schema import Frozen

F = TypeVar("F", bound=Callable[..., Any])

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
EFFECTS: Final[tuple[Effect, ...]] = ("read", "idempotent", "non_idempotent", "human")


Reconcile: TypeAlias = Callable[[str], Awaitable[ToolResult | NotRun | None]]


class Accepting(Protocol):
    """What validates and freezes a tool's arguments."""

    def accept(self, given: Args) -> Frozen:
        """Freezes a model's arguments."""
        ...

    def thaw(self, frozen: Args) -> dict[str, Any]:
        """The values of arguments that were frozen before."""
        ...


@final
class Tool:
    """A function with its schema and with what the loop must know to run it safely. Made by `tool`.

    Attributes:
        spec: what the model is told.
        effect: what a repetition would do: `read`, `idempotent`, `non_idempotent`, `human`.
        execution: `sequential` makes the whole batch run one call at a time.
        resource: calls with the same one run one after the other.
        approval: whether a person is asked before each call, True, False, or by the call; None leaves it to the policy.
        terminate: every result of it asks to stop asking the model.
        timeout: seconds for the function; UNSET takes the configuration's, None is no limit.
        expected: how long a call with these arguments usually takes, in seconds; for supervision.
        supervised: whether a call that takes too long is supervised (`LoopConfig.stuck_tool`).
        spill_above: bytes of a text that stay in the transcript; None takes the configuration's.
        cancel_safe: a cancelled call has certainly had no effect.
        expose_errors: exceptions whose text the model may read, besides `ToolError`.
        is_async: whether the function is a coroutine function; others run in a worker thread.
        overrules: whether it has changed so that a person is asked whatever they allowed before; None is never.
        pin: names what the tool is, where others say that: what was allowed for the thread holds for the same pin only.
        about: what a person who is asked about a call should know besides.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        spec: ToolSpec,
        parameters: Accepting,
        *,
        context_name: str | None,
        effect: Effect | Callable[[Args], Effect],
        execution: Literal["parallel", "sequential"] | None,
        resource: str | Callable[[Args], str | None] | None,
        approval: bool | Callable[[CallCheck], bool] | None,
        terminate: bool,
        timeout: float | Unset | None,
        expected: Callable[[Args], float | None] | None,
        supervised: bool,
        spill_above: int | None,
        cancel_safe: bool,
        expose_errors: tuple[type[Exception], ...],
        prepare: Callable[[JSON], JSON] | None,
        reconcile: Reconcile | None,
    ) -> None:
        self.function = function
        self.spec = spec
        self.parameters = parameters
        self.context_name = context_name
        self.effect = effect
        self.execution = execution
        self.resource = resource
        self.approval = approval
        self.terminate = terminate
        self.timeout = timeout
        self.expected = expected
        self.supervised = supervised
        self.spill_above = spill_above
        self.cancel_safe = cancel_safe
        self.expose_errors = expose_errors
        self.prepare = prepare
        self.reconcile = reconcile
        self.external = False
        self.stop: Stop | None = None
        self.overrules: Callable[[], bool] | None = None
        self.pin = ""
        self.about: Mapping[str, JSON] = {}
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
        )

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.spec.name

    def __repr__(self) -> str:
        return f"<Tool {self.name} ({self.effect})>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the function itself, as if it were no tool."""
        return self.function(*args, **kwargs)

    # What the loop asks

    def accept(self, given: Args) -> Frozen:
        """Validates and freezes a model's arguments.

        Raises:
            InvalidArguments: they do not fit.
        """
        return self.parameters.accept(given)

    def thaw(self, frozen: Args) -> Mapping[str, Any]:
        """The values of arguments that were frozen before.

        Raises:
            InvalidArguments: the function's types have changed since.
        """
        return self.parameters.thaw(frozen)

    def effect_of(self, arguments: Args) -> Effect:
        """The effect class of a call with these frozen arguments."""
        effect = self.effect(arguments) if callable(self.effect) else self.effect
        if effect not in EFFECTS:
            raise ConfigError(f"tool {self.name}: {effect!r} is no effect")
        return effect

    def resource_of(self, arguments: Args) -> str | None:
        """What such a call must have for itself."""
        resource = self.resource(arguments) if callable(self.resource) else self.resource
        if resource is not None and not isinstance(resource, str):
            raise ConfigError(f"tool {self.name}: {resource!r} is no name of a resource")
        return resource

    def bind(self, values: Mapping[str, Any], context: ToolContext[Any]) -> Callable[[], Any]:
        """The call, ready to be made."""
        if self.context_name is None:
            return lambda: self.function(**values)
        given = {**values, self.context_name: context}
        return lambda: self.function(**given)


Stop: TypeAlias = Callable[[str, str, str], Coroutine[Any, Any, None]]
"""Stops what a call has begun elsewhere, where nobody enters the call again: (run id, call id, reason)."""

ToolLike: TypeAlias = Tool | Callable[..., Any]


@overload
def tool(fn: F, /) -> Tool: ...
@overload
def tool(
    fn: None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect | Callable[[Args], Effect] = "non_idempotent",
    execution: Literal["parallel", "sequential"] | None = None,
    resource: str | Callable[[Args], str | None] | None = None,
    approval: bool | Callable[[CallCheck], bool] | None = None,
    terminate: bool = False,
    timeout: float | Unset | None = UNSET,
    expected: Callable[[Args], float | None] | None = None,
    supervised: bool = True,
    spill_above: int | None = None,
    cancel_safe: bool = False,
    expose_errors: tuple[type[Exception], ...] = (),
    prepare: Callable[[JSON], JSON] | None = None,
    reconcile: Reconcile | None = None,
) -> Callable[[F], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    **options: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Makes a tool of a sync or async function; used plainly or with options.

    The schema comes from the signature, the description from the docstring. A parameter of type `ToolContext` is
    given by the loop. A sync function runs in a worker thread and can be stopped only by its own looks at
    `ctx.cancelled`.

    Args:
        fn: the function; None when used with options.
        name: what the model calls it; the function's name by default.
        description: instead of the docstring's.
        options: see `Tool`.

    Raises:
        ToolDefinitionError: naming what cannot be a tool's.
    """
    if fn is None:
        return lambda function: _make(function, name, description, options)
    return _make(fn, name, description, options)


def as_tool(given: ToolLike) -> Tool:
    """The tool that is meant: itself, or what a plain function becomes."""
    return given if isinstance(given, Tool) else tool(given)


DEFAULTS: Final[Mapping[str, Any]] = {
    "effect": "non_idempotent",
    "execution": None,
    "resource": None,
    "approval": None,
    "terminate": False,
    "timeout": UNSET,
    "expected": None,
    "supervised": True,
    "spill_above": None,
    "cancel_safe": False,
    "expose_errors": (),
    "prepare": None,
    "reconcile": None,
}


def _instead_of(given: object) -> str:
    if hasattr(given, "run"):
        return "another agent is a tool by agent_tool(agent, name=…, description=…)"
    return "options of a tool are keywords: @tool(name=…)"


def _make(
    function: Callable[..., Any], name: str | None, description: str | None, options: Mapping[str, Any]
) -> Tool:
    if not callable(function):
        raise ToolDefinitionError(f"{function!r} is no function; {_instead_of(function)}")
    from .context import ToolContext
    from .schema import Parameters
    from .signature import read_signature

    called = name or _name_of(function)
    check_options(called, options)
    signature = read_signature(function, called, ToolContext)
    parameters = Parameters(called, signature)
    text = signature.text if description is None else description
    if not text:
        warnings.warn(f"tool {called} has no description: a model can only guess what it does", stacklevel=3)
    spec = ToolSpec(called, text, parameters.schema)
    return Tool(function, spec, parameters, context_name=signature.context, **{**DEFAULTS, **options})


def _name_of(function: Callable[..., Any]) -> str:
    target: Any = function
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    return getattr(target, "__name__", None) or type(target).__name__


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses a name or options that cannot be a tool's.

    Raises:
        ToolDefinitionError: naming the option.
    """
    if not _NAME.fullmatch(name):
        raise ToolDefinitionError(
            f"tool {name!r}: a name is a letter or _, then up to 63 letters, digits, _ or -"
        )
    if unknown := set(options) - set(DEFAULTS):
        from difflib import get_close_matches  # not for those who spell it right

        near = get_close_matches(wrong := min(unknown), DEFAULTS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else f": there are {', '.join(DEFAULTS)}"
        raise ToolDefinitionError(f"tool {name}: no option is called {wrong!r}{hint}")
    options = {**DEFAULTS, **options}
    effect, timeout, resource = options["effect"], options["timeout"], options["resource"]
    if not callable(effect) and effect not in EFFECTS:
        raise ToolDefinitionError(f"tool {name}: effect {effect!r} is not one of {', '.join(EFFECTS)}")
    if options["execution"] not in (None, "parallel", "sequential"):
        raise ToolDefinitionError(f"tool {name}: execution {options['execution']!r} is no way to run")
    if not callable(resource) and not isinstance(resource, str | None):
        raise ToolDefinitionError(f"tool {name}: resource {resource!r} is no name")
    if timeout is not UNSET and timeout is not None and not timeout > 0:
        raise ToolDefinitionError(f"tool {name}: timeout {timeout!r} is not positive")


@final
class ToolSet:
    """The tools of one request, fixed when it is built (TL-3).

    Attributes:
        specs: what the model is told, in order.
        names: all names, in order.
        any_sequential: whether one of them makes its batch sequential.
        digest: of names, schemas and effects.
    """

    __slots__ = ("_tools", "any_sequential", "digest", "names", "specs")

    def __init__(self, tools: Iterable[ToolLike]) -> None:
        self._tools: dict[str, Tool] = {}
        for given in tools:
            made = as_tool(given)
            if made.name in self._tools:
                raise ConfigError(f"tools: two are called {made.name!r}")
            self._tools[made.name] = made
        self.specs: Sequence[ToolSpec] = tuple([made.spec for made in self._tools.values()])
        self.names: Sequence[str] = tuple(self._tools)
        self.any_sequential = any(made.execution == "sequential" for made in self._tools.values())
        self.digest = digest_of([[made.spec, _effect_word(made)] for made in self._tools.values()])

    def __len__(self) -> int:
        return len(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def is_sequential(self, name: str) -> bool:
        """Whether a call of that name makes its batch sequential."""
        made = self.get(name)
        return made is not None and made.execution == "sequential"

    def get(self, name: str) -> Tool | None:
        """The tool that a model means: that exact name, else without blanks around it."""
        return self._tools.get(name) or self._tools.get(name.strip())


def tool_source(tools: Sequence[ToolLike] | Callable[[], Sequence[ToolLike]]) -> Callable[[], ToolSet]:
    """Makes the tool set of a turn; schemas are built once a tool, not once a turn."""
    if not callable(tools):
        if not tools:
            return no_tools
        fixed = ToolSet(tools)
        return lambda: fixed
    made: dict[Any, Tool] = {}
    last: list[tuple[tuple[Tool, ...], ToolSet]] = []

    def supply() -> ToolSet:
        try:
            given = list(tools())
        except Exception as error:
            raise ConfigError(f"tools: what gives them raised {type(error).__name__}") from error
        now = tuple([_remembered(one, made) for one in given])
        if not last or last[0][0] != now:
            last[:] = [(now, ToolSet(now))]
        return last[0][1]

    return supply


@cache
def no_tools() -> ToolSet:
    """The set without tools: one for all who have none."""
    return ToolSet(())


def _remembered(given: ToolLike, made: dict[Any, Tool]) -> Tool:
    if isinstance(given, Tool):
        return given
    if given not in made:
        made[given] = as_tool(given)
    return made[given]


def _effect_word(made: Tool) -> str:
    return "by arguments" if callable(made.effect) else made.effect


__all__ = [
    "DEFAULTS",
    "EFFECTS",
    "Accepting",
    "Backgrounded",
    "NotRun",
    "Reconcile",
    "Tool",
    "ToolLike",
    "ToolResult",
    "ToolSet",
    "as_tool",
    "check_options",
    "tool",
    "tool_source",
]
