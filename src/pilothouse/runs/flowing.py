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

    __slots__ = ("_index", "_live", "_message_id", "_observers", "_part", "_ring")

    def __init__(self, live: LiveRun, message_id: str, index: int) -> None:
        self._live = live
        self._message_id = message_id
        self._index = index
        self._part = NOBODY  # the part that it is, once anything was said
        self._ring = live.ring
        self._observers = live.observers

    def say(self, text: str) -> None:
        """Publishes a piece; it also waits to be saved.

        Raises:
            TypeError: it is no text.
        """
        part = self._part
        if type(text) is not str or not text or (length := part.length + len(text)) >= part.mark:
            if not isinstance(text, str):
                raise TypeError(f"a piece of text is {type(text).__name__}")
            self._live.tell(TextTold(self._message_id, self._index, text))
            self._part = self._live.partials.text(self._message_id, self._index) or NOBODY
            return
        told = TextTold(part.message_id, part.index, text, part.length)
        part.length = length
        part.pending.append(text)
        delta = self._ring.flow(told, 200 + len(text))
        for observer in self._observers:
            try:
                observer(delta)
            except Exception:
                logger.exception("an observer of run %s failed", delta.run_id)


__all__ = ["Flow"]
