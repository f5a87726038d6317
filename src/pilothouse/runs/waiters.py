"""Who waits for something of a live run: its start, its end, the answer to a command, or the journal's absence."""

from __future__ import annotations

import asyncio

from .port import resolve


class Waiters:
    """Futures by what wakes them; made at first use, since most runs are waited for in one way only."""

    __slots__ = ("_answers", "_ends", "_stalls", "_started")

    def __init__(self) -> None:
        self._started: list[asyncio.Future[None]] = []
        self._ends: list[asyncio.Future[None]] = []
        self._answers: dict[str, list[asyncio.Future[None]]] = {}
        self._stalls: list[asyncio.Future[None]] = []

    def start(self) -> asyncio.Future[None]:
        """Done when the runtime began or the run is over."""
        return _join(self._started)

    def end(self) -> asyncio.Future[None]:
        """Done when the run is over here, or its journal is away."""
        return _join(self._ends)

    def answer(self, command_id: str) -> asyncio.Future[None]:
        """Done when the command is answered, or the run is over."""
        return _join(self._answers.setdefault(command_id, []))

    def stall(self) -> asyncio.Future[None]:
        """Done when the journal is away; to be given back by `forget_stall`."""
        return _join(self._stalls)

    def forget_stall(self, stall: asyncio.Future[None]) -> None:
        """Nobody waits for that one any more."""
        self._stalls.remove(stall)

    @property
    def for_start(self) -> bool:
        """Whether anybody waits for the start."""
        return bool(self._started)

    def started(self) -> None:
        """The runtime began."""
        waiters, self._started = self._started, []
        _wake(waiters)

    def answered(self, command_id: str) -> None:
        """The command is answered."""
        _wake(self._answers.pop(command_id, ()))

    def all_answered(self) -> None:
        """No command will be answered any more, or each may have been."""
        for command_id in list(self._answers):
            self.answered(command_id)

    def ended(self) -> None:
        """The run is over here."""
        self.all_answered()
        if self._started:
            self.started()
        waiters, self._ends = self._ends, []
        _wake(waiters)

    def stalled(self) -> None:
        """The journal is away: nobody is left waiting for it."""
        waiters, self._ends = [*self._ends, *self._stalls], []
        _wake(waiters)


def _join(waiters: list[asyncio.Future[None]]) -> asyncio.Future[None]:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    return waiter


def _wake(waiters: list[asyncio.Future[None]] | tuple[()]) -> None:
    for waiter in waiters:
        resolve(waiter)
