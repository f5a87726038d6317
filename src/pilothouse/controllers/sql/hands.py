"""Daemon threads that each hold one database connection, so that a statement can be stopped and the loop never waits."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, final
from weakref import finalize

from ...errors import UsageError
from ..errors import QueryFailed
from .failures import stopped_after

C = TypeVar("C")
T = TypeVar("T")

OPENING: Final = 10.0
"""Seconds that opening a connection may take, besides the time of the work."""

GRACE: Final = 2.0
"""Seconds that an interrupted statement has to end before its connection is given up."""


@final
class Stopped(Exception):
    """The work was interrupted because its time was over."""


@final
class _Hand(Generic[C]):
    """One thread and its connection, opened at the first work."""

    def __init__(self, open_it: Callable[[], C], close_it: Callable[[C], None], name: str) -> None:
        self.connection: C | None = None
        self._open, self._close = open_it, close_it
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], None] | None) -> None:
        """Hands over work; None ends the thread after what it does now."""
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
        if self.connection is not None:
            with suppress(Exception):
                self._close(self.connection)

    def opened(self) -> C:
        """The connection; runs in the thread."""
        if self.connection is None:
            self.connection = self._open()
        return self.connection

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def forget(self) -> None:
        """Closes a connection that is no longer good; runs in the thread."""
        broken, self.connection = self.connection, None
        if broken is not None:
            with suppress(Exception):
                self._close(broken)


@final
class Hands(Generic[C]):
    """A few threads with a connection each; more work waits.

    Args:
        open_it: opens a connection, in the thread that will use it.
        interrupt: stops what runs on a connection, from another thread.
        close_it: closes one.
        is_broken: whether an exception means that the connection cannot be used again.
        size: how many at most.
    """

    def __init__(
        self,
        open_it: Callable[[], C],
        *,
        interrupt: Callable[[C], object],
        close_it: Callable[[C], None],
        is_broken: Callable[[BaseException], bool] = lambda _: False,
        size: int = 4,
        name: str = "pilothouse-sql",
    ) -> None:
        self._open, self._interrupt, self._close = open_it, interrupt, close_it
        self._is_broken = is_broken
        self._idle: list[_Hand[C]] = []
        self._busy: set[_Hand[C]] = set()
        self._places = asyncio.Semaphore(size)
        self._recovering: set[asyncio.Task[None]] = set()
        self._name = name
        self._closed = False
        # Of one that nobody closed: its threads, and the processes that they hold, must not outlive it.
        finalize(self, _let_go, self._idle).atexit = False

    async def run(self, work: Callable[[C], T], *, timeout: float) -> T:
        """Does the work in one of the threads. Its time counts from when its connection is open.

        Raises:
            Stopped: the time was over; the statement was interrupted.
        """
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise UsageError("cannot query because the source is closed")
        hand = self._idle.pop() if self._idle else _Hand(self._open, self._close, self._name)
        self._busy.add(hand)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        opened: asyncio.Future[None] = loop.create_future()
        # Work that ended after its waiter left is looked at by nobody.
        done.add_done_callback(lambda future: future.cancelled() or future.exception())
        hand.give(lambda: self._do(hand, work, loop, opened, done))
        try:
            if hand.connection is None:
                either: set[asyncio.Future[Any]] = {opened, done}
                await asyncio.wait(either, timeout=OPENING, return_when=asyncio.FIRST_COMPLETED)
            finished, _ = await asyncio.wait({done}, timeout=timeout)
        except asyncio.CancelledError:
            await self._stop(hand, done)
            raise
        if not finished:
            await self._stop(hand, done)
            raise Stopped
        self._put_back(hand)
        return done.result()

    def _do(
        self,
        hand: _Hand[C],
        work: Callable[[C], T],
        loop: asyncio.AbstractEventLoop,
        opened: asyncio.Future[None],
        done: asyncio.Future[T],
    ) -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            connection = hand.opened()
            with suppress(RuntimeError):  # the loop is gone
                loop.call_soon_threadsafe(_set, opened)
            result = work(connection)
        except BaseException as raised:  # noqa: BLE001 - it belongs to the waiter
            error = raised
            if self._is_broken(raised):
                hand.forget()

        def tell() -> None:
            if not done.done():
                if error is None:
                    done.set_result(result)
                else:
                    done.set_exception(error)

        with suppress(RuntimeError):  # the loop is gone: nobody waits
            loop.call_soon_threadsafe(tell)

    async def _stop(self, hand: _Hand[C], done: asyncio.Future[Any]) -> None:
        task = asyncio.create_task(self._recover(hand, done))
        self._recovering.add(task)
        task.add_done_callback(self._recovering.discard)
        await asyncio.shield(task)

    async def _recover(self, hand: _Hand[C], done: asyncio.Future[Any]) -> None:
        """Interrupts until the work ends; a thread that stays deaf is given up, with its connection."""
        deadline = asyncio.get_running_loop().time() + GRACE
        while not done.done() and asyncio.get_running_loop().time() < deadline:
            connection = hand.connection
            if connection is not None:
                with suppress(Exception):
                    self._interrupt(connection)
            # Once is not enough: the thread may just be between two statements.
            await asyncio.wait({done}, timeout=0.05)
        if done.done():
            self._put_back(hand)
        else:
            self._busy.discard(hand)
            hand.give(None)
            self._places.release()

    def _put_back(self, hand: _Hand[C]) -> None:
        self._busy.discard(hand)
        if self._closed:
            hand.give(None)
        else:
            self._idle.append(hand)
        self._places.release()

    async def aclose(self) -> None:
        """Interrupts what runs and closes all connections; bounded by the grace of two seconds."""
        self._closed = True
        hands = [*self._busy, *self._idle]
        for hand in hands:
            hand.give(None)
        self._idle.clear()
        clock = asyncio.get_running_loop().time
        deadline = clock() + GRACE
        while any(hand.alive for hand in hands) and clock() < deadline:
            for hand in hands:
                if hand in self._busy and (connection := hand.connection) is not None:
                    with suppress(Exception):
                        self._interrupt(connection)  # again: it may just have been between two statements
            await asyncio.sleep(0.005)


def _let_go(idle: list[_Hand[Any]]) -> None:
    for hand in idle:
        hand.give(None)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def timed(hands: Hands[C], work: Callable[[C], T], timeout: float) -> T:
    """Does the work; a stop by the clock is said in words for a model.

    Raises:
        QueryFailed: the time was over.
    """
    try:
        return await hands.run(work, timeout=timeout)
    except Stopped:
        raise QueryFailed(stopped_after(timeout)) from None
