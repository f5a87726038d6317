"""What a conversation does by itself, as a local agent notices it: sends of other callers, another thread (AG-44, AG-180)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import final

from ..conversation.controller import AgentController
from ..errors import PilothouseError
from ..messages import JSON
from .following import Follower
from .history import History
from .sending import Sender
from .source import LocalSource
from .surface import Surface
from .telling import told_message
from .thread import Thread

logger = logging.getLogger("pilothouse.agents")


@final
class Observer:
    """Subscribes to a conversation; the `on_*` methods are what it tells."""

    def __init__(
        self,
        controller: AgentController,
        surface: Surface,
        source: LocalSource,
        follower: Follower,
        sender: Sender,
        thread: Thread,
        history: History,
    ) -> None:
        self._controller = controller
        self._surface = surface
        self._source = source
        self._follower = follower
        self._sender = sender
        self._thread = thread
        self._history = history
        self._thread_id = controller.thread_id
        self._leave: tuple[Callable[[], None], ...] = (
            controller.subscribe(self),
            controller.watch_shared_state(self._state_changed),
        )
        self._show_messages()

    def close(self) -> None:
        """Looks no more."""
        for leave in self._leave:
            leave()

    def on_messages_change(self, _: object) -> None:
        """A message was added, or the conversation was replaced."""
        self._look()

    def on_state_change(self, _: object) -> None:
        """A send began or ended."""
        self._look()

    def _state_changed(self, value: Mapping[str, JSON]) -> None:
        if not self._surface.tasks.closed:
            with self._surface.batch():
                self._source.share(value)

    async def watch(self, interval_s: float) -> None:
        """Looks for what others do on the thread, again and again."""
        while True:
            await self._surface.clock.sleep(interval_s)
            if self._working:
                continue
            try:
                await self._thread.look()
            except PilothouseError as error:
                logger.debug("could not look at thread %s: %s", self._controller.thread_id, error)

    @property
    def _working(self) -> bool:
        """Whether something of this agent is on its way, be it that its turn has not come or was not noticed yet."""
        return self._surface.attempt is not None or self._sender.working

    def _look(self) -> None:
        """Notices commits, sends of other callers, and that the thread was switched."""
        if self._surface.tasks.closed:
            return
        reply = self._controller.reply
        if self._switched():
            self._switch()
        elif reply is None and not self._working and self._replaced():
            self._show_messages()
        if reply is None or not reply.committed:
            return
        ours = self._sender.notice(reply.id)
        if not ours and not self._follower.shows(reply.id) and self._surface.tasks.loop is not None:
            self._follower.join(reply.id)

    def _switched(self) -> bool:
        """Whether the conversation is another one, or was emptied."""
        controller, surface = self._controller, self._surface
        emptied = not controller.messages and surface.messages.get() and controller.reply is None
        return controller.thread_id != self._thread_id or bool(emptied and surface.attempt is None)

    def _replaced(self) -> bool:
        """Whether the controller shows messages that no run of this thread told."""
        return any(self._source.display.get(message.id) is None for message in self._controller.messages)

    def _switch(self) -> None:
        """Another thread: what belonged to the old one is left, and its late events change nothing."""
        self._thread_id = self._controller.thread_id
        self._thread.forget()
        surface, attempt = self._surface, self._surface.attempt
        with surface.batch():
            self._follower.switch()
            if attempt is not None:
                surface.end(attempt, "aborted", reason="thread_switch")
                attempt.op.settle("aborted")
            self._follower.void()
            self._source.clear()
            self._history.clear()
            surface.rest()
        self._show_messages()

    def _show_messages(self) -> None:
        """What the controller shows, before the journal was asked."""
        with self._surface.batch():
            self._source.display.restore([told_message(message) for message in self._controller.messages])


__all__ = ["Observer"]
