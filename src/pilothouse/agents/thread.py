"""What the journal has of a thread: shown when it is opened, and asked about a run of which nobody knows the end.

Asking only reads (AG-115 … AG-121); no run is taken over.
"""

from __future__ import annotations

import logging
from typing import final

from ..agent_errors import AgentError
from ..conversation.controller import AgentController
from ..core.display import Display
from ..errors import PilothouseError
from ..events import Failed
from ..records import UNFINISHED, RunView
from .failures import failed
from .following import Follower
from .history import History
from .operation import Later
from .surface import Surface
from .telling import Telling, told_history

logger = logging.getLogger("pilothouse.agents")


@final
class Thread:
    """The thread of a conversation, as its runs are on record."""

    def __init__(
        self, controller: AgentController, surface: Surface, follower: Follower, history: History
    ) -> None:
        self._controller = controller
        self._runs = controller.runs
        self._surface = surface
        self._follower = follower
        self._history = history
        self._loaded: str | None = None  # the head when it was read last

    def forget(self) -> None:
        """Another thread."""
        self._loaded = None

    async def open(self) -> None:
        """Shows all of it: messages, the run that lives, and its tree."""
        await self._controller.open()
        await self.load()
        await self._history.show(self._controller.thread_id)

    async def load(self) -> None:
        """Shows what is there up to its head, and follows that where it lives."""
        head = await self._runs.thread_head(self._controller.thread_id)
        if head is None or self._follower.shows(head):
            return
        self._loaded = head
        view = await self._runs.inspect(head)
        path = told_history(await self._runs.history(head))
        surface = self._surface
        if surface.attempt is not None or surface.tasks.closed:
            return
        with surface.batch():
            surface.display.restore(path)
        self._follower.captured = view.status in UNFINISHED
        if view.outcome is not None:
            return
        if view.status == "unknown":
            cause = view.unknown.cause if view.unknown else ""
            error = self._follower.lost(await self._told(head), cause)
            with surface.batch():
                surface.rest(error)
        elif (caught_up := self._follower.join(head)) is not None:
            await caught_up.wait()  # a run that waits for an answer asks again before anything else

    async def _told(self, run_id: str) -> Telling:
        """What a run told, as far as it is on record."""
        telling = Telling(Display(self._surface.clock.monotonic), run_id)
        for record in await self._runs.events(run_id):
            telling.take(record)
        return telling

    # Looking

    async def look(self) -> None:
        """Notices what others did on it: a run that they started, and what became of one that was lost (AG-44)."""
        head = await self._runs.thread_head(self._controller.thread_id)
        if head is None or self._surface.attempt is not None or self._controller.reply is not None:
            return
        if head != self._loaded and not self._follower.shows(head):
            await self.open()
        elif (error := self._uncertain()) is not None and not self._surface.checking:
            assert error.run_id is not None
            view = await self._runs.inspect(error.run_id)
            if view.status != "unknown" and self._still(error):
                await self._conclude(error, view)

    # Checking

    def check_status(self) -> Later[None]:
        """See `Agent.check_status`: answered by the journal; never takes a run over."""
        self._surface.admit_check()
        error = self._uncertain()
        return Later.settled(None) if error is None else self._surface.check(lambda: self._check(error))

    def _uncertain(self) -> AgentError | None:
        """The error that says that nobody knows how a run ended."""
        error = self._surface.error.get()
        return error if error is not None and error.kind == "interrupted" and error.run_id else None

    def _still(self, error: AgentError) -> bool:
        """Whether nothing has happened since it was shown."""
        surface = self._surface
        return surface.error.get() is error and surface.attempt is None and not surface.tasks.closed

    async def _check(self, error: AgentError) -> None:
        assert error.run_id is not None
        try:
            try:
                view = await self._asked(error.run_id)
            finally:
                with self._surface.batch():
                    self._surface.checking = False
            if self._still(error):
                await self._conclude(error, view)
        except PilothouseError as why:
            logger.warning("nobody could say what became of run %s: %s", error.run_id, why)

    async def _asked(self, run_id: str) -> RunView:
        view = await self._runs.inspect(run_id)
        askable = view.status == "unknown" and view.outcome is None
        if askable and view.unknown is not None and "check_status" in view.unknown.ways:
            await self._runs.check_status(run_id)
            view = await self._runs.inspect(run_id)
        return view

    async def _conclude(self, error: AgentError, view: RunView) -> None:
        """What an answer changes (AG-117)."""
        outcome = view.outcome
        if outcome is None and view.status == "unknown":
            logger.warning("run %s is still unknown", view.run_id)
            return
        path = told_history(await self._runs.history(view.run_id))
        if not self._still(error):
            return
        with self._surface.batch():
            self._surface.display.snapshot(path, reasoning=True)
            self._surface.rest(failed(view.run_id, outcome) if isinstance(outcome, Failed) else None)
        if outcome is None:
            self._follower.join(view.run_id)


__all__ = ["Thread"]
