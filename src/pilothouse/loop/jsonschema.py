"""Checks values against a ready JSON schema, for tools that bring one instead of a signature (TL-18).

The part of JSON Schema that tools of MCP servers, forms and interfaces use: types, properties, items, enumerations,
combinations, bounds, patterns and local references. A keyword that is not known here constrains nothing, as the
standard says of unknown keywords; formats are notes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any, Final, cast

from ..messages import JSON

MAX_PROBLEMS: Final = 20
MAX_DEPTH: Final = 64


def problems_of(value: JSON, schema: Mapping[str, JSON]) -> list[str]:
    """Every violation with its path, at most `MAX_PROBLEMS`; empty if the value fits."""
    found: list[str] = []
    for path, why in _check(value, schema, schema, "", 0):
        found.append(f"{path or 'arguments'}: {why}")
        if len(found) >= MAX_PROBLEMS:
            break
    return found


_Problems = Iterator[tuple[str, str]]


def _check(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    if schema is False:
        yield path, "is not allowed"
    if not isinstance(schema, Mapping):
        return
    if depth > MAX_DEPTH:
        yield path, f"is nested deeper than {MAX_DEPTH}"
        return
    for keyword, rule in _RULES.items():
        if keyword in schema:
            yield from rule(value, schema, root, path, depth)


def _reference(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    target: Any = root
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


def _properties(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    if isinstance(value, Mapping):
        for name, part in schema["properties"].items():
            if name in value:
                yield from _check(value[name], part, root, _join(path, name), depth + 1)


def _required(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    if isinstance(value, Mapping):
        for name in schema["required"]:
            if name not in value:
                yield _join(path, name), "is required and missing"


def _additional(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    if not isinstance(value, Mapping):
        return
    patterns = [re.compile(pattern) for pattern in schema.get("patternProperties") or {}]
    for name, item in value.items():
        if name in (schema.get("properties") or {}) or any(pattern.search(name) for pattern in patterns):
            continue
        if schema["additionalProperties"] is False:
            yield _join(path, name), "there is no such argument"
        else:
            yield from _check(item, schema["additionalProperties"], root, _join(path, name), depth + 1)


def _items(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    if isinstance(value, list | tuple):
        for at, item in enumerate(value[len(schema.get("prefixItems") or ()) :]):
            yield from _check(item, schema["items"], root, f"{path}[{at}]", depth + 1)


def _prefix(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    if isinstance(value, list | tuple):
        for at, (item, part) in enumerate(zip(value, schema["prefixItems"], strict=False)):
            yield from _check(item, part, root, f"{path}[{at}]", depth + 1)


def _all_of(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    for part in schema["allOf"]:
        yield from _check(value, part, root, path, depth + 1)


def _any_of(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    failures = [list(_check(value, part, root, path, depth + 1)) for part in schema["anyOf"]]
    if all(failures):
        yield from min(failures, key=len)


def _one_of(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
    failures = [list(_check(value, part, root, path, depth + 1)) for part in schema["oneOf"]]
    fitting = sum(not failure for failure in failures)
    if fitting == 0:
        yield from min(failures, key=len)
    elif fitting > 1:
        yield path, "fits more than one of its alternatives"


def _not(value: JSON, schema: Any, root: Mapping[str, JSON], path: str, depth: int) -> _Problems:
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
    if isinstance(value, str) and not re.search(schema["pattern"], value):
        yield path, f"should match {schema['pattern']}"


def _unique(value: JSON, schema: Any, _root: Any, path: str, _depth: int) -> _Problems:
    items = value if schema["uniqueItems"] and isinstance(value, list) else []
    if any(_same(one, other) for at, one in enumerate(items) for other in items[at + 1 :]):
        yield path, "should have no item twice"


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
