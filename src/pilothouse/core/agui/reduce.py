"""The client side of AG-UI: events of a run to what an interface shows (agent-contract §3.15, Reducer).

It takes verified events and changes values: messages and calls (`core/display`), the state, subagents, activities. How
a run begins and ends, and what its interrupts mean, is for whoever drives the run: `Reducer.apply` leaves RUN_* alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET

from ...messages import JSON
from ...projection import EMPTY, AgentEvent, CustomEvent, Interrupt, StateUpdate
from ..display import Display, Told, plain
from ..jsonpatch import PatchError, apply_patch, equal
from . import events as agui
from .events import Event
from .told import answer_of, citations_of, content_of, noticed, role_of, told

logger = logging.getLogger("pilothouse.agui")

INTERRUPT_NOTICES: Final = frozenset({"on_interrupt"})


class Child:
    """A subagent: its own conversation and state (AG-160 … AG-164).

    Attributes:
        announced: it has a name; content before that made a placeholder.
    """

    def __init__(self, child_id: str, now: Callable[[], float], generation: str) -> None:
        self.id = child_id
        self.name = ""
        self.tool_call_id: str | None = None
        self.status: Literal["pending", "running", "complete", "error"] = "pending"
        self.announced = False
        self.generation = generation
        self.display = Display(now)
        self.display.begin(generation)
        self.state: Mapping[str, JSON] = EMPTY

    @property
    def over(self) -> bool:
        """Whether it ended: what comes later is ignored."""
        return self.status in ("complete", "error")


class Reducer:
    """Values of one agent.

    Attributes:
        display: messages and calls.
        state: the backend's state.
        state_told: a snapshot or delta came in this attempt.
        children, activities: of this run, by id.
        events: what no value holds; taken by `take_events`.
        interrupts: of the older notice, seen in this attempt.
        ours: a Pilothouse server tells it, whose results say in their text how a call came out.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.display = Display(now)
        self.state: Mapping[str, JSON] = EMPTY
        self.state_told = False
        self.children: dict[str, Child] = {}
        self.activities: dict[str, tuple[str, dict[str, JSON]]] = {}
        self.interrupts: list[Interrupt] = []
        self.ours = False
        self._events: list[AgentEvent] = []

    def begin(self, generation: str, run_id: str, *, continues: bool) -> None:
        """An attempt begins (AG-41)."""
        self.display.begin(generation, run_id, continues=continues)
        self.state_told = False
        self.children = {}
        self.activities = {}
        self.interrupts = []
        self._events = []

    def start_over(self) -> None:
        """The backend tells the attempt again from its start."""
        self.display.start_over()
        self.children, self.activities, self.interrupts = {}, {}, []

    def take_events(self) -> list[AgentEvent]:
        """What happened since the last call and is no value."""
        events, self._events = self._events, []
        return events

    def set_state(self, state: JSON) -> None:
        """The whole state; anything that is no mapping is an empty one (AG-25)."""
        self.state = MappingProxyType(state) if isinstance(state, dict) else EMPTY
        self.display.cite(citations_of(self.state))

    def apply(self, event: Event) -> None:
        """Takes a verified event."""
        rule = _RULES.get(type(event))
        if rule is not None:
            rule(self, event)

    def size_of(self, event: Event) -> int:
        """Characters of what this event has added to: a text, a reasoning, or the arguments of a call."""
        display = self._display(event)
        match event:
            case _ if display is None:
                return 0
            case agui.TextMessageContent():
                found = display.get(event.message_id)
                return 0 if found is None else len(found.text)
            case agui.ReasoningMessageContent():
                found = display.get(answer_of(event.message_id))
                return 0 if found is None else len(found.reasoning or "")
            case agui.ToolCallArgs():
                call = display.call(event.tool_call_id)
                return 0 if call is None else len(call.args_text)
            case _:
                return 0

    # Where an event belongs

    def _display(self, event: Event) -> Display | None:
        """The conversation that the event is about; None if that is over."""
        owner = event.subagent_run_id
        if owner is UNSET:
            return self.display
        child = self._child(owner)
        return None if child.over else child.display

    def _child(self, child_id: str) -> Child:
        child = self.children.get(child_id)
        if child is None:
            child = self.children[child_id] = Child(child_id, self._now, self.display.generation)
            child.status = "running"
        return child

    # Text and reasoning

    def _text_start(self, event: agui.TextMessageStart) -> None:
        if (display := self._display(event)) is not None:
            role = role_of(event.role)
            display.open(event.message_id, role, None if event.name is UNSET else event.name)
            self._merge_metadata(display, event, event.message_id)

    def _text(self, event: agui.TextMessageContent) -> None:
        if (display := self._display(event)) is not None:
            display.text(event.message_id, event.delta)
            self._merge_metadata(display, event, event.message_id)

    def _text_end(self, event: agui.TextMessageEnd) -> None:
        if (display := self._display(event)) is not None:
            found = display.get(event.message_id)
            if found is not None and found.role != "assistant":
                display.complete(event.message_id)
            self._merge_metadata(display, event, event.message_id)

    def _merge_metadata(self, display: Display, event: Event, message_id: str) -> None:
        if event.metadata is not UNSET:
            display.metadata(message_id, event.metadata)

    def _think(self, event: Any) -> None:
        if (display := self._display(event)) is not None:
            answer = answer_of(event.message_id)
            display.think(answer, getattr(event, "delta", ""), own=answer != event.message_id)

    def _thought(self, event: Any) -> None:
        if (display := self._display(event)) is not None:
            display.thought(answer_of(event.message_id))

    # Calls

    def _call_start(self, event: agui.ToolCallStart) -> None:
        if (display := self._display(event)) is not None:
            parent = None if event.parent_message_id is UNSET else event.parent_message_id
            owner = None if event.subagent_run_id is UNSET else event.subagent_run_id
            display.call_start(event.tool_call_id, event.tool_call_name, parent, subagent_id=owner)

    def _call_args(self, event: agui.ToolCallArgs) -> None:
        if (display := self._display(event)) is not None:
            display.call_args(event.tool_call_id, event.delta)

    def _call_end(self, event: agui.ToolCallEnd) -> None:
        if (display := self._display(event)) is not None:
            display.call_end(event.tool_call_id)

    def _call_result(self, event: agui.ToolCallResult) -> None:
        if (display := self._display(event)) is None:
            return
        content = content_of(event.content)
        text = plain(content)
        ledger = _ledger(text) if self.ours else None
        display.call_result(
            event.tool_call_id,
            text,
            error=text if ledger is not None else None,
            ledger=ledger,
            message=Told(event.message_id, "tool", content, tool_call_id=event.tool_call_id),
        )
        self._merge_metadata(display, event, event.message_id)

    # State, snapshots, activities

    def _state(self, event: agui.StateSnapshot) -> None:
        if event.subagent_run_id is not UNSET:
            child = self._child(event.subagent_run_id)
            child.state = MappingProxyType(event.snapshot) if isinstance(event.snapshot, dict) else EMPTY
            return
        self.state_told = True
        if not equal(dict(self.state), event.snapshot):
            self.set_state(event.snapshot)

    def _state_delta(self, event: agui.StateDelta) -> None:
        child = None if event.subagent_run_id is UNSET else self._child(event.subagent_run_id)
        before = dict(self.state if child is None else child.state)
        try:
            after = apply_patch(before, event.delta)
        except PatchError as error:
            logger.warning("a patch of the state does not apply and was skipped: %s", error)
            return
        if child is not None:
            child.state = MappingProxyType(after) if isinstance(after, dict) else EMPTY
            return
        self.state_told = True
        self.set_state(after)

    def _messages(self, event: agui.MessagesSnapshot) -> None:
        reasoning = any(isinstance(item, agui.ReasoningMessage) for item in event.messages)
        self.display.snapshot(told(event.messages), reasoning=reasoning)
        shown = {
            item.id: (item.activity_type, item.content)
            for item in event.messages
            if isinstance(item, agui.ActivityMessage)
        }
        if shown:
            self.activities = shown
        self.display.cite(citations_of(self.state))

    def _activity(self, event: agui.ActivitySnapshot) -> None:
        if event.replace is False and event.message_id in self.activities:
            return
        self.activities[event.message_id] = (event.activity_type, event.content)
        self._show_activity(event.message_id)

    def _activity_delta(self, event: agui.ActivityDelta) -> None:
        found = self.activities.get(event.message_id)
        if found is None:
            return
        try:
            content = apply_patch(found[1], event.patch)
        except PatchError as error:
            logger.warning(
                "a patch of activity %s does not apply and was skipped: %s", event.message_id, error
            )
            return
        self.activities[event.message_id] = (event.activity_type, content)
        self._show_activity(event.message_id)

    def _show_activity(self, message_id: str) -> None:
        """An activity of type `subagent` is a subagent too (AG-204)."""
        kind, content = self.activities[message_id]
        if kind != "subagent" or not isinstance(content, dict):
            return
        child = self._child(str(content.get("id") or message_id))
        child.announced = True
        child.name = str(content.get("name") or child.name)
        call_id = content.get("toolCallId")
        child.tool_call_id = call_id if isinstance(call_id, str) else child.tool_call_id
        text = content.get("text")
        if isinstance(text, str) and not child.over:
            child.display.finish(Told(f"{child.id}:text", "assistant", text))
        status = _ACTIVITY_STATUS.get(str(content.get("status")))
        if status is not None and not child.over:
            self._end_child(child, status)

    # Subagents

    def _subagent_started(self, event: agui.SubagentStarted) -> None:
        assert event.subagent_run_id is not UNSET
        child = self.children.get(event.subagent_run_id)
        if child is None or child.announced:
            child = self.children[event.subagent_run_id] = Child(
                event.subagent_run_id, self._now, self.display.generation
            )
        child.announced = True
        child.name = event.name
        child.tool_call_id = None if event.parent_tool_call_id is UNSET else event.parent_tool_call_id
        child.status = "running"

    def _subagent_finished(self, event: agui.SubagentFinished) -> None:
        assert event.subagent_run_id is not UNSET
        outcome = event.outcome if event.outcome is not UNSET else {}
        if outcome.get("type") == "interrupt":
            return  # suspended: it goes on running
        self._end_child(self._child(event.subagent_run_id), "complete")

    def _subagent_error(self, event: agui.SubagentError) -> None:
        assert event.subagent_run_id is not UNSET
        self._end_child(self._child(event.subagent_run_id), "error")

    def _end_child(self, child: Child, status: Literal["pending", "running", "complete", "error"]) -> None:
        child.status = status
        if child.over:
            child.display.end("error" if status == "error" else "success")

    # Events

    def _custom(self, event: agui.Custom) -> None:
        value = _parsed(event.value)
        if event.name in INTERRUPT_NOTICES:
            run_id = self.display.attempt_run or ""
            self.interrupts += noticed(value, run_id)
        elif event.name == "state_update" and isinstance(value, dict):
            self._events.append(StateUpdate(value))
        else:
            self._events.append(CustomEvent(event.name, value))


