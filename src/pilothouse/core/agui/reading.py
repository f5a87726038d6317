"""Bytes of an AG-UI stream to events that are legal where they stand (AG-191 … AG-195).

Four steps, each for itself: frames (`core/sse`), old names made new, short forms (`*_CHUNK`) made long, and the
verifier. `Reader` puts them together and repairs, where it was told to, what can be repaired without guessing.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET

from ..sse import Frame, FrameTooLong, SSEReader
from . import events as agui
from .events import Event
from .verify import Phase, Verifier, Violation

logger = logging.getLogger("pilothouse.agui")

OnViolation: TypeAlias = Literal["fail", "repair"]

MAX_FRAME_BYTES: Final = 10 * 1024 * 1024


class ProtocolFault(ValueError):
    """What was read is no legal AG-UI; `data` is the offending frame or event."""

    def __init__(self, why: str, data: object = None) -> None:
        self.why, self.data = why, data
        super().__init__(why)


class TooLarge(ProtocolFault):
    """More than a limit admits."""


class Arrived(NamedTuple):
    """An event, and the id of the frame that brought it; empty where it had none of its own."""

    event: Event
    id: str


# Old names


class Translator:
    """Names of before 1.0. They had no ids: each span and message gets one here."""

    def __init__(self) -> None:
        self._spans = 0
        self._inside = False

    def __call__(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The event under its new name; None if it is not known under any."""
        kind = body.get("type")
        new = _OLD_NAMES.get(kind) if isinstance(kind, str) else None
        if new is None:
            return None
        if new == "REASONING_START" or (new == _START and not self._inside):
            self._spans += 1
        if new in ("REASONING_START", "REASONING_END"):
            self._inside = new == "REASONING_START"
        name = str(body.get("messageId") or f"thinking-{self._spans}")
        return {**body, "type": new, "messageId": name, **({"role": "reasoning"} if new == _START else {})}


_START: Final = "REASONING_MESSAGE_START"

_OLD_NAMES: Final = MappingProxyType(
    {
        "THINKING_START": "REASONING_START",
        "THINKING_END": "REASONING_END",
        "THINKING_TEXT_MESSAGE_START": _START,
        "THINKING_TEXT_MESSAGE_CONTENT": "REASONING_MESSAGE_CONTENT",
        "THINKING_TEXT_MESSAGE_END": "REASONING_MESSAGE_END",
    }
)


# Short forms


class Lanes:
    """Makes START, CONTENT, END of chunks. One lane an owner: it closes at another's start, a snapshot or the finish."""

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[str, str]] = {}  # owner -> (kind, id)

    def expand(self, event: Event) -> Iterator[Event]:
        """What the event stands for.

        Raises:
            ProtocolFault: the first chunk of a lane does not say which message or call it belongs to.
        """
        owner = "" if event.subagent_run_id is UNSET else event.subagent_run_id
        make = _CHUNKS.get(type(event))
        if make is not None:
            yield from make(self, event, owner)
            return
        lane = self._lanes.get(owner)
        if lane is not None and (type(event), getattr(event, _ID_FIELDS.get(lane[0], ""), None)) == (
            _ENDS[lane[0]],
            lane[1],
        ):
            del self._lanes[owner]
        elif event.type in _CLOSING:
            yield from self.close(None if event.type in _CLOSING_ALL else owner)
        yield event

    def close(self, owner: str | None = None) -> Iterator[Event]:
        """Ends the lane of an owner, or all."""
        for name in [owner] if owner is not None else list(self._lanes):
            lane = self._lanes.pop(name, None)
            if lane is not None:
                yield _ENDS[lane[0]](**{_ID_FIELDS[lane[0]]: lane[1]}, subagent_run_id=name or UNSET)

    def _lane(self, owner: str, kind: str, given: Any, what: str) -> tuple[str, bool]:
        """The id of the lane that a chunk belongs to, and whether it begins one."""
        lane = self._lanes.get(owner)
        if lane is not None and lane[0] == kind and given in (UNSET, lane[1]):
            return lane[1], False
        if given is UNSET:
            raise ProtocolFault(f"the first chunk of a {what} needs its id")
        return str(given), True

    def _text(self, event: agui.TextMessageChunk, owner: str) -> Iterator[Event]:
        name, begins = self._lane(owner, "text", event.message_id, "text message")
        if begins:
            yield from self.close(owner)
            yield agui.TextMessageStart(name, event.role, event.name, subagent_run_id=event.subagent_run_id)
            self._lanes[owner] = ("text", name)
        if event.delta:
            yield agui.TextMessageContent(name, event.delta, subagent_run_id=event.subagent_run_id)

    def _call(self, event: agui.ToolCallChunk, owner: str) -> Iterator[Event]:
        name, begins = self._lane(owner, "call", event.tool_call_id, "tool call")
        if begins:
            if event.tool_call_name is UNSET:
                raise ProtocolFault("the first chunk of a tool call needs its name", event)
            yield from self.close(owner)
            yield agui.ToolCallStart(
                name, event.tool_call_name, event.parent_message_id, subagent_run_id=event.subagent_run_id
            )
            self._lanes[owner] = ("call", name)
        if event.delta:
            yield agui.ToolCallArgs(name, event.delta, subagent_run_id=event.subagent_run_id)

    def _reasoning(self, event: agui.ReasoningMessageChunk, owner: str) -> Iterator[Event]:
        name, begins = self._lane(owner, "reasoning", event.message_id, "reasoning message")
        if begins:
            yield from self.close(owner)
            yield agui.ReasoningMessageStart(name, "reasoning", subagent_run_id=event.subagent_run_id)
            self._lanes[owner] = ("reasoning", name)
        if event.delta == "":  # a closing chunk, as the reference client has it
            yield from self.close(owner)
        elif event.delta:
            yield agui.ReasoningMessageContent(name, event.delta, subagent_run_id=event.subagent_run_id)


