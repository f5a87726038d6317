"""Between two turns: the hooks that may change or end a run, and the context that they put in place (LP-5, LP-3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, final

import msgspec

from ..core.calls import result_message
from ..errors import ConfigError
from ..events import Completed, Failed, Incomplete, Noted, Outcome
from ..messages import JSON, Message, Model
from ..responses import ModelSettings
from .asking import Answer
from .compacting import all_messages, replace_context
from .hooks import HookFailed, NextTurn, TurnInfo
from .tools import ToolSet
from .work import Payload, Work

NEXT_NOTE: Final = "loop/next"
_CHANGES: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "messages": Sequence,
        "model": Model,
        "tools": Iterable,
        "system_prompt": str,
        "settings": ModelSettings,
    }
)
"""What each field of a `NextTurn` must be."""


@final
class Between:
    """Calls the hooks between the turns of one run."""

    def __init__(self, work: Work) -> None:
        self._work = work

    @staticmethod
    def of(work: Work) -> Between | None:
        """Who calls them, if there are any."""
        config = work.plan.config
        if config.prepare_next_turn is None and config.should_stop_after_turn is None:
            return None
        return Between(work)

    async def hooks(self, answer: Answer) -> Outcome | None:
        """Calls both hooks; an outcome if the run is to end here.

        Raises:
            Stopped: the run was stopped meanwhile.
        """
        config = self._work.plan.config
        if answer.message is None:
            return None
        await self._work.recorder.write()  # the turn is durable before somebody else's code sees it
        info = self._info(answer.message)
        if config.prepare_next_turn is not None:
            try:
                change = await self._work.hooks.call(
                    "prepare_next_turn", config.prepare_next_turn, info, returns=(NextTurn,)
                )
                if change is not None:
                    self._apply(change)
            except HookFailed as failure:
                return Failed("hook", message=str(failure))
            except ConfigError as error:
                return Failed("config", message=str(error))
        if config.should_stop_after_turn is not None:
            try:
                stop = await self._work.hooks.call(
                    "should_stop_after_turn", config.should_stop_after_turn, info, returns=(bool, str)
                )
            except HookFailed:
                return Incomplete("hook_error")
            if stop:
                return Completed(stopped_by="should_stop_after_turn")
        return None

    def _info(self, message: Message) -> TurnInfo:
        work = self._work
        results = [
            work.finished[call.call_id] for call in message.tool_calls if call.call_id in work.finished
        ]
        return TurnInfo(
            work.run_id,
            work.turn,
            message,
            tuple([result_message(end) for end in results]),
            Payload(work.context),
            work.model,
            work.usage,
            work.scope,
        )

    def _apply(self, change: NextTurn) -> None:
        work = self._work
        for name, wanted in _CHANGES.items():
            value = getattr(change, name)
            if value is not None and not isinstance(value, wanted):
                raise HookFailed(f"prepare_next_turn returned {type(value).__name__} as {name}")
        if change.model is not None:
            work.plan.provider_of(change.model)  # a model that nobody serves is a ConfigError now, not later
            work.model = change.model
        if change.tools is not None:
            work.tool_set = ToolSet(change.tools)
        if change.system_prompt is not None:
            work.system_prompt = change.system_prompt
        if change.settings is not None:
            work.settings = change.settings
        if change.model is not None or change.system_prompt is not None or change.settings is not None:
            work.recorder.note(Noted(NEXT_NOTE, _written(change)))
        if change.messages is not None:
            if not all_messages(work, change.messages):
                raise HookFailed("prepare_next_turn returned something that is no message")
            replace_context(work, change.messages, "prepare_next_turn")


def _written(change: NextTurn) -> dict[str, JSON]:
    """What a resumed run must know of a change; tools are the host's to choose again."""
    known = {"model": change.model, "system_prompt": change.system_prompt, "settings": change.settings}
    return {name: msgspec.to_builtins(value) for name, value in known.items() if value is not None}


def apply_note(work: Work, data: dict[str, JSON]) -> None:
    """Puts a change back in place that an earlier attachment made."""
    if "model" in data:
        work.model = msgspec.convert(data["model"], Model)
    if "system_prompt" in data:
        work.system_prompt = data["system_prompt"]
    if "settings" in data:
        work.settings = msgspec.convert(data["settings"], ModelSettings)
