"""The tasks of an agent: the event loop that owns it, what runs there for it, and whether it is closed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, final

from ..errors import AgentClosed, UsageError

logger = logging.getLogger("pilothouse.agents")


@final
class Tasks:
    """Those of one agent.

    Attributes:
        closed: actions raise from here on.
        loop: the loop of the first action; None before it.
    """

    def __init__(self, name: str) -> None:
        self.closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self._name = name
        self._running: set[asyncio.Task[Any]] = set()

    def enter(self, action: str) -> asyncio.AbstractEventLoop:
        """Every action passes here first: one event loop owns an agent, the first that uses it (AG-9).

        Raises:
            AgentClosed, UsageError: nothing was changed.
        """
        if self.closed:
            raise AgentClosed(action)
        loop: asyncio.AbstractEventLoop | None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        if loop is None or (self.loop is not None and loop is not self.loop):
            raise UsageError(
                f"cannot {action} from here: an agent lives on its event loop's thread; elsewhere use"
                " loop.call_soon_threadsafe"
            )
        self.loop = loop
        return loop

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Begins a task, which the close ends; what it raises is logged."""
        assert self.loop is not None
        task = self.loop.create_task(work, name=f"pilothouse-{self._name}-{name}")
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a task of agent %s failed", self._name, exc_info=error)

    async def aclose(self) -> None:
        """Cancels all but the caller's own, and waits for their end."""
        self.closed = True
        tasks = self._running - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


__all__ = ["Tasks"]
