"""Text that was told but is not yet in a whole message: its offsets, and the fragments that are saved of it (RC-19)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import inf
from typing import Final

from msgspec.structs import force_setattr

from ..core.batch import Written
from ..events import (
    ArgumentsTold,
    MessageAdded,
    ModelAttemptEnded,
    PartialSaved,
    ReasoningTold,
    RunEnded,
    TextTold,
)

Told = TextTold | ReasoningTold | ArgumentsTold

ENDS = frozenset[type]({RunEnded, ModelAttemptEnded})
"""Facts in front of which the text that was told is saved (RC-19), unless they come with the message that has it."""

_NAMES = {TextTold: "text", ReasoningTold: "reasoning", ArgumentsTold: "arguments"}


class _Part:
    __slots__ = (
        "call_id", "index", "kind", "length", "mark", "message_id", "named", "pending", "saved", "tool", "type"
    )  # fmt: skip

    def __init__(self, told: Told, kind: str = "text") -> None:
        self.message_id = told.message_id
        self.type = type(told)
        self.kind = kind
        self.index = told.index
        self.call_id: str | None = None
        self.tool = ""
        if isinstance(told, ArgumentsTold):
            self.call_id, self.tool = told.call_id, told.tool
        self.length = 0  # characters told
        self.mark: float = (
            0  # of its length: from here on somebody has to look; 0 while it is not the current part
        )
        self.saved = 0  # characters saved
        self.named = False  # a call was named, and has no arguments yet: that is to be saved too
        self.pending: list[str] = []


NOBODY: Final = _Part(TextTold("", 0, ""))
"""A part that is never the current one."""


class Partials:
    """The streamed parts of one run's unfinished messages. Linear: a fragment is saved once, never a whole text."""

    __slots__ = ("_current", "_limit", "_parts")

    def __init__(self, limit: int) -> None:
        self._limit = limit  # of characters that may wait
        self._parts: dict[tuple[str, str, int], _Part] = {}
        self._current: _Part | None = None  # the part that grew last

    @property
    def pending_chars(self) -> int:
        """The characters that wait to be saved."""
        return sum([part.length - part.saved for part in self._parts.values()])

    @property
    def full(self) -> bool:
        """Whether somebody has to look at what waits."""
        return self._current is not None and self._current.length >= self._current.mark

    def add(self, told: Told) -> int:
        """Counts a piece and gives it its offset: whoever told it may have left that out. Returns its characters.

        Raises:
            TypeError: it is not made as it should be; nothing was counted.
        """
        part = self._current
        if (
            part is None
            or part.index != told.index
            or part.type is not type(told)
            or part.message_id != told.message_id
        ):
            part = self._find(told)
        text, length = told.text, part.length
        if type(text) is not str:
            raise TypeError(f"text is {type(text).__name__}, not str")
        if told.offset != length:
            # The piece was made for this one call and nobody else holds it: filling it in place saves a copy.
            force_setattr(told, "offset", length)
        if not text:
            part.named = length == 0
            return 0
        part.length = length + len(text)
        part.pending.append(text)
        return len(text)

    def text(self, message_id: str, index: int) -> _Part | None:
        """The current part, if it is that text. It may grow by itself while it stays below its mark."""
        part = self._current
        if part is None or part.type is not TextTold or part.index != index or part.message_id != message_id:
            return None
        return part

    def set_mark(self, *, saving: bool = False) -> None:
        """Somebody has to look when the first piece waits, and when too much does; while that is being saved, not again."""
        part, pending = self._current, self.pending_chars
        if part is not None:
            part.mark = inf if saving else part.length + self._limit - pending if pending else 0

    def leave(self) -> None:
        """There is no current part: none grows by itself."""
        if self._current is not None:
            self._current.mark = 0
            self._current = None

    def _find(self, told: Told) -> _Part:
        kind = _NAMES[type(told)]
        names = [told.message_id]
        if isinstance(told, ArgumentsTold):
            names += [told.call_id, told.tool]
        if type(told.index) is not int or any(type(name) is not str for name in names):
            raise TypeError(f"{kind} of message {told.message_id!r}, part {told.index!r}")
        key = (told.message_id, kind, told.index)
        part = self._parts.get(key)
        if part is None:
            part = self._parts[key] = _Part(told, kind)
        self.leave()
        self._current = part
        self.set_mark()
        return part

    def take(self, *, whole: Collection[str] = ()) -> list[PartialSaved]:
        """The fragments that are to be saved now; they count as saved from here on. `whole`: messages that need none."""
        if not self.pending_chars:
            return []
        out = []
        for part in self._parts.values():
            if (part.pending or part.named) and part.message_id not in whole:
                part.named, text = False, "".join(part.pending)
                place = (part.message_id, part.kind, part.index, part.saved)
                out.append(PartialSaved(*place, text, part.call_id, part.tool))  # type: ignore[arg-type]
                part.saved += len(text)
                part.pending.clear()
        self.set_mark()
        return out

    def left_by(self, drafts: Sequence[Written]) -> list[str] | None:
        """The messages that these facts, an end among them, make whole; None where that leaves no text behind."""
        whole = [draft.fact.message.id for draft, _ in drafts if type(draft.fact) is MessageAdded]
        for part in self._parts.values():
            if part.message_id not in whole:
                return whole
        return None

    def message_ids(self) -> set[str]:
        """The messages of which text is known here."""
        return {part.message_id for part in self._parts.values()}

    def drop(self, message_id: str) -> None:
        """The message is whole (or was discarded): its fragments are superseded."""
        for key in [key for key in self._parts if key[0] == message_id]:
            del self._parts[key]
        self.leave()
