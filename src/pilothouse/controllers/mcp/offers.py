"""What a server offers, as the loop's tools: names, schemas, effects, and whether something has changed. No I/O."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from ...core.canonical import digest_of
from ...events import Effect
from ...messages import JSON
from ..texts import lines

if TYPE_CHECKING:
    from mcp.types import Tool as ServerTool

logger: Final = logging.getLogger("pilothouse.mcp")

NAME: Final = 64
SCHEMA: Final = 32 * 1024
DEPTH: Final = 40
DESCRIPTION: Final = 2_000


@final
@dataclass(frozen=True, slots=True)
class MCPToolInfo:
    """A tool of a server.

    Attributes:
        name: the server's own name.
        model_name: what the model calls it, without the namespace.
        destructive: whether the server calls it destructive, or says nothing.
        digest: of description and schema.
    """

    name: str
    model_name: str
    description: str
    schema: Mapping[str, JSON]
    effect: Effect
    destructive: bool
    digest: str


@final
@dataclass(frozen=True, slots=True)
class Pins:
    """What is known of a server's tools: kept with the conversation, so that a change is seen after a restart too.

    Attributes:
        digests: of description and schema, by the server's name.
        unasked: new or changed ones that no person has allowed yet.
    """

    digests: Mapping[str, str]
    unasked: frozenset[str] = frozenset()


@final
@dataclass(frozen=True, slots=True)
class ToolsChanged:
    """The server's list is another one than before: names of what came, went, and has another description or schema."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


def offers(
    namespace: str,
    tools: Sequence[ServerTool],
    *,
    include: Collection[str] | None,
    exclude: Collection[str],
    effects: Mapping[str, Effect],
    trust: bool,
) -> tuple[MCPToolInfo, ...]:
    """The tools that a model is offered, sorted by name; what cannot be offered is left out with a warning."""
    names = {tool.name for tool in tools}
    if include is not None and (unknown := set(include) - names):
        there = ", ".join(sorted(names)) or "none"
        logger.warning(
            "mcp %s: include names %s, which the server has not; it has %s", namespace, min(unknown), there
        )
    found: list[MCPToolInfo] = []
    taken: set[str] = set()
    seen: set[str] = set()
    for tool in sorted(tools, key=lambda one: one.name):
        if tool.name in seen:
            logger.warning(
                "mcp %s: tool %s is listed more than once, the first one counts", namespace, tool.name
            )
            continue
        seen.add(tool.name)
        if (include is not None and tool.name not in include) or tool.name in exclude:
            continue
        if why := _unfit(tool.input_schema):
            logger.warning("mcp %s: tool %s is left out: %s", namespace, tool.name, why)
            continue
        description = lines(tool.description or "")[:DESCRIPTION]
        model_name = _model_name(namespace, tool.name, taken)
        taken.add(model_name)
        hints = tool.annotations
        found.append(
            MCPToolInfo(
                tool.name,
                model_name,
                description,
                tool.input_schema,
                effects.get(tool.name) or _effect(hints if trust else None),
                hints is None or (not hints.read_only_hint and hints.destructive_hint is not False),
                digest_of([description, tool.input_schema]),
            )
        )
    return tuple(found)


def _effect(hints: Any) -> Effect:
    """Hints must not be trusted from unknown servers; absent ones have the protocol's defaults (MCP, ToolAnnotations)."""
    if hints is None:
        return "non_idempotent"
    if hints.read_only_hint:
        return "read"
    return "idempotent" if hints.idempotent_hint else "non_idempotent"


def _model_name(namespace: str, name: str, taken: Collection[str]) -> str:
    most = NAME - len(namespace) - 2
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"
    if not re.match(r"[A-Za-z_]", plain):
        plain = f"_{plain}"
    if len(plain) <= most and plain not in taken:
        return plain
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{plain[: most - 7]}_{digest}"


def _unfit(schema: Any) -> str:
    """Why a schema cannot go to a model; empty if it can."""
    if not isinstance(schema, Mapping) or schema.get("type") != "object":
        return "its schema is not one of an object"
    stack: list[tuple[Any, int]] = [(schema, 1)]
    while stack:
        item, depth = stack.pop()
        if depth > DEPTH:
            return f"its schema is nested deeper than {DEPTH}"
        if isinstance(item, Mapping):
            reference = item.get("$ref")
            if isinstance(reference, str) and not reference.startswith("#"):
                return "its schema refers to another document"
            stack += [(child, depth + 1) for child in item.values()]
        elif isinstance(item, list):
            stack += [(child, depth + 1) for child in item]
    size = len(json.dumps(schema, default=str).encode())
    return f"its schema has {size} bytes" if size > SCHEMA else ""


def compared(old: Mapping[str, str], new: Mapping[str, str]) -> ToolsChanged | None:
    """What is different between two lists of digests by name, None if nothing is."""
    change = ToolsChanged(
        tuple(sorted(set(new) - set(old))),
        tuple(sorted(set(old) - set(new))),
        tuple(sorted(name for name in set(old) & set(new) if old[name] != new[name])),
    )
    return change if change.added or change.removed or change.changed else None
