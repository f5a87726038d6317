"""What a function's signature and docstring say about a tool (TL-1, TL-2). Read once, when the tool is made."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

from ..errors import ToolDefinitionError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo


class Signature(NamedTuple):
    """A tool's parameters as written.

    Attributes:
        fields: type of each parameter that a model may give, described where the docstring does.
        defaults: of those that have one.
        keyword_rest: whether `**kwargs` takes others.
        context: name of the parameter that takes the `ToolContext`, None if there is none.
        text: the docstring without its parts about parameters.
    """

    fields: dict[str, Any]
    defaults: dict[str, Any]
    keyword_rest: bool
    context: str | None
    text: str


def read_signature(function: Callable[..., Any], tool: str, context_type: type) -> Signature:
    """Reads it.

    Raises:
        ToolDefinitionError: naming the parameter that cannot be a tool's.
    """
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    keyword_rest, context = False, None
    hints = _hints(function, tool)
    documented = _docstring(function)
    for parameter in _parameters(function, tool):
        if parameter.kind is parameter.VAR_KEYWORD:
            keyword_rest = True
            continue
        hint = _hint(parameter, hints, tool)
        if _is_context(hint, context_type):
            context = parameter.name
            continue
        default = parameter.default
        if isinstance(default, FieldInfo):  # `= Field(…)`, as in a model
            hint, default = _with_field(hint, default)
        if default is not parameter.empty and default is not PydanticUndefined:
            defaults[parameter.name] = default
        fields[parameter.name] = _described(hint, documented.parameters.get(parameter.name))
    return Signature(fields, defaults, keyword_rest, context, documented.text)


def _parameters(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"tool {name}: it has no signature ({error})") from None
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(f"tool {name}: parameter {parameter.name} is positional-only")
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(f"tool {name}: parameter *{parameter.name} cannot be named by a model")
    return parameters


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    target = inspect.unwrap(target)
    if not inspect.isroutine(target):  # an object with __call__
        target = type(target).__call__
    try:
        return typing.get_type_hints(target, include_extras=True)
    except Exception as error:
        raise ToolDefinitionError(f"tool {name}: its annotations cannot be read: {error}") from error


def _hint(parameter: inspect.Parameter, hints: Mapping[str, Any], name: str) -> Any:
    try:
        return hints[parameter.name]
    except KeyError:
        raise ToolDefinitionError(
            f"tool {name}: parameter {parameter.name} has no type: annotate it, as in {parameter.name}: str"
        ) from None


def _with_field(hint: Any, info: FieldInfo) -> tuple[Any, Any]:
    """The type with what a field says of it, and the field's default."""
    from pydantic_core import PydanticUndefined

    default = info.get_default(call_default_factory=True)
    bare = copy(info)
    bare.default, bare.default_factory = PydanticUndefined, None
    return Annotated[hint, bare], default


def _is_context(hint: Any, context_type: type) -> bool:
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    members = get_args(hint) if _is_union(hint) else (hint,)
    return any(
        isinstance(base := (get_origin(member) or member), type) and issubclass(base, context_type)
        for member in members
    )


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (typing.Union, types.UnionType)


def _described(hint: Any, text: str | None) -> Any:
    """The hint with the docstring's description, unless it has its own."""
    from pydantic import Field
    from pydantic.fields import FieldInfo

    own = any(isinstance(item, FieldInfo) and item.description for item in get_args(hint)[1:])
    if text is None or (get_origin(hint) is Annotated and own):
        return hint
    return Annotated[hint, Field(description=text)]


class _Documented(NamedTuple):
    text: str
    parameters: dict[str, str]


def _docstring(function: Callable[..., Any]) -> _Documented:
    import docstring_parser

    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    own = None if inspect.isroutine(target) else getattr(type(target).__call__, "__doc__", None)
    text = inspect.cleandoc(own) if own else inspect.getdoc(target)
    if not text:
        return _Documented("", {})
    parsed = docstring_parser.parse(text)
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    described = {item.arg_name: item.description for item in parsed.params if item.description}
    return _Documented("\n\n".join(parts), described)
