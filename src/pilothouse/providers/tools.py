"""Tools and schemas as the dialects want them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from ..errors import ToolDefinitionError
from ..messages import JSON

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
        ToolDefinitionError: it refers to itself, or to something that is not there.
    """
    return _inline(schema, schema, tool, ())


def _inline(value: JSON, root: Mapping[str, JSON], tool: str, path: tuple[str, ...]) -> JSON:
    if isinstance(value, list | tuple):
        return [_inline(item, root, tool, path) for item in value]
    if not isinstance(value, Mapping):
        return value
    reference = value.get("$ref")
    if isinstance(reference, str):
        if reference in path:
            raise ToolDefinitionError(
                f"tool {tool!r}: the parameter type {reference} contains itself, which this provider cannot take"
            )
        target = _inline(_target(root, reference, tool), root, tool, (*path, reference))
        beside = {key: _inline(item, root, tool, path) for key, item in value.items() if key != "$ref"}
        return {**target, **beside} if isinstance(target, Mapping) else target
    dropped = ("$defs", "definitions") if value is root else ()
    return {key: _inline(item, root, tool, path) for key, item in value.items() if key not in dropped}


def _target(root: Mapping[str, JSON], reference: str, tool: str) -> JSON:
    found: JSON = root
    for step in reference.removeprefix("#").strip("/").split("/") if reference != "#" else ():
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            raise ToolDefinitionError(f"tool {tool!r}: the schema refers to {reference}, which is not in it")
        found = found[name]
    return found


__all__ = ["chat_choice", "inlined", "is_closed", "named_schema", "responses_choice"]
