"""Every call has one result, and every result a call: repair of a payload before it is sent (LP-40, LP-41).

The first net is the loop's, which writes one result for each call. This is the second: whatever the transcript holds
after a crash, a trim or an edit, what a provider is sent is valid. The transcript itself is never touched.

It sees what the dialect will send: ids as the dialect shortens them, messages that it would leave out as absent.
Results belong to a call by position, then by id: an id that is used again in a later turn is another call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from typing import Final

import msgspec
from msgspec import Struct

from ..messages import ArtifactRef, Context, Message, Part, Reasoning, Text, ToolCall, Value

MADE_TEXT: Final = "interrupted, outcome unknown: check before you repeat this call"
"""The result of a call whose own was never written."""


class WireRules(Struct, frozen=True):
    """What a dialect does to call ids: the characters it allows (a regular expression's class) and their number."""

    id_charset: str = "A-Za-z0-9_-"
    max_id_length: int = 64
    min_id_length: int = 1

    def wire_id(self, call_id: str) -> str:
        """The id as this dialect sends it: itself where it may, else shortened to what tells it apart."""
        if self.min_id_length <= len(call_id) <= self.max_id_length and _allowed(self.id_charset).fullmatch(
            call_id
        ):
            return call_id
        kept = _refused(self.id_charset).sub("", call_id)
        mark = sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()
        made = kept[: max(0, self.max_id_length - 8)] + mark[:8]
        return (
            made if len(made) >= self.min_id_length else made + mark[8 : 8 + self.min_id_length - len(made)]
        )[: self.max_id_length]


ANY_ID: Final = WireRules()


class Repair(Value):
    """What was done to a payload. The words are call ids as the transcript has them.

    Attributes:
        made: calls that got a made result.
        dropped: results without a call.
        repeated: calls with more than one result; the first was kept.
        moved: results that stood away from their call.
        renamed: pairs of an id that was used before and the one it got.
        cut: messages left out because the list began inside a tool round.
    """

    made: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    cut: int = 0

    @property
    def note(self) -> str | None:
        """What the model should know of it, once a run: which results are not there any more."""
        if not self.dropped:
            return None
        return (
            "[Note: results without a matching tool call were left out of this conversation: "
            f"{', '.join(self.dropped)}.]"
        )


class Pairing:
    """Repairs the payloads of one run.

    It remembers how far an append-only list was found clean, so that a long history is not read again each turn; a
    list that is another object, or that was changed before that place, is read from its beginning.
    """

    def __init__(self, wire: WireRules = ANY_ID) -> None:
        self.wire = wire
        self._list: Sequence[Message] | None = None
        self._clean = 0  # that many messages are clean and end at a safe border
        self._border: Message | None = None  # the last of them
        self._used: set[str] = set()

    def repair(self, messages: Sequence[Message]) -> tuple[Sequence[Message], Repair | None]:
        """The payload that can be sent, and what was done to it; a clean one comes back as it is."""
        if self._is_clean(messages):
            return messages, None
        return _Repairing(self.wire).run(messages)

    def _is_clean(self, messages: Sequence[Message]) -> bool:
        start = self._clean
        if (
            messages is not self._list
            or not 0 < start <= len(messages)
            or messages[start - 1] is not self._border
        ):
            start, self._used = 0, set()
        self._list, self._clean, self._border = messages, start, self._border if start else None
        pending: list[str] = []  # ids since the border
        wanted: list[str] = []  # of the results that come next, in reverse
        for at in range(start, len(messages)):
            message = messages[at]
            if message.role == "tool":
                if not wanted or self.wire.wire_id(message.call_id or "") != wanted.pop():
                    return False
            elif wanted:
                if not is_blank(message):
                    return False
            elif message.role == "assistant" and (calls := message.tool_calls) and not is_blank(message):
                ids = [self.wire.wire_id(call.call_id) for call in calls]
                pending += ids
                if (
                    len({*pending}) < len(pending)
                    or not self._used.isdisjoint(ids)
                    or not all(c.tool for c in calls)
                ):
                    return False
                wanted = ids[::-1]
            if not wanted:
                self._used.update(pending)
                pending = []
                self._clean, self._border = at + 1, message
        return not wanted


def repair(messages: Sequence[Message], wire: WireRules = ANY_ID) -> tuple[Sequence[Message], Repair | None]:
    """One payload, repaired: always valid, the same object when it was clean, the same result for the same input."""
    return Pairing(wire).repair(messages)


def with_note(messages: Sequence[Message], note: str) -> list[Message]:
    """A copy in which the last user message ends with a note."""
    out = list(messages)
    for at in range(len(out) - 1, -1, -1):
        if out[at].role == "user":
            out[at] = msgspec.structs.replace(out[at], parts=(*out[at].parts, Context(note)))
            return out
    return [*out, Message("pairing-note", "user", (Context(note),))]


def is_blank(message: Message) -> bool:
    """Whether no dialect writes the message: no call with a name, no media, no text but white space.

    Reasoning alone is never sent, but where the provider paused and wants its blocks back. A tool's result is never
    blank: silence is an answer.
    """
    if message.role == "tool":
        return False
    for part in message.parts:
        if _is_written(part):
            return False
    paused = message.stop_reason == "pause_turn"
    return not (
        paused and any(isinstance(part, Reasoning) and part.raw is not None for part in message.parts)
    )


def _is_written(part: Part) -> bool:
    if isinstance(part, Text | Context):
        return bool(part.text) and not part.text.isspace()
    if isinstance(part, ToolCall):
        return bool(part.tool)
    return isinstance(part, ArtifactRef) or not isinstance(part, Reasoning)


class _Slot:
    """A call and the place for its result."""

    __slots__ = ("call", "call_id", "group", "result")

    def __init__(self, call: ToolCall, group: int) -> None:
        self.call = call
        self.group = group  # the position of its message
        self.call_id = call.call_id  # what it is called in the payload
        self.result: Message | None = None


class _Repairing:
    """One repair; an object because its parts share what they found."""

    def __init__(self, wire: WireRules) -> None:
        self.wire = wire
        self.slots: dict[int, list[_Slot]] = {}
        self.by_id: dict[str, list[_Slot]] = {}
        self.made: list[str] = []
        self.dropped: list[str] = []
        self.repeated: list[str] = []
        self.moved: list[str] = []
        self.renamed: list[tuple[str, str]] = []

    def run(self, messages: Sequence[Message]) -> tuple[list[Message], Repair | None]:
        kept = _from_safe_border(messages)
        self._pair(kept)
        self._rename()
        out = self._write(kept)
        done = Repair(
            tuple(self.made),
            tuple(self.dropped),
            tuple(self.repeated),
            tuple(self.moved),
            tuple(self.renamed),
            len(messages) - len(kept),
        )
        return out, done

    def _pair(self, messages: Sequence[Message]) -> None:
        last = -1  # the position of the last message with calls
        apart = False  # another message came since
        for at, message in enumerate(messages):
            if message.role == "assistant":
                slots = [_Slot(call, at) for call in message.tool_calls if call.tool]
                for slot in slots:
                    self.by_id.setdefault(self.wire.wire_id(slot.call_id), []).append(slot)
                if slots:
                    self.slots[at] = slots
                    last, apart = at, False
            if message.role == "tool":
                self._place(message, last, apart=apart)
            elif at != last and not is_blank(message):
                apart = True

    def _place(self, result: Message, last: int, *, apart: bool) -> None:
        call_id = result.call_id or ""
        known = self.by_id.get(self.wire.wire_id(call_id), [])
        free = [slot for slot in known if slot.result is None]
        if not free:
            (self.repeated if known else self.dropped).append(call_id)
            return
        group = free[-1].group
        slot = next(slot for slot in free if slot.group == group)
        slot.result = result
        if apart or group != last:
            self.moved.append(call_id)

    def _rename(self) -> None:
        """Gives a call another id if its own was used before. Only what stands before counts: the prefix is stable."""
        used: set[str] = set()
        for slots in self.slots.values():
            for slot in slots:
                count = 1
                while self.wire.wire_id(slot.call_id) in used:
                    count += 1
                    slot.call_id = f"{slot.call.call_id}_{count}"
                used.add(self.wire.wire_id(slot.call_id))
                if count > 1:
                    self.renamed.append((slot.call.call_id, slot.call_id))

    def _write(self, messages: Sequence[Message]) -> list[Message]:
        out: list[Message] = []
        for at, message in enumerate(messages):
            if message.role == "tool":
                continue
            slots = self.slots.get(at, [])
            out.append(_with_calls(message, slots) if message.role == "assistant" else message)
            out.extend([self._result(slot) for slot in slots])
        return out

    def _result(self, slot: _Slot) -> Message:
        if slot.result is None:
            self.made.append(slot.call.call_id)
            return Message(
                f"{slot.call_id}-made", "tool", (Text(MADE_TEXT),), call_id=slot.call_id, is_error=True
            )
        if slot.result.call_id == slot.call_id:
            return slot.result
        return msgspec.structs.replace(slot.result, call_id=slot.call_id)


def _with_calls(message: Message, slots: list[_Slot]) -> Message:
    """The message with its calls as the slots have them; one without a name is never replayed (PV-5)."""
    calls = message.tool_calls
    if len(calls) == len(slots) and all(slot.call_id == slot.call.call_id for slot in slots):
        return message
    renamed = iter(slots)
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, ToolCall):
            parts.append(part)
        elif part.tool:
            slot = next(renamed)
            same = slot.call_id == part.call_id
            parts.append(part if same else msgspec.structs.replace(part, call_id=slot.call_id))
    return msgspec.structs.replace(message, parts=tuple(parts))


def _from_safe_border(messages: Sequence[Message]) -> Sequence[Message]:
    """Without the rest of a tool round that the list begins in; system messages before it stay."""
    first = next((at for at, m in enumerate(messages) if m.role != "system" and not is_blank(m)), None)
    if first is None or messages[first].role != "tool":
        return messages
    rest = range(first, len(messages))
    border = next((at for at in rest if messages[at].role == "user" and not is_blank(messages[at])), None)
    if border is None:  # nothing but one long round: keep what can be kept
        border = next((at for at in rest if messages[at].role != "tool"), len(messages))
    return [*messages[:first], *messages[border:]]


@cache
def _allowed(charset: str) -> re.Pattern[str]:
    return re.compile(f"[{charset}]*")


@cache
def _refused(charset: str) -> re.Pattern[str]:
    return re.compile(f"[^{charset}]")


__all__ = ["ANY_ID", "MADE_TEXT", "Pairing", "Repair", "WireRules", "is_blank", "repair", "with_note"]