def _parsed(value: JSON) -> JSON:
    """A JSON text as its value (AG-26)."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return msgspec.json.decode(value)
        except msgspec.DecodeError:
            return value
    return value


_ACTIVITY_STATUS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "pending": "pending",
        "running": "running",
        "complete": "complete",
        "completed": "complete",
        "success": "complete",
        "failed": "error",
        "error": "error",
    }
)

_SAYS: Final = MappingProxyType(
    {"Refused": "refused", "Cancelled": "cancelled", "Outcome unknown": "unknown", "Error": "failed"}
)


def _ledger(text: str) -> str | None:
    """What a result's text says of its call, where our server wrote it; the protocol has no other place for it."""
    head = text.partition(":")[0]
    return _SAYS.get(head) if head != text or text in _SAYS else None


_RULES: Final[Mapping[type, Callable[[Reducer, Any], None]]] = MappingProxyType(
    {
        agui.TextMessageStart: Reducer._text_start,  # noqa: SLF001 - the class's own table
        agui.TextMessageContent: Reducer._text,  # noqa: SLF001
        agui.TextMessageEnd: Reducer._text_end,  # noqa: SLF001
        agui.ReasoningStart: Reducer._think,  # noqa: SLF001
        agui.ReasoningMessageStart: Reducer._think,  # noqa: SLF001
        agui.ReasoningMessageContent: Reducer._think,  # noqa: SLF001
        agui.ReasoningMessageEnd: Reducer._thought,  # noqa: SLF001
        agui.ToolCallStart: Reducer._call_start,  # noqa: SLF001
        agui.ToolCallArgs: Reducer._call_args,  # noqa: SLF001
        agui.ToolCallEnd: Reducer._call_end,  # noqa: SLF001
        agui.ToolCallResult: Reducer._call_result,  # noqa: SLF001
        agui.StateSnapshot: Reducer._state,  # noqa: SLF001
        agui.StateDelta: Reducer._state_delta,  # noqa: SLF001
        agui.MessagesSnapshot: Reducer._messages,  # noqa: SLF001
        agui.ActivitySnapshot: Reducer._activity,  # noqa: SLF001
        agui.ActivityDelta: Reducer._activity_delta,  # noqa: SLF001
        agui.SubagentStarted: Reducer._subagent_started,  # noqa: SLF001
        agui.SubagentFinished: Reducer._subagent_finished,  # noqa: SLF001
        agui.SubagentError: Reducer._subagent_error,  # noqa: SLF001
        agui.Custom: Reducer._custom,  # noqa: SLF001
    }
)


__all__ = ["Child", "Reducer"]
