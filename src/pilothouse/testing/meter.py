"""Counts what does not depend on the machine: tasks made and passes of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self, final


@final
class Meter:
    """`async with Meter() as meter:` counts what happens inside.

    Attributes:
        tasks: tasks that were created.
        passes: passes of the event loop.
    """

    def __init__(self) -> None:
        self.tasks = 0
        self.passes = 0
        self._running = False

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        self._running = True
        loop.set_task_factory(self._make)  # type: ignore[arg-type]  # typeshed wants a generator too
        loop.call_soon(self._tick)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._running = False
        asyncio.get_running_loop().set_task_factory(None)

    def _tick(self) -> None:
        if self._running:
            self.passes += 1
            asyncio.get_running_loop().call_soon(self._tick)

    def _make(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        self.tasks += 1
        return asyncio.Task(work, loop=loop, **options)
