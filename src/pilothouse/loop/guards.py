"""The breakers of a run at work: what they are told, what they refuse, and the notes that they arm (LP-39)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import final

from ..core.breaker import Key, Trip, key_of
from ..events import CallFinished, Noted
from ..messages import Text, ToolCall
from .tools import Tool
from .work import Work

REJECTIONS = frozenset({"invalid_args", "unknown_tool"})
"""Refusals that the model can only answer by calling differently; blocked and denied calls are not its fault."""


@final
class Guards:
    """Tells the breakers what happens to calls. A resumed run is told the same in the same order."""

    def __init__(self, work: Work, *, replay: bool = False) -> None:
        self._work = work
        self._replay = replay

    def refusal(self, call: ToolCall) -> tuple[str, str] | None:
        """Which breaker refuses this call, and what the model is told."""
        breakers = self._work.breakers
        if not breakers.on:
            return None
        found = breakers.refusal(_key(call))
        if found is not None:
            breakers.refused(found[0])
        return found

    def rejected(self, call: ToolCall, text: str) -> None:
        """A call was rejected before it could run."""
        tool = self._work.tools.get(call.tool)
        contract = _contract(tool) if tool is not None else f"there is no tool {call.tool!r}"
        self._arm(self._work.breakers.rejected(_key(call), text, contract))

    def batch_over(self, calls: Sequence[ToolCall], ends: Mapping[str, CallFinished]) -> None:
        """All calls of a batch have their result: told in call order, whatever the order in which they ended."""
        work = self._work
        ran = [(call, ends[call.call_id]) for call in calls if call.call_id in ends]
        if work.breakers.on:
            whole = [(call, end) for call, end in ran if end.outcome in ("succeeded", "failed")]
            for call, end in whole:
                self._arm(work.breakers.finished(_key(call), end.outcome, end.content))
            self._arm(work.breakers.batch_over(len(whole)))
        succeeded = any(end.outcome == "succeeded" for _, end in ran)
        work.failed_turns = 0 if succeeded else work.failed_turns + 1

    def read(self, call: ToolCall, end: CallFinished) -> None:
        """Takes a recorded refusal of an earlier attachment."""
        if end.reason == "breaker":
            self._work.breakers.refused(end.error or "misuse")
        elif end.reason in REJECTIONS:
            text = "".join([part.text for part in end.content if isinstance(part, Text)])
            self.rejected(call, text)

    def _arm(self, trip: Trip | None) -> None:
        if trip is None:
            return
        self._work.notes.append(trip.text)
        if not self._replay:
            self._work.recorder.note(Noted("loop/guard", trip.data))


def _key(call: ToolCall) -> Key:
    if call.args_error is not None:
        return call.tool, call.raw_arguments.encode(errors="replace")
    return key_of(call.tool, call.arguments)


def _contract(tool: Tool) -> str:
    return f"{tool.name}: {tool.spec.description} {json.dumps(tool.spec.parameters, ensure_ascii=False)}"
