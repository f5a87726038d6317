"""AG-UI events to the parts of a UI message stream (server page §9).

The projector's events are in order already, closed before their terminal, with one terminal; so what is left is words. A
run is one assistant message, whose id is the server's: a client that is told it again from its `start` replaces it
(SV-202). Turns are its steps, our message ids those of its text and reasoning parts. What the protocol has no part for is
a transient `data-pilothouse-*` part: an unknown type would fail the client's run.

The legacy profile is what is read here: in it each end tells by events alone what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from ...messages import JSON
from ..agui import events as agui
from ..agui.events import Event, encode, encode_text
from ..agui.wire import Flow

Chunk: TypeAlias = dict[str, Any]

DONE: Final = b"data: [DONE]\n\n"
"""Follows `finish`, `error` and `abort`, and nothing else (SV-201)."""

ENDS: Final = frozenset({"finish", "error", "abort"})

_PREFIX: Final = "pilothouse-run:"
_NOTES: Final = MappingProxyType({"pilothouse.truncated": "length", "pilothouse.incomplete": "other"})


def message_id(run_id: str) -> str:
    """The id of the assistant message that a run is."""
    return _PREFIX + run_id


def run_id_of(message: str) -> str | None:
    """The run that an assistant message is; None if its id is none of ours."""
    return message[len(_PREFIX) :] if message.startswith(_PREFIX) else None


def written(chunk: Chunk) -> bytes:
    """A part as it is sent: without an id, since whole messages are replayed (SV-44)."""
    data = b"data: %b\n\n" % encode(chunk)
    return data + DONE if chunk["type"] in ENDS else data


def note(name: str, data: JSON) -> Chunk:
    """Something of ours that is shown and forgotten."""
    name = name.replace(".", "-")
    return {
        "type": f"data-{name if name.startswith('pilothouse-') else f'pilothouse-{name}'}",
        "data": data,
        "transient": True,
    }


def _piece(event: Any) -> Chunk:
    """A piece of text; it is the last field (`UIFlow`)."""
    match event:
        case agui.ToolCallArgs():
            return {
                "type": "tool-input-delta",
                "toolCallId": event.tool_call_id,
                "inputTextDelta": event.delta,
            }
        case agui.TextMessageContent():
            return {"type": "text-delta", "id": event.message_id, "delta": event.delta}
        case _:
            return {"type": "reasoning-delta", "id": event.message_id, "delta": event.delta}


class UIFlow(Flow):
    """Text that flows, as parts of this protocol."""

    __slots__ = ()

    def __init__(self, *place: Any, content: Event, **more: Any) -> None:
        super().__init__(*place, content=content, **more)
        self._head = b"aisdk " + self._head  # what other readers of this protocol share
        self._middle = b"data: " + encode(_piece(content))[:-3]

    def _frame(self, start: int, end: int) -> bytes:
        text = self._part.pieces[-1]
        if len(text) != end - start:
            text = self._part.text[start:]
        return b"%b%b}\n\n" % (self._middle, encode_text(text))


class Translator:
    """The parts of one connection.

    Args:
        message: id of the assistant message; None goes on with the one that the client has.
        has: ids of calls that the client's message holds already.
        answered: ids of calls whose results are the client's own: it has them as they are.
    """

    def __init__(
        self, message: str | None, *, has: Collection[str] = (), answered: Collection[str] = ()
    ) -> None:
        self._message = message
        self._calls: dict[str, str] = dict.fromkeys(has, "")  # by id: the argument text so far
        self._tools: dict[str, str] = {}
        self._answered = frozenset(answered)
        self._open = ""  # the text or thought that was begun
        self._said: list[str] | None = None  # of somebody else's message
        self._approvals: dict[str, str] = {}  # by call: the request
        self._told: set[str] = set()  # requests that the client knows
        self._reason = "stop"
        self._cancelled: Mapping[str, JSON] | None = None
        self._goes_on = False  # the next step is the one that the client has

    def asked(self, call_id: str, request_id: str, *, known: bool) -> None:
        """An approval of a call was asked for; `known`: the client was told so before."""
        self._approvals[call_id] = request_id
        if known:
            self._told.add(request_id)

    def take(self, event: Event) -> list[Chunk]:
        """The parts that tell an event."""
        row = _ROWS.get(type(event))
        if row is None or event.subagent_run_id is not UNSET:
            return []
        made = row(self, event)
        self._goes_on = self._message is None and type(event) is agui.RunStarted
        return made

    # Rows

    def _started(self, _: agui.RunStarted) -> list[Chunk]:
        return [{"type": "start"} if self._message is None else {"type": "start", "messageId": self._message}]

    def _step(self, _: agui.StepStarted) -> list[Chunk]:
        return [] if self._goes_on else [{"type": "start-step"}]

    def _step_end(self, _: agui.StepFinished) -> list[Chunk]:
        return [{"type": "finish-step"}]

    def _begin(self, event: agui.TextMessageStart) -> list[Chunk]:
        self._said = None if event.role == "assistant" else []
        return []

    def _text(self, event: agui.TextMessageContent) -> list[Chunk]:
        if self._said is not None:
            self._said.append(event.delta)
            return []
        return self._told_piece("text", event.message_id, event)

    def _thought(self, event: agui.ReasoningMessageContent) -> list[Chunk]:
        return self._told_piece("reasoning", event.message_id, event)

    def _told_piece(self, kind: str, name: str, event: Event) -> list[Chunk]:
        """A part begins with its first piece: an empty message has none."""
        if self._open:
            return [_piece(event)]
        self._open = kind
        return [{"type": f"{kind}-start", "id": name}, _piece(event)]

    def _text_end(self, event: agui.TextMessageEnd | agui.ReasoningMessageEnd) -> list[Chunk]:
        if (said := self._said) is not None:  # a message of somebody else's has no place in an assistant's
            self._said = None
            return [note("message", {"id": event.message_id, "text": "".join(said)})]
        kind, self._open = self._open, ""
        return [{"type": f"{kind}-end", "id": event.message_id}] if kind else []

    def _call(self, event: agui.ToolCallStart) -> list[Chunk]:
        self._calls[event.tool_call_id] = ""
        self._tools[event.tool_call_id] = event.tool_call_name
        named = {"toolCallId": event.tool_call_id, "toolName": event.tool_call_name}
        return [{"type": "tool-input-start", **named}]

    def _arguments(self, event: agui.ToolCallArgs) -> list[Chunk]:
        self._calls[event.tool_call_id] += event.delta
        return [_piece(event)]

    def _call_end(self, event: agui.ToolCallEnd) -> list[Chunk]:
        text = self._calls[event.tool_call_id]
        named = {"toolCallId": event.tool_call_id, "toolName": self._tools[event.tool_call_id]}
        try:
            value = msgspec.json.decode(text or "{}")
        except (msgspec.DecodeError, UnicodeEncodeError):
            why = "the arguments are not JSON"
            return [{"type": "tool-input-error", **named, "input": text, "errorText": why}]
        return [{"type": "tool-input-available", **named, "input": value}]

    def _result(self, event: agui.ToolCallResult) -> list[Chunk]:
        name = event.tool_call_id
        if name not in self._calls or name in self._answered:
            return []  # a client fails over the result of a call that it does not know
        said = event.content if isinstance(event.content, str) else ""
        outcome = _outcome(event)
        request = self._approvals.get(name)
        made = [] if request is None else self._ask(request, name)
        if outcome == "refused" and request is not None:
            return [*made, {"type": "tool-output-denied", "toolCallId": name}]
        if outcome != "succeeded":
            text = said or "the call did not succeed"
            return [*made, {"type": "tool-output-error", "toolCallId": name, "errorText": text}]
        return [*made, {"type": "tool-output-available", "toolCallId": name, "output": _value(said)}]

    def _ask(self, request: str, call_id: str) -> list[Chunk]:
        if request in self._told:
            return []
        self._told.add(request)
        return [{"type": "tool-approval-request", "approvalId": request, "toolCallId": call_id}]

    def _state(self, event: agui.StateSnapshot) -> list[Chunk]:
        return [note("state", event.snapshot)]

    def _change(self, event: agui.StateDelta) -> list[Chunk]:
        return [note("state.delta", event.delta)]

    def _activity(self, event: agui.ActivitySnapshot) -> list[Chunk]:
        return [note(event.activity_type, event.content)]

    def _corrected(self, _: agui.MessagesSnapshot) -> list[Chunk]:
        """What was told last is no part of the conversation: nothing can be taken back here but by a replay."""
        return [note("corrected", {})]

    def _custom(self, event: agui.Custom) -> list[Chunk]:
        if (reason := _NOTES.get(event.name)) is not None:
            self._reason = reason
            return []
        if event.name == "pilothouse.cancelled":
            self._cancelled = event.value
            return []
        return [note(event.name, event.value)]

    # Ends

    def _finished(self, event: agui.RunFinished) -> list[Chunk]:
        if isinstance(event.outcome, agui.Interrupted):
            return [*self._requests(event.outcome.interrupts), _finish("tool-calls")]
        if (cancelled := self._cancelled) is not None:
            return [{"type": "abort", "reason": str(cancelled.get("reason") or "cancelled")}]
        if isinstance(event.outcome, agui.CancelledEnd):
            return [{"type": "abort", "reason": "cancelled"}]
        pending = event.outcome is UNSET or event.outcome.pending_tool_call_ids is not UNSET
        return [_finish("tool-calls" if pending else self._reason)]

    def _requests(self, interrupts: Collection[agui.Interrupt]) -> list[Chunk]:
        made: list[Chunk] = []
        for one in interrupts:
            call_id = one.tool_call_id
            if one.reason == "tool_call" and call_id is not UNSET and call_id in self._calls:
                made += self._ask(one.id, call_id)
            else:  # the protocol asks for nothing else
                made.append(note("request", msgspec.to_builtins(one)))
        return made

    def _failed(self, event: agui.RunError) -> list[Chunk]:
        return [{"type": "error", "errorText": event.message}]


def _finish(reason: str) -> Chunk:
    return {"type": "finish", "finishReason": reason}


def _outcome(event: agui.ToolCallResult) -> str:
    said = {} if event.metadata is UNSET else event.metadata.get("pilothouse", {})
    return str(said.get("outcome", "succeeded"))


def _value(text: str) -> JSON:
    """What a tool gave: an object or a list as such, everything else as its text."""
    if text[:1] in ("{", "["):
        try:
            value: JSON = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return text
        return value
    return text


_ROWS: Final[Mapping[type, Callable[[Translator, Any], list[Chunk]]]] = MappingProxyType(
    {
        agui.RunStarted: Translator._started,  # noqa: SLF001 - the class's own table
        agui.StepStarted: Translator._step,  # noqa: SLF001
        agui.StepFinished: Translator._step_end,  # noqa: SLF001
        agui.TextMessageStart: Translator._begin,  # noqa: SLF001
        agui.TextMessageContent: Translator._text,  # noqa: SLF001
        agui.TextMessageEnd: Translator._text_end,  # noqa: SLF001
        agui.ReasoningMessageContent: Translator._thought,  # noqa: SLF001
        agui.ReasoningMessageEnd: Translator._text_end,  # noqa: SLF001
        agui.ToolCallStart: Translator._call,  # noqa: SLF001
        agui.ToolCallArgs: Translator._arguments,  # noqa: SLF001
        agui.ToolCallEnd: Translator._call_end,  # noqa: SLF001
        agui.ToolCallResult: Translator._result,  # noqa: SLF001
        agui.StateSnapshot: Translator._state,  # noqa: SLF001
        agui.StateDelta: Translator._change,  # noqa: SLF001
        agui.ActivitySnapshot: Translator._activity,  # noqa: SLF001
        agui.MessagesSnapshot: Translator._corrected,  # noqa: SLF001
        agui.Custom: Translator._custom,  # noqa: SLF001
        agui.RunFinished: Translator._finished,  # noqa: SLF001
        agui.RunError: Translator._failed,  # noqa: SLF001
    }
)
"""What an event is here; one without a row (a span of reasoning, sealed reasoning, short forms) has no part."""


__all__ = ["DONE", "ENDS", "Chunk", "Translator", "UIFlow", "message_id", "note", "run_id_of", "written"]
