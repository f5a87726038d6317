"""What a reader of a run is told of its sub-agents (SV §6.2).

That one begins and ends are facts of the parent: their frames have positions. What it says between are deltas, and its
frames have none; so a reader that comes back while one is open is told the run from its start (SV-47).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from ...events import CallFinished, ChildTold, MessageAdded, Noted, TextTold
from ...messages import UNSET, ToolCall
from . import events as agui
from .content import arguments_text, plain_text, result_text
from .events import Event, Profile


class _Child:
    """One that is open; `text` is what was told of the message that is being streamed."""

    def __init__(self, run_id: str, name: str, call_id: str) -> None:
        self.run_id, self.name, self.call_id = run_id, name, call_id
        self.message_id = ""
        self.text = ""
        self.part = 0


@final
class Children:
    """Those of one segment, for one reader.

    Attributes:
        open: by the id of the call that each of them is.
    """

    def __init__(self, profile: Profile) -> None:
        self.open: dict[str, _Child] = {}
        self._legacy = profile == "legacy"

    def begin(self, note: Noted) -> Iterator[Event]:
        """A call begins a run of its own."""
        data = note.data if isinstance(note.data, dict) else {}
        child = _Child(str(data.get("run_id")), str(data.get("name") or ""), str(data.get("call_id")))
        if child.call_id in self.open:
            return
        self.open[child.call_id] = child
        if self._legacy:
            yield _activity(child, "running")
        else:
            yield agui.SubagentStarted(
                child.name, parent_tool_call_id=child.call_id, subagent_run_id=child.run_id
            )

    def told(self, told: ChildTold) -> Iterator[Event]:
        """A piece of what it says, or one of its facts."""
        child = self.open.get(told.call_id)
        if child is None or child.run_id != told.run_id:
            return
        if isinstance(told.said, TextTold):
            yield from self._piece(child, told.said)
        fact = told.fact
        if isinstance(fact, MessageAdded) and fact.message.role == "assistant":
            yield from self._message(child, fact)
        elif isinstance(fact, CallFinished) and not self._legacy:
            text = result_text(fact.outcome, fact.content)
            name = f"{child.run_id}:{fact.call_id}"
            yield agui.ToolCallResult(name, fact.call_id, text, "tool", subagent_run_id=child.run_id)

    def _piece(self, child: _Child, said: TextTold) -> Iterator[Event]:
        """Text as it comes; behind a gap it waits for the whole message."""
        if child.message_id != said.message_id:
            if said.offset or said.index > 1:
                return
            yield from self.interrupt(child)
            child.message_id, child.text, child.part = said.message_id, "", said.index
            if not self._legacy:
                yield agui.TextMessageStart(said.message_id, "assistant", subagent_run_id=child.run_id)
        fresh = said.text[max(0, len(child.text) - said.offset) :]
        if said.index != child.part or said.offset > len(child.text) or not fresh:
            return
        child.text += fresh
        if not self._legacy:
            yield agui.TextMessageContent(said.message_id, fresh, subagent_run_id=child.run_id)

    def _message(self, child: _Child, fact: MessageAdded) -> Iterator[Event]:
        message, whole = fact.message, plain_text(fact.message.parts)
        if self._legacy:
            child.text = whole
            yield _activity(child, "running")
            return
        owner = child.run_id
        if child.message_id != message.id:
            yield from self.interrupt(child)
            if whole:
                yield agui.TextMessageStart(message.id, "assistant", subagent_run_id=owner)
                child.message_id, child.text = message.id, ""
        rest = whole[len(child.text) :] if whole.startswith(child.text) else ""
        if child.message_id and rest:
            yield agui.TextMessageContent(message.id, rest, subagent_run_id=owner)
        yield from self.interrupt(child)
        for part in message.tool_calls:
            yield from _call(part, message.id if whole else None, owner)

    def interrupt(self, child: _Child) -> Iterator[Event]:
        """The message that is being streamed has no more."""
        if child.message_id and not self._legacy:
            yield agui.TextMessageEnd(child.message_id, subagent_run_id=child.run_id)
            child.message_id, child.text = "", ""

    def finish(self, call_id: str, *, failed: bool) -> Iterator[Event]:
        """The call is over; what was being streamed was ended before (`interrupt`)."""
        child = self.open.pop(call_id, None)
        if child is None:
            return
        if self._legacy:
            yield _activity(child, "failed" if failed else "completed")
        elif failed:
            yield agui.SubagentError(f"{child.name} did not succeed", subagent_run_id=child.run_id)
        else:
            yield agui.SubagentFinished(subagent_run_id=child.run_id)

    def suspend(self) -> Iterator[Event]:
        """The segment ends while they run: nothing may be open behind its end."""
        for child in list(self.open.values()):
            yield from self.interrupt(child)
            if not self._legacy:
                yield agui.SubagentFinished(outcome={"type": "interrupt"}, subagent_run_id=child.run_id)
        self.open = {}


def _call(part: ToolCall, parent: str | None, owner: str) -> Iterator[Event]:
    message = UNSET if parent is None else parent
    yield agui.ToolCallStart(part.call_id, part.tool, message, subagent_run_id=owner)
    if arguments := arguments_text(part):
        yield agui.ToolCallArgs(part.call_id, arguments, subagent_run_id=owner)
    yield agui.ToolCallEnd(part.call_id, subagent_run_id=owner)


def _activity(child: _Child, status: str) -> Event:
    content = {
        "id": child.run_id,
        "name": child.name,
        "toolCallId": child.call_id,
        "status": status,
        "text": child.text,
    }
    return agui.ActivitySnapshot(f"{child.run_id}:activity", "subagent", content)


__all__ = ["Children"]
