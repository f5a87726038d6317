"""The signals that ask a process to end; a server drains by them, a command closes what it has open."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

HANGUP: Final = (signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()
"""A terminal that is closed; Windows has none."""

ENDING: Final = (signal.SIGTERM, *HANGUP)
"""What asks a program to end, beside a person's Ctrl-C."""


@contextmanager
def heeding(handler: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    """For as long these go to `handler`, except what this process was told to ignore (`nohup`).

    Nothing changes outside of the main thread: only there signals can be listened to.
    """
    here = threading.current_thread() is threading.main_thread()
    heeded = [number for number in signals if here and signal.getsignal(number) is not signal.SIG_IGN]
    before = [(number, signal.signal(number, handler)) for number in heeded]
    try:
        yield
    finally:
        for number, handled in before:
            signal.signal(number, handled)


__all__ = ["ENDING", "HANGUP", "heeding"]