_CHUNKS: Final[dict[type, Any]] = {
    agui.TextMessageChunk: Lanes._text,  # noqa: SLF001 - the class's own table
    agui.ToolCallChunk: Lanes._call,  # noqa: SLF001
    agui.ReasoningMessageChunk: Lanes._reasoning,  # noqa: SLF001
}
_ENDS: Final[dict[str, Any]] = {
    "text": agui.TextMessageEnd,
    "call": agui.ToolCallEnd,
    "reasoning": agui.ReasoningMessageEnd,
}
_ID_FIELDS: Final = {"text": "message_id", "call": "tool_call_id", "reasoning": "message_id"}
_CLOSING_ALL: Final = frozenset({"MESSAGES_SNAPSHOT", "RUN_FINISHED", "RUN_ERROR", "RUN_STARTED"})
_CLOSING: Final = _CLOSING_ALL | {
    "TEXT_MESSAGE_START",
    "TOOL_CALL_START",
    "TOOL_CALL_RESULT",
    "REASONING_START",
    "REASONING_MESSAGE_START",
    "REASONING_END",
    "STATE_SNAPSHOT",
    "STEP_STARTED",
    "STEP_FINISHED",
    "SUBAGENT_FINISHED",
    "SUBAGENT_ERROR",
}


# All together


