"""Tools that bring a ready JSON schema instead of a signature: MCP, forms, and tools that a client runs (TL-16, TL-18)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..core.canonical import NotJSON, check
from ..errors import ToolDefinitionError
from ..messages import JSON, ToolSpec
from .coercion import SHOWN, Args, own
from .context import ToolContext
from .jsonschema import problems_of
from .schema import Frozen, InvalidArguments
from .tools import DEFAULTS, Tool, check_options


class ReadySchema:
    """The parameters of a tool with a ready schema: arguments are what `validate` makes of them."""

    def __init__(
        self, tool: str, schema: Mapping[str, JSON], validate: Callable[[Args], Args] | None
    ) -> None:
        self._tool = tool
        self._schema = schema
        self._validate = validate

    def accept(self, given: Args) -> Frozen:
        """Validates and freezes; what `validate` raises as `ToolError` passes through."""
        if not isinstance(given, Mapping):  # of a shim or a rewrite; a model's are an object
            raise InvalidArguments(f"The arguments of {self._tool} are no JSON object.")
        if self._validate is not None:
            arguments = dict(self._validate(dict(given)))
        else:
            arguments = dict(given)
            if problems := problems_of(arguments, self._schema):
                lines = "\n".join(f"- {problem}" for problem in problems)
                shown = json.dumps(arguments, ensure_ascii=False, default=str)[:SHOWN]
                raise InvalidArguments(
                    f"The arguments of {self._tool} do not fit its schema:\n{lines}\nThey were: {shown}"
                )
        try:
            check(arguments)
        except NotJSON as error:
            raise InvalidArguments(f"The arguments of {self._tool} are no JSON: {error}") from None
        return Frozen(arguments, {ARGUMENTS: own(arguments)})

    def thaw(self, frozen: Args) -> dict[str, Any]:
        """The values of arguments that were frozen before."""
        return {ARGUMENTS: own(frozen)}


ARGUMENTS: Final = "arguments"
CONTEXT: Final = "context"


def schema_tool(
    spec: ToolSpec,
    call: Callable[[Args, ToolContext[Any]], object],
    *,
    validate: Callable[[Args], Args] | None = None,
    **options: Any,
) -> Tool:
    """Makes a tool of a ready schema, which goes to the model unchanged.

    Args:
        spec: what the model is told.
        call: sync or async; gets the frozen arguments and the context.
        validate: returns the arguments that are frozen; by default the JSON schema itself decides.
        options: as of `tool`.

    Raises:
        ToolDefinitionError: a name, schema or option that cannot be a tool's.
    """
    check_options(spec.name, options)
    _check_schema(spec)

    def run(arguments: Args, context: ToolContext[Any]) -> object:
        return call(arguments, context)

    made = Tool(
        run,
        spec,
        ReadySchema(spec.name, spec.parameters, validate),
        context_name=CONTEXT,
        **{**DEFAULTS, **options},
    )
    made.is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
    return made


def external_tool(spec: ToolSpec, *, timeout: float | None = None) -> Tool:
    """A tool that somebody else runs, a client for example: after its checks its call waits for the answer.

    Args:
        spec: what the model is told.
        timeout: seconds that the request waits; None waits for ever.
    """
    _check_schema(spec)
    check_options(spec.name, {"timeout": timeout})
    schema = ReadySchema(spec.name, spec.parameters, None)
    made = Tool(_not_here, spec, schema, context_name=None, **{**DEFAULTS, "timeout": timeout})
    made.external = True
    return made


def _not_here(**_: Any) -> None:
    raise ToolDefinitionError("an external tool is run by somebody else")


def _check_schema(spec: ToolSpec) -> None:
    if spec.parameters and spec.parameters.get("type", "object") != "object":
        raise ToolDefinitionError(f"tool {spec.name}: its schema must be one of an object")
