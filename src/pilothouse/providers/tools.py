"""Tools and schemas as the dialects want them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import ToolDefinitionError
from ..messages import JSON

MAX_VALUES: Final = 50_000
"""Values of a schema without references; a provider would refuse far fewer."""
_ANY: Final = ("required", "any")


def chat_choice(choice: str | dict[str, JSON]) -> JSON:
    """A tool choice in Chat Completions: a word of the dialect, an object as it is, else the name of a tool."""
    if not isinstance(choice, str):
        return choice
    if choice in ("auto", "none"):
        return choice
    return "required" if choice in _ANY else {"type": "function", "function": {"name": choice}}


def responses_choice(choice: str | dict[str, JSON]) -> JSON:
    """A tool choice in Responses, where the name of a tool stands one level higher."""
    chosen = chat_choice(choice)
    if isinstance(choice, str) and isinstance(chosen, dict):
        return {"type": "function", "name": choice}
    return chosen


def named_schema(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    """A response schema with the name that OpenAI's dialects want; strict where the schema can be."""
    title = schema.get("title")
    name = re.sub(r"[^A-Za-z0-9_-]", "_", title)[:64] if isinstance(title, str) and title else "response"
    return {"name": name, "schema": dict(schema), "strict": is_closed(schema)}


def is_closed(schema: JSON) -> bool:
    """Whether every object of a schema forbids other keys and requires all of its own, as strict mode demands."""
    if isinstance(schema, list):
        return all(is_closed(item) for item in schema)
    if not isinstance(schema, Mapping):
        return True
    if "properties" in schema or schema.get("type") == "object":
        required = set(schema.get("required") or ())
        if schema.get("additionalProperties") is not False or required != set(schema.get("properties") or ()):
            return False
    return all(is_closed(value) for value in schema.values() if isinstance(value, Mapping | list))


def inlined(schema: Mapping[str, JSON], tool: str) -> JSON:
    """A schema without references, for dialects that read none.

    Raises:
        ToolDefinitionError: it refers to itself or to something that is not there, or would grow out of all bounds.
    """
    try:
        return _Inlining(schema, tool).of(schema, ())
    except RecursionError as error:
        raise ToolDefinitionError(f"tool {tool!r}: the schema is nested too deep") from error


class _Inlining:
    """One schema while its references are replaced by what they refer to."""

    def __init__(self, root: Mapping[str, JSON], tool: str) -> None:
        self._root = root
        self._tool = tool
        self._values = 0  # written so far

    def of(self, value: JSON, path: tuple[str, ...]) -> JSON:
        self._values += 1
        if self._values > MAX_VALUES:  # types that hold two of the next one double at each step
            raise ToolDefinitionError(
                f"tool {self._tool!r}: without references, which this provider does not follow, the schema has more "
                f"than {MAX_VALUES} values"
            )
        if isinstance(value, list | tuple):
            return [self.of(item, path) for item in value]
        if not isinstance(value, Mapping):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str):
            if reference in path:
                raise ToolDefinitionError(
                    f"tool {self._tool!r}: the parameter type {reference} contains itself, which this provider "
                    "cannot take"
                )
            target = self.of(self._target(reference), (*path, reference))
            beside = {key: self.of(item, path) for key, item in value.items() if key != "$ref"}
            return {**target, **beside} if isinstance(target, Mapping) else target
        dropped = ("$defs", "definitions") if value is self._root else ()
        return {key: self.of(item, path) for key, item in value.items() if key not in dropped}

    def _target(self, reference: str) -> JSON:
        found: JSON = self._root
        for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
            name = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                raise ToolDefinitionError(
                    f"tool {self._tool!r}: the schema refers to {reference}, which is not in it"
                )
            found = found[name]
        return found


__all__ = ["chat_choice", "inlined", "is_closed", "named_schema", "responses_choice"]
