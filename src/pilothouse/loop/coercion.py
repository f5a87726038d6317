"""The second chance for arguments that do not fit, and what the model is told of those that never will (TL-6)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from ..messages import JSON

if TYPE_CHECKING:
    from pydantic import ValidationError

Args: TypeAlias = Mapping[str, JSON]
Path: TypeAlias = tuple[str | int, ...]

SHOWN: Final = 2_000
"""Characters of rejected arguments that the model is shown."""

_NONE: Final[Mapping[Path, str]] = MappingProxyType({})


_NULLS: Final = ("", "null", "None")
_CONTAINERS: Final = frozenset(
    {
        "list_type",
        "dict_type",
        "model_type",
        "model_attributes_type",
        "dataclass_type",
        "tuple_type",
        "set_type",
    }
    | {"frozen_set_type", "mapping_type", "iterable_type", "typed_dict_type"}
)


class Helped(NamedTuple):
    """A copy of the arguments with other values at some places, and what was there before."""

    arguments: dict[str, JSON]
    before: dict[Path, str]


def second_chance(given: Args, error: ValidationError) -> Helped | None:
    """Values that models are known to spell wrongly, spelled as they were meant; None if there are none (TL-6)."""
    arguments: Any = None
    before: dict[Path, str] = {}
    for problem in error.errors(include_url=False, include_context=False):
        path = _data_path(given, problem["loc"])
        if not path or path in before:
            continue
        value = _at(given, path)
        meant = _meant(value, problem["type"])
        if meant is _NO_IDEA:
            continue
        if arguments is None:
            arguments = deepcopy(dict(given))
        _at(arguments, path[:-1])[path[-1]] = meant
        before[path] = problem["msg"]
    return None if arguments is None else Helped(arguments, before)


_NO_IDEA: Final = object()


def _meant(value: JSON, problem: str) -> Any:
    if isinstance(value, str):
        if value in _NULLS:
            return None
        if problem in _CONTAINERS or value.lstrip()[:1] in ("[", "{"):
            try:
                parsed = json.loads(value)
            except ValueError:
                return _NO_IDEA
            return parsed if isinstance(parsed, dict | list) else _NO_IDEA
    elif problem == "string_type" and isinstance(value, bool | int | float):
        return json.dumps(value)
    return _NO_IDEA


def _data_path(given: Any, loc: Path) -> Path:
    """The part of an error's location that leads through the data; pydantic mixes in names of union members."""
    path: list[str | int] = []
    value = given
    for step in loc:
        if (isinstance(value, Mapping) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value)
        ):
            path.append(step)
            value = value[step]  # type: ignore[index]
    return tuple(path)


def _at(given: Any, path: Path) -> Any:
    for step in path:
        given = given[step]
    return given


def own(values: Mapping[str, JSON]) -> dict[str, Any]:
    """The same JSON as a function's own to change: nothing of it is in the record, in a default or in another attempt."""
    return {name: _own(value) for name, value in values.items()}


def _own(value: JSON) -> JSON:
    if type(value) is dict:
        return {name: _own(item) for name, item in value.items()}
    return [_own(item) for item in value] if type(value) is list else value


# Texts for the model


def explain(
    tool: str,
    error: ValidationError,
    given: Args,
    before: Mapping[Path, str] = _NONE,
) -> str:
    """Every violation with its path, and what was given.

    `before` has the texts of places where the second chance put another value in: the model is told of its own.
    """
    problems = problems_of(error, given, before)
    shown = json.dumps(given, ensure_ascii=False, default=str)
    if len(shown) > SHOWN:
        shown = f"{shown[:SHOWN]}… ({len(shown)} characters)"
    lines = "\n".join(f"- {problem}" for problem in problems)
    return f"The arguments of {tool} do not fit its schema:\n{lines}\nThey were: {shown}"


def problems_of(
    error: ValidationError,
    given: Any = None,
    before: Mapping[Path, str] = _NONE,
) -> list[str]:
    """One line a violation, each once: a union says the same for each of its members."""
    lines: dict[str, None] = {}
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        loc = problem["loc"]
        path = _data_path(given, loc) if given is not None else loc
        text = before.get(path) or _PLAINER.get(problem["type"]) or problem["msg"]
        if problem["type"] in ("missing", "extra_forbidden"):
            path = loc
        lines[f"{_spell(path) or 'arguments'}: {text}"] = None
    return list(lines)


_PLAINER: Final = {
    "missing": "is required and missing",
    "extra_forbidden": "there is no such argument",
}


def _spell(path: Path) -> str:
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def blame(tool: str, why: str) -> str:
    """What the model is told where it is not to blame."""
    return f"{tool} cannot be called with these arguments because of its own types: {why}"
