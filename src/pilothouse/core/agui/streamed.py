"""One assistant message on its way to a reader: its parts one after the other, whichever source has the text first.

Text of a part comes from live deltas, from saved fragments and from the final message; each piece says at which
character it begins, so what is known already is dropped and a piece beyond what is known is not taken (RC-20, SV-46).
Parts are numbered in the order in which they appeared, counting what a reader can see: that number is the PART of a
position. One part is open at a time. A text or a thought is over when another part begins; a call is, when its
arguments are whole; and everything is, when the message is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from ...messages import Message, Reasoning, Text, ToolCall
from . import events as agui
from .content import arguments_text, reasoning_id, visible
from .events import Event
from .position import DONE, Position

Kind: TypeAlias = Literal["text", "reasoning", "arguments"]

Emit: TypeAlias = Callable[[Event, int, int, bool, int], None]
"""Takes an event and its place: part, offset, ended, nth."""


class Part:
    """A part and how far it was sent.

    Attributes:
        known: characters whose text is known; `pieces` holds them from the first on.
        sent: characters that the reader has; it may be ahead of `known` after a resumption.
        opened, closed: frames of the opening and closing that the reader has, `DONE` for all.
        whole: nothing more of it will come.
    """

    __slots__ = (
        "call_id", "closed", "index", "kind", "known", "name", "opened", "pieces", "sent", "tool", "whole"
    )  # fmt: skip

    def __init__(self, kind: Kind, index: int, name: str, call_id: str, tool: str) -> None:
        self.kind = kind
        self.index = index
        self.name = name  # of the message, or of the reasoning message
        self.call_id = call_id
        self.tool = tool
        self.pieces: list[str] = []
        self.known = 0
        self.sent = 0
        self.opened = 0
        self.closed = 0
        self.whole = False

    @property
    def text(self) -> str:
        """All that is known of it."""
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def take(self, offset: int, text: str) -> bool:
        """Takes a piece as far as it goes on from what is known; False if there is a gap before it."""
        if offset > self.known:
            return False
        if fresh := text[self.known - offset :]:
            self.pieces.append(fresh)
            self.known += len(fresh)
        return True


class _Shape(NamedTuple):
    """The events of a kind of part."""

    opening: Callable[[Part, str], tuple[Event, ...]]
    content: Callable[[Part, str], Event]
    closing: Callable[[Part], tuple[Event, ...]]


_SHAPES: Final[Mapping[Kind, _Shape]] = MappingProxyType(
    {
        "text": _Shape(
            lambda part, _: (agui.TextMessageStart(part.name, "assistant"),),
            lambda part, text: agui.TextMessageContent(part.name, text),
            lambda part: (agui.TextMessageEnd(part.name),),
        ),
        "reasoning": _Shape(
            lambda part, _: (
                agui.ReasoningStart(part.name),
                agui.ReasoningMessageStart(part.name, "reasoning"),
            ),
            lambda part, text: agui.ReasoningMessageContent(part.name, text),
            lambda part: (agui.ReasoningMessageEnd(part.name), agui.ReasoningEnd(part.name)),
        ),
        "arguments": _Shape(
            lambda part, message_id: (agui.ToolCallStart(part.call_id, part.tool, message_id),),
            lambda part, text: agui.ToolCallArgs(part.call_id, text),
            lambda part: (agui.ToolCallEnd(part.call_id),),
        ),
    }
)


class Streamed:
    """A message, part by part.

    Attributes:
        since: the fact behind which its text is told; 0 if no fact says so.
        recorded: the journal knows that it is being made.
        chain: names the unbroken sequence of deltas in which none of its pieces is missing.
        at: number of the part that is being sent.
    """

    __slots__ = ("_by_index", "_from", "at", "chain", "id", "parts", "recorded", "since")

    def __init__(self, message_id: str, since: int) -> None:
        self.id = message_id
        self.since = since
        self.recorded = False
        self.chain = 0
        self.parts: list[Part] = []
        self.at = 0
        self._by_index: dict[int, Part] = {}
        self._from: Position | None = None

    # What is known

    def goes_on(self, index: int, offset: int) -> bool:
        """Whether a piece goes on right behind all that is known.

        Then nothing that was told before it is missing: fragments hold all text that was told before them, and parts
        begin one after the other.
        """
        if not self.parts:
            return False
        last = self.parts[-1]
        return last.index == index and last.known == offset > 0

    def part(self, kind: Kind, index: int, call_id: str = "", tool: str = "") -> Part | None:
        """The part with that index; made if it is the next one, None if it does not fit what is known."""
        part = self._by_index.get(index)
        if part is None:
            if self.parts and index < self.parts[-1].index:
                return None
            part = self._add(index, kind, call_id, tool)
        if part.kind != kind:
            return None
        if tool and not part.tool:
            part.tool = tool
        return part

    def _add(self, index: int, kind: Kind, call_id: str, tool: str) -> Part:
        number = len(self.parts)
        name = reasoning_id(self.id, number) if kind == "reasoning" else self.id
        part = Part(kind, index, name, call_id, tool)
        self.parts.append(part)
        self._by_index[index] = part
        place = self._from
        if place is not None and number == place.part:
            part.sent = place.offset
            part.opened = place.nth if place.offset == 0 and not place.ended else DONE
            part.closed = place.nth if place.ended else 0
        return part

    def go_on_from(self, place: Position) -> None:
        """The reader has everything up to this place; nothing may have been sent by us yet."""
        self._from = place
        self.at = place.part
        known, self.parts, self._by_index = self.parts, [], {}
        for part in known:
            twin = self._add(part.index, part.kind, part.call_id, part.tool)
            twin.pieces, twin.known = part.pieces, part.known

    def sent_all(self) -> None:
        """The reader has everything that is known."""
        self.at = len(self.parts)

    @property
    def begun(self) -> bool:
        """Whether the reader has anything of it."""
        if self.at > 0 or self._from is not None:
            return True
        return bool(self.parts) and self.parts[0].opened > 0

    @property
    def place(self) -> tuple[int, int, bool]:
        """Part, offset, ended: how far the reader is; part -1 if there is nothing yet."""
        at, place = self.at, self._from
        if at < len(self.parts) and self.parts[at].opened:
            return at, self.parts[at].sent, self.parts[at].closed == DONE
        if place is not None and place.part == at:  # resumed in a part that is not known yet
            return place.part, place.offset, place.ended
        return (at - 1, self.parts[at - 1].sent, True) if at > 0 else (-1, 0, False)

    # Sending

    def advance(self, emit: Emit, *, over: bool = False) -> None:
        """Sends what can be sent; `over`: nothing more of the message will come."""
        while self.at < len(self.parts):
            part = self.parts[self.at]
            last = self.at + 1 == len(self.parts)
            whole = over or part.whole or (not last and _ends_with_another(part))
            if not self._send(part, emit, whole=whole):
                return
            self.at += 1

    def _send(self, part: Part, emit: Emit, *, whole: bool) -> bool:
        """Sends a part as far as it is known; True when it is closed."""
        shape, number = _SHAPES[part.kind], self.at
        fresh = part.known > part.sent and not part.closed
        if part.opened != DONE:
            if part.kind == "arguments" and not (part.tool and (fresh or part.whole)):
                return whole  # interrupted before anything of it was known: it is not announced
            # A part opens together with its first piece, so no fact can fall between them.
            if not (fresh or whole):
                return False
            opening = shape.opening(part, self.id)
            for nth, event in enumerate(opening, 1):
                if nth > part.opened:
                    emit(event, number, part.sent, False, nth)
            part.opened = DONE
        if fresh:
            text = part.text[part.sent :] if part.sent else part.text
            part.sent = part.known
            emit(shape.content(part, text), number, part.sent, False, DONE)
        if not whole:
            return False
        if part.closed != DONE:
            closing = shape.closing(part)
            for nth, event in enumerate(closing, 1):
                if nth > part.closed:
                    emit(event, number, part.sent, True, DONE if nth == len(closing) else nth)
            part.closed = DONE
        return True

    def flowing(self) -> tuple[Part, Event] | None:
        """The part whose text goes on, with a content event without text, if all that is known of it was sent."""
        if self.at >= len(self.parts):
            return None
        part = self.parts[self.at]
        if part.opened != DONE or part.closed or part.known != part.sent or self.at + 1 != len(self.parts):
            return None
        return part, _SHAPES[part.kind].content(part, "")

    def finish(self, message: Message) -> bool:
        """Takes the final message; False if it is not an extension of what was sent."""
        fits = True
        number = -1
        for number, final in enumerate(visible(message)):
            text = arguments_text(final) if isinstance(final, ToolCall) else getattr(final, "text", "")
            if number < len(self.parts):
                part = self.parts[number]
                if not _extends(part, final, text, closed=number < self.at or part.closed > 0):
                    fits = False
                    break
                if isinstance(final, ToolCall):
                    part.tool = final.tool
            else:
                index = self.parts[-1].index + 1 if self.parts else 0
                part = self._add(index, *_kind(final))
            part.pieces, part.known, part.whole = [text], len(text), True
        return fits and number + 1 >= max(len(self.parts), self.at)


def _ends_with_another(part: Part) -> bool:
    """Whether the beginning of another part proves that this one is whole.

    Calls may be told interleaved; then the later one waits until the arguments of the earlier are a whole object.
    """
    if part.kind != "arguments":
        return True
    try:
        return isinstance(msgspec.json.decode(part.text), dict)
    except (msgspec.DecodeError, UnicodeError):
        return False


def _kind(part: object) -> tuple[Kind, str, str]:
    if isinstance(part, ToolCall):
        return "arguments", part.call_id, part.tool
    return ("reasoning" if isinstance(part, Reasoning) else "text"), "", ""


def _extends(part: Part, final: object, text: str, *, closed: bool) -> bool:
    """Whether the final text goes on from what was sent; nothing can go on behind a closed part."""
    if isinstance(final, ToolCall):
        if part.kind != "arguments" or part.call_id != final.call_id:
            return False
    elif part.kind != ("text" if isinstance(final, Text) else "reasoning"):
        return False
    if not text.startswith(part.text):
        return False
    return len(text) == part.sent if closed and part.sent else len(text) >= part.sent


__all__ = ["Kind", "Part", "Streamed"]
