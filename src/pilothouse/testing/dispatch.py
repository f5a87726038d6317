"""An engine in one event loop: what a `Dispatcher` promises, and no more. For tests of several controllers together."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import final

from ..cluster import Drive, Driven, Ticket
from ..errors import DispatchUnavailable
from ..records import Owner


@final
class Board:
    """What the dispatchers of one test share: tickets, who takes them, what became of them.

    Attributes:
        outcomes: what drives returned, by ticket.
        away: enqueueing fails, as where the engine's server is gone.
    """

    def __init__(self) -> None:
        self.outcomes: dict[str, Driven] = {}
        self.away = False
        self._known: set[str] = set()
        self._waiting: deque[Ticket] = deque()
        self._workers: list[LocalDispatcher] = []

    def dispatcher(self) -> LocalDispatcher:
        """One for one process."""
        return LocalDispatcher(self)

    def put(self, ticket: Ticket) -> None:
        """Takes a ticket, once."""
        if self.away:
            raise DispatchUnavailable("cannot reach the board: it is away")
        if ticket.key not in self._known:
            self._known.add(ticket.key)
            self._waiting.append(ticket)
            self.spread()

    def join(self, worker: LocalDispatcher) -> None:
        """A worker takes tickets from now on."""
        self._workers.append(worker)
        self.spread()

    def leave(self, worker: LocalDispatcher, unfinished: list[Ticket]) -> None:
        """A worker takes no more; what it had goes to others."""
        if worker in self._workers:
            self._workers.remove(worker)
        self._waiting.extendleft(unfinished)
        self.spread()

    def spread(self) -> None:
        """Gives tickets to whoever has room, the least busy first."""
        waiting, self._waiting = self._waiting, deque()
        for ticket in sorted(waiting, key=lambda item: item.priority):
            able = [worker for worker in self._workers if worker.takes(ticket)]
            if able:
                min(able, key=lambda worker: worker.busy).begin(ticket)
            else:
                self._waiting.append(ticket)


@final
class LocalDispatcher:
    """Implements `cluster.Dispatcher` over a board."""

    def __init__(self, board: Board, *, concurrency: int = 1_000) -> None:
        self._board = board
        self._concurrency = concurrency
        self._drives: dict[str, Drive] = {}
        self._tasks: dict[str, tuple[Ticket, asyncio.Task[None]]] = {}

    @property
    def busy(self) -> int:
        """Tickets in hand."""
        return len(self._tasks)

    def takes(self, ticket: Ticket) -> bool:
        """Whether it has room, and knows how."""
        return ticket.queue in self._drives and self.busy < self._concurrency

    async def enqueue(self, ticket: Ticket) -> None:
        """Asks that somebody drives the run."""
        self._board.put(ticket)

    def on_dispatch(self, queue: str, drive: Drive) -> None:
        """Takes tickets of that queue, once started."""
        self._drives[queue] = drive

    async def start(self) -> None:
        """Begins to take tickets, if it knows how."""
        if self._drives:
            self._board.join(self)

    def begin(self, ticket: Ticket) -> None:
        """Drives a run."""

        async def drive() -> None:
            self._board.outcomes[ticket.key] = await self._drives[ticket.queue](ticket)

        task = asyncio.get_running_loop().create_task(drive())
        self._tasks[ticket.key] = (ticket, task)
        task.add_done_callback(lambda _: self._done(ticket))

    def _done(self, ticket: Ticket) -> None:
        if self._tasks.pop(ticket.key, None) is not None:
            self._board.spread()

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """Nothing here decides by time who is dead."""

    async def drain(self) -> None:
        """Takes no more."""
        self._board.leave(self, [])

    def die(self) -> None:
        """The process is gone: what it had in hand goes to others. Whatever it still does, it does fenced."""
        unfinished = [ticket for ticket, _ in self._tasks.values()]
        self._tasks.clear()
        self._board.leave(self, unfinished)

    async def aclose(self) -> None:
        """Lets go."""
        self._board.leave(self, [])


__all__ = ["Board", "LocalDispatcher"]
