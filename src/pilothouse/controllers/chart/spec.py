"""Judges a Vega-Lite spec as far as that needs no Vega-Lite: what it may hold, and whether its fields exist.

A field that does not exist draws an empty axis without an error, so each is looked up. What must stay out of a spec:
data of its own, addresses, pictures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, final

from ...core.canonical import NotJSON, check
from ...errors import ToolError
from ...messages import JSON

SCHEMA_URL: Final = "https://vega.github.io/schema/vega-lite/v6.json"
MAX_DEPTH: Final = 40
EXPRESSION: Final = 500
"""Characters of an expression."""

VIEWS: Final = 100
"""Views that a facet may make."""

FINDINGS: Final = 3
"""Findings that a model is told at once."""

_FORBIDDEN: Final[Mapping[str, str]] = {
    "data": "the data comes from the query; leave it out",
    "datasets": "the data comes from the query; leave it out",
    "url": "a chart may not load anything",
    "href": "a chart has no links",
    "usermeta": "usermeta is not supported",
}
_MARKS: Final = frozenset({"image", "geoshape"})
_EXPRESSIONS: Final = frozenset({"expr", "calculate", "filter", "test", "labelExpr", "signal", "update"})
_BAD_NAME: Final = '.[]"\\'


class Finding(NamedTuple):
    """What is wrong and where: `path` is like `encoding.x.field`."""

    path: str
    message: str


def refuse(findings: Sequence[Finding]) -> None:
    """Tells a model the first findings.

    Raises:
        ToolError: if there are any.
    """
    if findings:
        lines = [f"{found.path or 'spec'}: {found.message}" for found in findings[:FINDINGS]]
        raise ToolError("The spec cannot be used:\n" + "\n".join(f"- {line}" for line in lines))


def parsed(given: JSON, max_spec: int) -> dict[str, JSON]:
    """The spec as an object; a text that holds one is parsed.

    Raises:
        ToolError: it is none, too large, or nested too deeply.
    """
    if isinstance(given, str):
        if len(given) > max_spec * 2:
            raise ToolError(f"The spec has more than {max_spec} bytes: make it smaller.")
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise ToolError("The spec is no JSON object.") from None
    if not isinstance(given, dict):
        raise ToolError("The spec must be a JSON object like {'mark': 'bar', 'encoding': {…}}.")
    if _deeper_than(given, MAX_DEPTH):
        raise ToolError(f"The spec is nested deeper than {MAX_DEPTH} levels.")
    try:
        check(given)
    except NotJSON as error:
        raise ToolError(f"The spec is no JSON: {error}") from None
    size = len(json.dumps(given, ensure_ascii=False).encode())
    if size > max_spec:
        raise ToolError(f"The spec has {size} bytes, {max_spec} are allowed: make it smaller.")
    spec = dict(given)
    if spec.get("$schema") == SCHEMA_URL:
        del spec["$schema"]
    return spec


def _deeper_than(value: Any, limit: int) -> bool:
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > limit:
            return True
        if isinstance(item, dict):
            stack += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, list):
            stack += [(child, depth + 1) for child in item]
    return False


def forbidden(spec: Mapping[str, JSON], max_size: tuple[int, int]) -> list[Finding]:
    """What a spec may not hold, at any level."""
    found: list[Finding] = []
    if "$schema" in spec:
        found.append(Finding("$schema", f"leave it out; it is {SCHEMA_URL}"))
    for path, key, value in _walk(spec, ""):
        if why := _FORBIDDEN.get(key):
            found.append(Finding(path, why))
        elif (key == "mark" or path.endswith("mark.type")) and isinstance(value, str) and value in _MARKS:
            found.append(Finding(path, f"the mark {value} is not supported"))
        elif key in _EXPRESSIONS and isinstance(value, str) and len(value) > EXPRESSION:
            found.append(Finding(path, f"an expression has at most {EXPRESSION} characters"))
        elif key in ("width", "height"):
            most = max_size[0] if key == "width" else max_size[1]
            step = _get(value, "step")
            for where, size, limit in ((path, value, most), (f"{path}.step", step, most // 10)):
                is_number = isinstance(size, int | float) and not isinstance(size, bool)
                if is_number and not 0 < size <= limit:
                    found.append(Finding(where, f"must be above 0 and at most {limit}"))
    return found


def crowded(spec: Mapping[str, JSON], rows: Sequence[Mapping[str, JSON]]) -> list[Finding]:
    """Facets that would make more views than anybody can look at, or a browser draw."""
    found: list[Finding] = []
    for path, key, value in _walk(spec, ""):
        name = _get(value, "field")
        if key in ("row", "column", "facet") and isinstance(name, str) and not isinstance(value, list):
            views = len({str(row[name]) for row in rows if name in row})
            if views > VIEWS and "bin" not in value and "timeUnit" not in value:
                found.append(Finding(path, f"{name!r} has {views} values, a chart has at most {VIEWS} views"))
    return found


def _walk(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            inside = f"{path}.{key}" if path else str(key)
            yield inside, str(key), item
            yield from _walk(item, inside)
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from _walk(item, f"{path}[{at}]")


def bad_names(columns: Sequence[str]) -> list[str]:
    """Column names that Vega-Lite would take for paths."""
    return [name for name in columns if not name or any(mark in name for mark in _BAD_NAME)]


def unknown_fields(spec: Mapping[str, JSON], columns: Sequence[str]) -> list[Finding]:
    """Fields that are neither columns nor made by an earlier transform; not after a `pivot`, whose names are values."""
    view = _View(set(columns))
    view.read(spec, "")
    return view.found


_REFERENCES: Final = frozenset(
    {
        "field",
        "impute",
        "key",
        "density",
        "quantile",
        "regression",
        "loess",
        "on",
        "stack",
        "argmax",
        "argmin",
    }
)
_LISTS: Final = ("groupby", "fold", "flatten")
_LOOKS: Final = ("scale", "axis", "legend", "title", "header")
"""Parts of an encoding that name no field."""

_DEFAULTS: Final[Mapping[str, tuple[str, ...]]] = {
    "fold": ("key", "value"),
    "density": ("value", "density"),
    "quantile": ("prob", "value"),
}
_REPLACE: Final = ("aggregate", "density", "quantile", "regression", "loess")
"""Transforms after which only what they group by and make is left."""

_NESTED: Final = ("layer", "hconcat", "vconcat", "concat")


@final
@dataclass
class _View:
    """The fields that can be used at one place of a spec."""

    known: set[str]
    found: list[Finding] = field(default_factory=list)
    is_open: bool = False  # names are no longer known

    def read(self, spec: Mapping[str, Any], path: str) -> None:
        for at, transform in enumerate(_list(spec.get("transform"))):
            if isinstance(transform, Mapping):
                self._transform(transform, _join(path, f"transform[{at}]"))
        self._references(spec.get("encoding"), _join(path, "encoding"))
        if "facet" in spec:
            self._references(spec["facet"], _join(path, "facet"))
        for where, name in _repeated(spec.get("repeat"), _join(path, "repeat")):
            self._need(name, where)
        children = [
            (_join(path, f"{key}[{at}]"), child)
            for key in _NESTED
            for at, child in enumerate(_list(spec.get(key)))
        ]
        children.append((_join(path, "spec"), spec.get("spec")))
        for where, child in children:
            if isinstance(child, Mapping):
                _View(set(self.known), self.found, self.is_open).read(child, where)

    def _transform(self, transform: Mapping[str, Any], path: str) -> None:
        for kind, names in (("pivot", ("pivot", "value")), ("lookup", ("lookup",))):
            if kind in transform:
                for name in names:
                    self._need(transform.get(name), _join(path, name))
                self.is_open = True
                return
        self._references(transform, path)
        made = _names(transform.get("as"))
        for key in ("aggregate", "joinaggregate", "window"):
            made += [name for part in _list(transform.get(key)) for name in _names(_get(part, "as"))]
        if not made:
            made = [name for kind, names in _DEFAULTS.items() if kind in transform for name in names]
            made += _names([transform.get(key) for key in ("regression", "loess", "on")])
        if any(isinstance(transform.get(key), str | list) for key in _REPLACE):
            self.known = set(_names(transform.get("groupby")))
        self.known |= set(made)

    def _references(self, value: Any, path: str) -> None:
        """Every name of a field below a value."""
        if isinstance(value, Mapping):
            for key, item in value.items():
                where = _join(path, str(key))
                if key in _REFERENCES and isinstance(item, str):
                    self._need(item, where)
                elif key in _LISTS and isinstance(item, list):
                    for at, name in enumerate(item):
                        self._need(name, f"{where}[{at}]")
                elif key not in _LOOKS:
                    self._references(item, where)
        elif isinstance(value, list):
            for at, item in enumerate(value):
                self._references(item, f"{path}[{at}]")

    def _need(self, name: Any, path: str) -> None:
        if isinstance(name, str) and not self.is_open and name not in self.known:
            there = ", ".join(sorted(self.known)) or "none"
            self.found.append(Finding(path, f"there is no field {name!r}; there are {there}"))


def _repeated(repeat: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(repeat, Mapping):
        for key, names in repeat.items():
            yield from _repeated(names, f"{path}.{key}")
    elif isinstance(repeat, list):
        yield from ((f"{path}[{at}]", name) for at, name in enumerate(repeat) if isinstance(name, str))


def _names(value: Any) -> list[str]:
    return [name for name in ([value] if isinstance(value, str) else _list(value)) if isinstance(name, str)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
