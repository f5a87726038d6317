"""Whether and how a call may run, decided call by call before it starts (LP-27, steps 1 to 8)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

from msgspec import Struct

from ..cancel import ENDING
from ..core.calls import arguments_digest, idempotency_key
from ..errors import ToolError
from ..events import Effect
from ..messages import JSON, Message, ToolCall
from .approval import Decision, Rule, is_plain
from .coercion import SHOWN, own
from .hooks import Block, CallCheck, HookFailed, Rewrite
from .recorder import Stopped
from .schema import InvalidArguments
from .tools import Tool, ToolSet
from .work import Payload, Work

logger: Final = logging.getLogger("pilothouse.loop")


class Refusal(Struct, frozen=True):
    """A call that will not run; `text` tells the model."""

    reason: str
    text: str


class Ready(Struct, frozen=True):
    """A call whose arguments are frozen: exactly these run, and exactly these are approved (TL-7)."""

    call: ToolCall
    tool: Tool
    arguments: dict[str, JSON]
    values: Mapping[str, Any]
    digest: str
    key: str
    effect: Effect
    resource: str | None


@final
class Checker:
    """Checks calls.

    Attributes:
        message: whose calls are checked; set before each batch.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self.message: Message | None = None

    async def check(self, call: ToolCall) -> Ready | Refusal:
        """Resolves, validates, asks the hook, freezes. Runs the tool's own shims, never the tool.

        Raises:
            Stopped: the run was stopped while the hook was asked.
        """
        tool = self._work.tools.get(call.tool)
        if tool is None:
            return Refusal("unknown_tool", _unknown(call.tool, self._work.tools))
        if call.args_error is not None:
            return Refusal("invalid_args", _unreadable(call))
        ready = self._prepared(call, tool)
        hook = self._work.plan.config.before_tool_call
        if hook is None or isinstance(ready, Refusal):
            return ready
        try:
            verdict = await self._work.hooks.call(
                "before_tool_call", hook, self.view(ready), returns=(Block, Rewrite)
            )
        except HookFailed as failure:
            text = f"{tool.name} was not run: the check before it failed ({failure})."
            return Refusal("hook_error", text)
        if isinstance(verdict, Block):
            return Refusal("blocked", str(verdict.reason or f"{tool.name} was not run: it was blocked."))
        if isinstance(verdict, Rewrite):
            return self.accept(call, tool, verdict.args)
        return ready

    def _prepared(self, call: ToolCall, tool: Tool) -> Ready | Refusal:
        if tool.prepare is None:
            return self.accept(call, tool, call.arguments)
        try:
            given = tool.prepare(dict(call.arguments))
        except ToolError as error:
            return Refusal("invalid_args", str(error))
        except ENDING:
            raise
        except BaseException:
            logger.exception("preparing a call of tool %s failed", tool.name)
            return Refusal("hook_error", f"{tool.name} was not run: its arguments could not be prepared.")
        return self.accept(call, tool, given)

    def accept(self, call: ToolCall, tool: Tool, given: Mapping[str, JSON]) -> Ready | Refusal:
        """Validates and freezes these arguments."""
        try:
            frozen = tool.accept(given)
        except (InvalidArguments, ToolError) as error:
            return Refusal("invalid_args", str(error))
        except ENDING:
            raise
        except BaseException:
            logger.exception("checking the arguments of a call of tool %s failed", tool.name)
            return Refusal("hook_error", f"{tool.name} was not run: its arguments could not be checked.")
        try:
            effect, resource = tool.effect_of(frozen.json), tool.resource_of(frozen.json)
        except ENDING:
            raise
        except BaseException:
            logger.exception("effect or resource of a call of tool %s could not be told", tool.name)
            return Refusal("hook_error", f"{tool.name} was not run: what it would do could not be told.")
        digest = arguments_digest(frozen.json)
        key = idempotency_key(self._work.run_id, call.call_id, digest)
        return Ready(call, tool, frozen.json, frozen.values, digest, key, effect, resource)

    def view(self, ready: Ready) -> CallCheck:
        """The call as hooks and policies see it."""
        work = self._work
        assert self.message is not None
        return CallCheck(
            ready.call.call_id,
            ready.tool.name,
            own(ready.arguments),
            ready.effect,
            self.message,
            Payload(work.context),
            work.turn,
            work.run_id,
            work.scope,
        )

    def decide(self, ready: Ready, rules: Sequence[Rule]) -> Decision:
        """What the approval policy says of a checked call."""
        policy = self._work.plan.config.approval
        if is_plain(policy, ready.tool):
            return Decision("run")
        try:
            return policy.decide(self.view(ready), ready.tool, rules)
        except Stopped:
            raise
        except ENDING:
            raise
        except BaseException:
            logger.exception("the approval policy failed for tool %s", ready.tool.name)
            return Decision("deny", "The approval policy failed.")


def _unknown(name: str, tools: ToolSet) -> str:
    if not tools.names:
        return f"There is no tool {name!r}: no tools are available."
    text = f"There is no tool {name!r}. Available: {', '.join(tools.names)}."
    import difflib

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
