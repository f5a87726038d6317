"""For whom a conversation is made, and how a run keeps that: a factory is given the same after a restart (SV-14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from ..contracts import Journal
from ..core.canonical import encode
from ..messages import JSON, ToolSpec
from ..records import RunSpec
from .auth import Principal
from .names import LOCAL, ids_of

EXTENSION: Final = "server/context"
INLINE: Final = 4_096
"""Bytes of it that stay in the specification of a run; more of it is a blob."""


class ContextEntry(Struct, frozen=True):
    """Something that a client says of where it is, for the agent to know."""

    description: str = ""
    value: JSON = ""


class RunContext(Struct, frozen=True):
    """For whom and for what a conversation is made; given to a factory, never global.

    It is kept with the run, so that a factory is given the same where another process takes the run up.
    """

    principal: Principal
    thread_id: str
    run_id: str
    agent: str
    forwarded_props: Mapping[str, JSON] = field(default_factory=dict)
    context: tuple[ContextEntry, ...] = ()
    client_tools: tuple[ToolSpec, ...] = ()


class _Kept(Struct, frozen=True, omit_defaults=True):
    """What of a context stands nowhere else in a specification."""

    roles: tuple[str, ...] = ()
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    props: Mapping[str, JSON] = field(default_factory=dict)
    context: tuple[ContextEntry, ...] = ()


async def kept(journal: Journal, context: RunContext) -> dict[str, JSON]:
    """The extension of a run's specification that keeps its context; names and client tools stand there already."""
    principal = context.principal
    found: Any = msgspec.to_builtins(
        _Kept(tuple(sorted(principal.roles)), principal.attributes, context.forwarded_props, context.context)
    )
    if not found:
        return {}
    body = encode(found)
    if len(body) <= INLINE:
        return {EXTENSION: found}
    return {EXTENSION: {"digest": (await journal.put_blob(body, "application/json")).digest}}


async def recalled(journal: Journal, spec: RunSpec, agent: str) -> RunContext:
    """The context that a run was begun with; of one that no server has begun, what its specification says."""
    found: Any = spec.extensions.get(EXTENSION) or {}
    if "digest" in found:
        found = msgspec.json.decode(await journal.get_blob(str(found["digest"])))
    said, ids = msgspec.convert(found, _Kept), ids_of(spec)
    principal = Principal(ids.principal, spec.tenant or LOCAL, frozenset(said.roles), said.attributes)
    tools = msgspec.convert(spec.options.get("loop.client_tools") or (), tuple[ToolSpec, ...])
    return RunContext(principal, ids.thread, ids.run, ids.agent or agent, said.props, said.context, tools)


__all__ = ["ContextEntry", "RunContext", "kept", "recalled"]