class Reader:
    """Reads one connection after another of one run: what was read before a reconnection counts.

    Attributes:
        last_id: id of the last frame that had one: what a reconnection tells the server.
        seen: whether any event was read.
    """

    def __init__(self, *, on_violation: OnViolation = "fail", max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.last_id = ""
        self.seen = False
        self._repair = on_violation == "repair"
        self._limit = max_frame_bytes
        self._translate = Translator()
        self._lanes = Lanes()
        self._verifier = Verifier()
        self._ids: dict[str, None] = {}
        self._run_id = ""
        self.reconnect()

    def reconnect(self) -> None:
        """Another connection: its frames are read from their first byte; frames that were read are dropped."""
        self._sse = SSEReader(max_frame_bytes=self._limit)
        self._frame_id = ""

    @property
    def phase(self) -> Phase:
        """Where the stream is."""
        return self._verifier.phase

    @property
    def retry_ms(self) -> int | None:
        """How long the server wants a reconnection to wait."""
        return self._sse.retry_ms

    def feed(self, chunk: bytes) -> Iterator[Arrived]:
        """Takes the next bytes; gives the events that they completed, each verified when it is taken.

        Raises:
            ProtocolFault: nothing can be read after it.
        """
        try:
            frames = self._sse.feed(chunk)
        except FrameTooLong as error:
            raise TooLarge(str(error)) from error
        for frame in frames:
            yield from self._frame(frame)

    def finish(self) -> Iterator[Arrived]:
        """A last frame that the end of the bytes cut off, if it is whole."""
        for frame in self._sse.finish():
            try:
                yield from self._frame(frame)
            except ProtocolFault as error:
                logger.debug("a frame was cut: %s", error)

    def _frame(self, frame: Frame) -> Iterator[Arrived]:
        own = frame.id if frame.id != self._frame_id else ""
        self._frame_id = frame.id
        if len(frame.data) > self._limit:
            raise TooLarge(f"a frame of more than {self._limit} bytes")
        event = self._event(frame.data)
        if own:
            if isinstance(event, agui.RunStarted) and event.run_id == self._run_id:
                self._ids.clear()  # the server tells the run again from its start
            elif own in self._ids:
                return
            self._remember(own)
        if event is None:
            return
        self.seen = True
        for item in self._verified(event):
            yield Arrived(item, own)

    def _remember(self, own: str) -> None:
        self._ids[own] = None
        self.last_id = own
        if len(self._ids) > 4096:
            del self._ids[next(iter(self._ids))]

    def _event(self, data: bytes) -> Event | None:
        """The event of a frame; None for one whose type is not known."""
        try:
            event = agui.decode(data)
        except msgspec.DecodeError as error:
            return self._odd(data, error)
        if event is None:
            return self._old(data)
        return event

    def _old(self, data: bytes) -> Event | None:
        body = self._translate(msgspec.json.decode(data))
        if body is None:
            return None
        try:
            event: Event = msgspec.convert(body, agui.AnyEvent)
        except msgspec.ValidationError as error:
            raise ProtocolFault(f"{body['type']}: {error}", body) from error
        return event

    def _odd(self, data: bytes, error: Exception) -> Event | None:
        """A frame that is no event as it stands."""
        try:
            body = msgspec.json.decode(data)
        except msgspec.DecodeError:
            raise ProtocolFault("a frame that is no JSON", data[:200]) from error
        if not isinstance(body, dict):
            raise ProtocolFault("a frame that is no JSON object", data[:200]) from error
        kind = body.get("type")
        outcome = body.get("outcome")
        if kind == "RUN_FINISHED" and isinstance(outcome, dict):
            told = outcome.get("type")
            if isinstance(told, str) and told not in ("success", "interrupt", "cancelled"):
                return agui.RunError(
                    f"the run ended in a way that is not known here: {told}", "outcome_unknown"
                )
        if self._repair:
            try:
                event: Event = msgspec.convert(_without_nulls(body), agui.AnyEvent)
            except msgspec.ValidationError:
                pass
            else:
                logger.warning("%s has null for a field that may be absent: left out", kind)
                return event
        raise ProtocolFault(f"{kind or 'a frame without a type'}: {error}", body) from error

    def _verified(self, event: Event) -> Iterator[Event]:
        if isinstance(event, agui.RunStarted):
            again = self.phase is Phase.OPEN and event.run_id == self._run_id
            if again and (self._ids or self._repair):  # everything that was open is void
                self._verifier.phase = Phase.FINISHED
                self._lanes = Lanes()
                if not self._ids:
                    logger.warning("repaired: RUN_STARTED twice for run %s", event.run_id)
            self._run_id = event.run_id
        for item in self._lanes.expand(event):
            yield from self._checked(item)

    def _checked(self, event: Event) -> Iterator[Event]:
        try:
            self._verifier.check(event)
        except Violation as error:
            for item in self._mended(event, error):
                self._verifier.check(item)
                yield item
        else:
            yield event

    def _mended(self, event: Event, error: Violation) -> list[Event]:
        """The event with what was missing before it.

        Raises:
            ProtocolFault: it is not to be repaired, or cannot be without guessing.
        """
        before: list[Event] = []
        if self._repair:
            if isinstance(event, agui.RunFinished) and self._verifier.phase is Phase.OPEN:
                before = list(self._verifier.closings())
            elif (start := _missing_start(event)) is not None and "is not open" in error.why:
                before = [start]
        if not before:
            raise ProtocolFault(str(error), event) from error
        logger.warning("repaired: %s", error)
        return [*before, event]


def _missing_start(event: Event) -> Event | None:
    """The start that content without one lacks."""
    owner = event.subagent_run_id
    if isinstance(event, agui.TextMessageContent):
        return agui.TextMessageStart(event.message_id, "assistant", subagent_run_id=owner)
    if isinstance(event, agui.ReasoningMessageContent):
        return agui.ReasoningMessageStart(event.message_id, "reasoning", subagent_run_id=owner)
    return None


def _without_nulls(body: dict[str, Any]) -> dict[str, Any]:
    keep = {"value", "snapshot", "event", "result"}
    return {name: value for name, value in body.items() if value is not None or name in keep}


__all__ = ["Arrived", "Lanes", "OnViolation", "ProtocolFault", "Reader", "TooLarge", "Translator"]
