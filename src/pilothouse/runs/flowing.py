"""Text that flows: the pieces of one part of a message, each told as a delta, in one frame (RC-17 … RC-20).

`LiveRun.tell` takes anything, and looks each time what it is and which part it belongs to. Nearly all that is told are pieces
of the text that was told last: for them this does the same in a third of the time, and hands over to `tell` what is not one.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..events import TextTold
from .partials import NOBODY

if TYPE_CHECKING:
    from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")


class Flow:
    """One text of a run that is told: `say` takes its pieces, as `LiveRun.tell` takes each of them as a `TextTold`."""

    __slots__ = ("_index", "_live", "_message_id", "_observers", "_part", "_partials", "_ring")

    def __init__(self, live: LiveRun, message_id: str, index: int) -> None:
        self._live = live
        self._message_id = message_id
        self._index = index
        self._partials = live.partials
        self._part = NOBODY  # the part that it is, once anything was said
        self._ring = live.ring
        self._observers = live.observers

    def say(self, text: str) -> None:
        """Publishes a piece; it also waits to be saved."""
        partials, part = self._partials, self._part
        if partials.current is not part or type(text) is not str or not text:
            self._live.tell(TextTold(self._message_id, self._index, text))
            self._part = partials.text(self._message_id, self._index) or NOBODY
            return
        offset = part.length
        part.length = length = offset + len(text)
        part.pending.append(text)
        if length >= partials.mark:
            self._live.look(length - offset)
        told = TextTold(part.message_id, part.index, text, offset)
        delta = self._ring.flow(told, 200 + length - offset)
        for observer in self._observers:
            try:
                observer(delta)
            except Exception:
                logger.exception("an observer of run %s failed", delta.run_id)


__all__ = ["Flow"]
