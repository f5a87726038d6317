"""The event loop that a conversation, or an upload controller, lives on: the first that uses it (AC-121)."""

from __future__ import annotations

import asyncio

from ..errors import UsageError


def check_on(loop: asyncio.AbstractEventLoop, action: str) -> None:
    """Refuses a caller that does not run on that loop.

    Raises:
        UsageError: it is on another thread, or on none that has a loop.
    """
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is not loop:
        raise UsageError(f"cannot {action} from another thread: use loop.call_soon_threadsafe")


def bound(known: asyncio.AbstractEventLoop | None, action: str, what: str) -> asyncio.AbstractEventLoop:
    """The loop that owns something: the first that used it, which must be the running one (AC-121).

    Raises:
        UsageError: another one runs.
    """
    loop = asyncio.get_running_loop()
    if known is None or known is loop:
        return loop
    raise UsageError(
        f"cannot {action} on another event loop: "
        + (
            f"the one that it was used on has ended, so make {what} in each asyncio.run()"
            if known.is_closed()
            else "use asyncio.run_coroutine_threadsafe"
        )
    )


__all__ = ["bound", "check_on"]
