"""Whether and how a call may run, decided before anything starts (LP-27, steps 1 to 8)."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ..core.calls import arguments_digest, idempotency_key
from ..errors import ToolError
from ..events import Effect
from ..messages import JSON, ToolCall
from .coercion import SHOWN
from .schema import InvalidArguments
from .tools import Tool, ToolSet

logger: Final = logging.getLogger("pilothouse.loop")


class Refusal(NamedTuple):
    """A call that will not run; `text` tells the model."""

    reason: str
    text: str


class Ready(NamedTuple):
    """A call whose arguments are frozen: exactly these run, and exactly these are approved (TL-7)."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, JSON]
    values: Mapping[str, Any]
    digest: str
    key: str
    effect: Effect
    resource: str | None


def check_call(call: ToolCall, tools: ToolSet, run_id: str) -> Ready | Refusal:
    """Resolves, validates and freezes one call. Runs the tool's own shims, never the tool."""
    tool = tools.get(call.tool)
    if tool is None:
        return Refusal("unknown_tool", _unknown(call.tool, tools))
    if call.args_error is not None:
        return Refusal("invalid_args", _unreadable(call))
    try:
        given = call.arguments if tool.prepare is None else tool.prepare(call.arguments)
        frozen = tool.accept(given)
    except (InvalidArguments, ToolError) as error:
        return Refusal("invalid_args", str(error))
    except Exception:
        logger.exception("preparing a call of tool %s failed", tool.name)
        return Refusal("hook_error", f"{tool.name}: its arguments could not be prepared; it was not run.")
    try:
        effect, resource = tool.effect_of(frozen.json), tool.resource_of(frozen.json)
    except Exception:
        logger.exception("effect or resource of a call of tool %s could not be told", tool.name)
        return Refusal("hook_error", f"{tool.name}: what it would do could not be told; it was not run.")
    digest = arguments_digest(frozen.json)
    key = idempotency_key(run_id, call.call_id, digest)
    return Ready(call, tool, frozen.json, frozen.values, digest, key, effect, resource)


def _unknown(name: str, tools: ToolSet) -> str:
    if not tools.names:
        return f"There is no tool {name!r}: no tools are available."
    text = f"There is no tool {name!r}. Available: {', '.join(tools.names)}."
    if nearest := difflib.get_close_matches(name.strip(), tools.names, 1, 0.5):
        text += f" Did you mean {nearest[0]!r}?"
    return text


def _unreadable(call: ToolCall) -> str:
    raw = call.raw_arguments
    shown = raw if len(raw) <= SHOWN else f"{raw[:SHOWN]}… ({len(raw)} characters)"
    return (
        f"The arguments of {call.tool} are not one JSON object ({call.args_error}); it was not run. "
        f"They were: {json.dumps(shown, ensure_ascii=False)}"
    )
