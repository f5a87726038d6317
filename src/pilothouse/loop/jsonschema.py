"""Checks values against a ready JSON schema, for tools that bring one instead of a signature (TL-18).

The part of JSON Schema that tools of MCP servers, forms and interfaces use: types, properties, items, enumerations,
combinations, bounds, patterns and local references. A keyword that is not known here constrains nothing, as the
standard says of unknown keywords; formats are notes. Neither does one whose own value makes no sense, or a pattern that
could take too long: the schema may be of a server that nobody knows, and who wrote it checks it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Final, cast

from ..messages import JSON
from .patterns import found as found_in

MAX_PROBLEMS: Final = 20
MAX_DEPTH: Final = 64
STEPS: Final = 20_000
STEPS_EACH: Final = 20
"""Comparisons of schema and value, and how many more for each place of the value; references can multiply them for ever."""


def problems_of(value: JSON, schema: Mapping[str, JSON]) -> list[str]:
    """Every violation with its path, at most `MAX_PROBLEMS`; empty if the value fits."""
    found: list[str] = []
    try:
        for path, why in _check(value, schema, _Root(value, schema), "", 0):
            found.append(f"{path or 'arguments'}: {why}")
            if len(found) >= MAX_PROBLEMS:
                break
    except _TooMuch:
        found.append("arguments: they cannot be checked, because the schema leads to too many comparisons")
    return found


_Problems = Iterator[tuple[str, str]]


class _TooMuch(Exception):
    """The steps are used up."""


class _Root:
    """What references lead into, and how much may still be compared."""

    def __init__(self, value: JSON, schema: Mapping[str, JSON]) -> None:
        self.schema = schema
        self._left = STEPS + STEPS_EACH * _places(value)

    def step(self, count: int = 1) -> None:
        self._left -= count
        if self._left < 0:
            raise _TooMuch


def _check(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if schema is False:
        yield path, "is not allowed"
    if not isinstance(schema, Mapping):
        return
    root.step()
    if depth > MAX_DEPTH:
        yield path, f"is nested deeper than {MAX_DEPTH}"
        return
    for keyword, rule in _RULES.items():
        if keyword in schema:
            try:
                yield from rule(value, schema, root, path, depth)
            except (TypeError, ValueError, AttributeError):  # the keyword's own value makes no sense
                continue


def _reference(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    target: Any = root.schema
    for step in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, Mapping) and name else target
    if target is not schema:
        yield from _check(value, target, root, path, depth + 1)


_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list | tuple),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool))
        or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}


def _type(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    wanted = schema["type"]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not any(_TYPES.get(name, lambda _: True)(value) for name in names):
        yield path, f"should be {' or '.join(names)}"


def _enum(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    if not any(_same(value, item) for item in schema["enum"]):
        yield path, f"should be one of {schema['enum']!r}"


def _const(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    if not _same(value, schema["const"]):
        yield path, f"should be {schema['const']!r}"


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _properties(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if isinstance(value, Mapping):
        for name, part in schema["properties"].items():
            if name in value:
                yield from _check(value[name], part, root, _join(path, name), depth + 1)


def _required(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    if isinstance(value, Mapping):
        for name in schema["required"]:
            if name not in value:
                yield _join(path, name), "is required and missing"


def _additional(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if not isinstance(value, Mapping):
        return
    patterns = list(schema.get("patternProperties") or {})
    for name, item in value.items():
        root.step(1 + len(patterns))
        known = name in (schema.get("properties") or {})
        if known or any(found_in(pattern, name) is not False for pattern in patterns):
            continue
        if schema["additionalProperties"] is False:
            yield _join(path, name), "there is no such argument"
        else:
            yield from _check(item, schema["additionalProperties"], root, _join(path, name), depth + 1)


def _items(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if isinstance(value, list | tuple):
        for at, item in enumerate(value[len(schema.get("prefixItems") or ()) :]):
            yield from _check(item, schema["items"], root, f"{path}[{at}]", depth + 1)


def _prefix(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if isinstance(value, list | tuple):
        for at, (item, part) in enumerate(zip(value, schema["prefixItems"], strict=False)):
            yield from _check(item, part, root, f"{path}[{at}]", depth + 1)


def _all_of(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    for part in schema["allOf"]:
        yield from _check(value, part, root, path, depth + 1)


def _any_of(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    failures = [list(_check(value, part, root, path, depth + 1)) for part in schema["anyOf"]]
    if all(failures):
        yield from min(failures, key=len)


def _one_of(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    failures = [list(_check(value, part, root, path, depth + 1)) for part in schema["oneOf"]]
    fitting = sum(not failure for failure in failures)
    if fitting == 0:
        yield from min(failures, key=len)
    elif fitting > 1:
        yield path, "fits more than one of its alternatives"


def _not(value: JSON, schema: Any, root: _Root, path: str, depth: int) -> _Problems:
    if not list(_check(value, schema["not"], root, path, depth + 1)):
        yield path, "is what it should not be"


def _bound(keyword: str, fits: Callable[[Any, Any], bool], words: str) -> Callable[..., _Problems]:
    def rule(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
        if _TYPES["number"](value) and not fits(value, schema[keyword]):
            yield path, f"should be {words} {schema[keyword]}"

    return rule


def _size(keyword: str, kinds: tuple[type, ...], *, least: bool) -> Callable[..., _Problems]:
    def rule(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
        if isinstance(value, kinds):
            limit, sized = schema[keyword], cast("Sized", value)
            if len(sized) < limit if least else len(sized) > limit:
                yield path, f"should have at {'least' if least else 'most'} {limit}"

    return rule


def _pattern(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    if isinstance(value, str) and found_in(schema["pattern"], value) is False:
        yield path, f"should match {schema['pattern']}"


def _unique(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    items = value if schema["uniqueItems"] and isinstance(value, list) else []
    if len({_key(item) for item in items}) < len(items):
        yield path, "should have no item twice"


def _key(value: Any) -> Any:
    """Equal for what `_same` calls equal; hashable."""
    match value:
        case bool():
            return "bool", value
        case Mapping():
            return frozenset((name, _key(item)) for name, item in value.items())
        case list() | tuple():
            return tuple([_key(item) for item in value])
        case _:
            return value


def _places(value: Any) -> int:
    count, left = 0, [value]
    while left:
        item = left.pop()
        count += 1
        if isinstance(item, Mapping):
            left += item.values()
        elif isinstance(item, list | tuple):
            left += item
    return count


_RULES: Final[Mapping[str, Callable[..., _Problems]]] = {
    "$ref": _reference,
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "prefixItems": _prefix,
    "items": _items,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "minimum": _bound("minimum", lambda value, limit: value >= limit, "at least"),
    "maximum": _bound("maximum", lambda value, limit: value <= limit, "at most"),
    "exclusiveMinimum": _bound("exclusiveMinimum", lambda value, limit: value > limit, "more than"),
    "exclusiveMaximum": _bound("exclusiveMaximum", lambda value, limit: value < limit, "less than"),
    "minLength": _size("minLength", (str,), least=True),
    "maxLength": _size("maxLength", (str,), least=False),
    "minItems": _size("minItems", (list, tuple), least=True),
    "maxItems": _size("maxItems", (list, tuple), least=False),
    "pattern": _pattern,
    "uniqueItems": _unique,
}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
