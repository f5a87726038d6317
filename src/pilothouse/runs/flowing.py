"""Text that flows: the pieces of one part of a message, each told as a delta, in one frame (RC-17 … RC-20).

`LiveRun.tell` takes anything, and looks each time what it is and which part it belongs to. Nearly all that is told are pieces
of the text that was told last: for them this does the same in a third of the time, and hands over to `tell` what is not one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..events import Delta, TextTold
from .partials import NOBODY

if TYPE_CHECKING:
    from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")


def flow(live: LiveRun, message_id: str, index: int) -> Callable[[str], None]:
    """Opens a text: what comes back takes its pieces, as `tell` takes each of them as a `TextTold`."""
    run_id, writer, ring, observers = live.run_id, live.writer, live.ring, live.observers
    partials, part = live.partials, NOBODY

    def say(text: str) -> None:
        nonlocal part
        if partials.current is not part or type(text) is not str or not text:
            live.tell(TextTold(message_id, index, text))
            part = partials.text(message_id, index) or NOBODY
            return
        offset = part.length
        part.length = length = offset + len(text)
        part.pending.append(text)
        if length >= partials.mark:
            live.look(length - offset)
        live.deltas = number = live.deltas + 1
        delta = Delta(run_id, number, writer.state.seq, TextTold(message_id, index, text, offset))
        ring.flow(delta, 200 + length - offset)
        for observer in observers:
            try:
                observer(delta)
            except Exception:
                logger.exception("an observer of run %s failed", run_id)

    return say


__all__ = ["flow"]
