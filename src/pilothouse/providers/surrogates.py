r"""Halves of characters over deltas.

A JSON text may escape a character outside the basic plane as two surrogates, and a server may send them in two
deltas, with anything between them. Each told piece must be well-formed by itself, so a trailing half waits for the next
text of its kind, and so does the end of its block; one that stays alone becomes U+FFFD, and so does NUL, which some
stores refuse (PV-4, PV-13).

Only frames that needed the slow reading, or that hold the escape `\u0000`, can lead to such text: a decoder uses this
class from the first of them on.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ..core.unicode import LOST, clean, clean_json
from ..responses import (
    BlockEnded,
    ErrorInfo,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
)


class SurrogateMender:
    """Events in, well-formed events out."""

    def __init__(self) -> None:
        self._held: dict[tuple[type, int], tuple[str, TextDelta | ReasoningDelta | ToolCallDelta]] = {}
        self._ended: dict[
            int, BlockEnded
        ] = {}  # of text that ended with a half: the next text may have the other one

    def mend(self, events: list[ProviderEvent]) -> list[ProviderEvent]:
        """The same events with whole characters; what is held back comes with a later one."""
        out: list[ProviderEvent] = []
        for event in events:
            match event:
                case TextDelta() | ReasoningDelta():
                    if self._ended:
                        event = self._go_on(event, out)  # noqa: PLW2901
                    if text := self._join(event, event.text):
                        out.append(msgspec.structs.replace(event, text=text))
                case ToolCallDelta(args=str(args)):
                    joined = self._join(event, args)
                    out.append(clean_struct(msgspec.structs.replace(event, args=joined)))
                case ToolCallDelta() | ResponseStarted() | Notice():
                    out.append(clean_struct(event))
                case BlockEnded():
                    ended = clean_struct(event)
                    if any(key[1] == event.block and key[0] is not ToolCallDelta for key in self._held):
                        self._ended[event.block] = ended
                    else:
                        self._release(event.block, out)
                        out.append(ended)
                case StreamEnd():
                    self._release(None, out)
                    out.append(clean_struct(event))
                case _:
                    out.append(event)
        return out

    def _join(self, event: TextDelta | ReasoningDelta | ToolCallDelta, text: str) -> str:
        key = (type(event), event.block)
        if key in self._held:
            text = self._held.pop(key)[0] + text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._held[key] = (text[-1], event)
            text = text[:-1]
        return clean(text)

    def _go_on(
        self, event: TextDelta | ReasoningDelta, out: list[ProviderEvent]
    ) -> TextDelta | ReasoningDelta:
        """Text behind a block of its kind that ended with a half: if it begins with the other one, they meet here."""
        for block in list(self._ended):
            key = (type(event), block)
            if key in self._held:
                if "\udc00" <= event.text[:1] <= "\udfff":
                    half, _ = self._held.pop(key)
                    event = msgspec.structs.replace(event, text=half + event.text)
                self._release(block, out)
        return event

    def _release(self, block: int | None, out: list[ProviderEvent]) -> None:
        """Lets go of the halves of a block, or of all, that will find no partner any more, and of the ends behind them."""
        for key, (_, event) in list(self._held.items()):
            if block is None or key[1] == block:
                del self._held[key]
                if isinstance(event, ToolCallDelta):
                    out.append(clean_struct(msgspec.structs.replace(event, args=LOST)))
                else:
                    out.append(msgspec.structs.replace(event, text=LOST))
        out += [self._ended.pop(ended) for ended in list(self._ended) if block in (None, ended)]


S = TypeVar("S", bound=msgspec.Struct)


def clean_struct(event: S) -> S:
    """A copy of an event with all its texts cleaned."""
    changes = {}
    for name in event.__struct_fields__:
        value = getattr(event, name)
        if isinstance(value, ErrorInfo):
            changes[name] = clean_struct(value)
        elif isinstance(value, str | dict | list):
            changes[name] = clean_json(value)
    return msgspec.structs.replace(event, **changes)


__all__ = ["SurrogateMender", "clean_struct"]
