"""What becomes of a call that an earlier attachment of the run left open (LP-49, EF table)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from ..core.calls import REPEATABLE, CallState, settle
from ..events import CallFinished, CallObserved
from ..messages import ToolCall
from .checking import Ready
from .results import BadResult, content_of
from .schema import InvalidArguments
from .tools import NotRun, Tool, ToolResult, ToolSet

logger: Final = logging.getLogger("pilothouse.loop")


class Seen(NamedTuple):
    """A raw end that is recorded; `ready` is None where its tool is gone."""

    ready: Ready | None
    end: CallFinished


class Past(NamedTuple):
    """A call that started before: its result, its raw end, or what is entered again as attempt `attempt`."""

    facts: Sequence[CallObserved] = ()
    end: CallFinished | None = None
    seen: Seen | None = None
    ready: Ready | None = None
    attempt: int = 0


async def past_of(call: ToolCall, known: CallState, tools: ToolSet) -> Past | None:
    """Decides about a call that the facts know as started or observed; None for one that never started."""
    if known.state not in ("started", "observed"):
        return None
    observed = known.observed
    tool = tools.get(known.tool)
    if observed is not None and not observed.not_run:
        end = settle(known, "", by="runtime")
        again = None if tool is None else _again(call, known, tool).ready
        return Past(seen=Seen(again, end))
    if tool is None:
        return Past(end=settle(known, "tool_gone", by="runtime"))
    if known.effect in REPEATABLE or observed is not None:
        return _again(call, known, tool)
    return await _reconciled(call, known, tool)


def _again(call: ToolCall, known: CallState, tool: Tool, facts: Sequence[CallObserved] = ()) -> Past:
    """Another attempt with the same arguments and key."""
    try:
        values, resource = tool.thaw(known.arguments), tool.resource_of(known.arguments)
    except Exception as error:
        if not isinstance(error, InvalidArguments):
            logger.exception("a call of tool %s could not be made ready again", tool.name)
        return Past(facts, settle(known, "tool_changed", by="runtime"))
    ready = Ready(
        replace(call, arguments=known.arguments),
        tool,
        known.arguments,
        values,
        known.arguments_digest,
        known.key,
        known.effect,
        resource,
    )
    return Past(facts, None, None, ready, known.attempt + 1)


async def _reconciled(call: ToolCall, known: CallState, tool: Tool) -> Past:
    """A non-idempotent call in doubt: what the tool's far side knows of it, else unknown; never run again (EF-5)."""
    if tool.reconcile is not None:
        try:
            found = await tool.reconcile(known.key)
        except Exception:
            logger.exception("reconciling a call of tool %s failed", tool.name)
            found = None
        if isinstance(found, NotRun):
            fact = CallObserved(call.call_id, known.attempt, "reconciled", not_run=True)
            return _again(call, known, tool, (fact,))
        if isinstance(found, ToolResult):
            return _known_result(known, found)
    return Past(end=settle(known, "interrupted", by="runtime"))


def _known_result(known: CallState, found: ToolResult) -> Past:
    try:
        content = content_of(found)
    except BadResult:
        return Past(end=settle(known, "interrupted", by="runtime"))
    fact = CallObserved(known.call_id, known.attempt, "reconciled", content.parts, content.is_error)
    marks = ("terminate",) if content.terminate else ()
    end = CallFinished(
        known.call_id,
        "succeeded",
        content.parts,
        content.is_error,
        "reconciled",
        marks=marks,
        attempt=known.attempt,
    )
    return Past((fact,), end)
