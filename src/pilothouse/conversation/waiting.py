"""Waiting with a limit on an injected clock."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from math import inf
from typing import Any

from ..contracts import Clock


async def within(seconds: float, work: Coroutine[Any, Any, object], clock: Clock) -> bool:
    """Whether the work ended within so many seconds; if not, it is cancelled."""
    task = asyncio.ensure_future(work)
    if seconds == inf:
        await task
        return True
    limit = asyncio.ensure_future(clock.sleep(max(seconds, 0.0)))
    try:
        await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        limit.cancel()
        task.cancel()
