"""One thread that writes for everybody: what arrives together is committed together.

Theory of operation: whoever wants something written hands over a piece of work and gets a future. The thread waits for
one piece, opens a transaction, takes everything that has been queued meanwhile, runs each piece by itself, commits
once, and only then tells the waiting loops, one wake-up a loop. There is no timer: an idle writer commits at once, a
busy one finds its next batch in the queue. A piece that was handed over is completed whatever happens to its waiter.

What is written, and where, is a `Store`'s business; nothing here knows a database.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Final, Protocol, TypeAlias, TypeVar, final
from weakref import WeakSet

from ..errors import JournalError, JournalUnavailable

T = TypeVar("T")

BATCH_BYTES: Final = 8 * 1024 * 1024
"""Bodies of one commit: what waits behind a large batch waits no longer than that takes."""

BATCH_JOBS: Final = 1_000

EXIT_S: Final = 10.0
"""How long the end of the interpreter waits for what was handed over."""


class TransactionLost(Exception):
    """A piece of work found the transaction itself broken: nothing of the batch can be confirmed."""

    def __init__(self, error: JournalError) -> None:
        self.error = error
        super().__init__(str(error))


class Store(Protocol):
    """Where a writer writes. All methods are called on the writer's thread, one at a time.

    Each may raise a `JournalError`: what was to be written is then refused with it, and the next batch tries anew.
    """

    def open(self) -> None:
        """Opens what is not open yet; cheap if it is."""
        ...

    def begin(self) -> None:
        """Begins a transaction that may write."""
        ...

    def run(self, work: Callable[[], Any]) -> Any:
        """Runs one piece of work so that its failure leaves no trace in the transaction.

        Raises:
            TransactionLost: the transaction is gone.
        """
        ...

    def commit(self) -> None:
        """Makes everything durable."""
        ...

    def rollback(self) -> None:
        """Forgets everything since `begin`; raises nothing."""
        ...

    def settle(self, *, idle: bool) -> None:
        """After a commit was told: care that may take a moment; raises nothing."""
        ...

    def close(self) -> None:
        """Closes; raises nothing."""
        ...


Told: TypeAlias = Callable[[Any, BaseException | None], None]
"""What is called on the loop of who handed work over: with its result, or with what it was refused with."""


@final
class _Job:
    __slots__ = ("error", "loop", "result", "size", "tell", "work")

    def __init__(
        self, work: Callable[[], Any] | None, size: int, loop: asyncio.AbstractEventLoop, tell: Told
    ) -> None:
        self.work = work  # None: the store is to be open, nothing is to be written
        self.size = size
        self.loop = loop
        self.tell = tell
        self.result: Any = None
        self.error: BaseException | None = None


@final
class GroupWriter:
    """Serves any number of event loops; the thread starts at the first piece of work.

    Attributes:
        commits: transactions that were committed.
    """

    def __init__(self, store: Store, name: str) -> None:
        self.commits = 0
        self._store = store
        self._name = name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = Lock()  # orders "handed over" against "closed": nothing is queued behind the stop
        self._thread: Thread | None = None
        self._handed = self._done = 0  # pieces of work, under the lock and on the thread
        self._closed = False
        self._stopping = False  # on the thread: the stop was met, what was taken with it is the last batch
        self._pid = os.getpid()

    @property
    def waiting(self) -> int:
        """Pieces of work that no transaction has taken yet."""
        return self._queue.qsize()

    @property
    def idle(self) -> bool:
        """Whether all that was handed over is done."""
        return self._done == self._handed

    @property
    def closed(self) -> bool:
        """Whether it takes nothing any more."""
        return self._closed

    def submit(self, work: Callable[[], T], size: int = 0) -> asyncio.Future[T]:
        """Hands work over and returns at once; the future is done once it is durable, or refused.

        Raises:
            JournalUnavailable: the writer is closed, or this process is a fork of the one that opened it.
        """
        return self._promised(work, size)

    def hand_over(self, work: Callable[[], Any] | None, size: int, tell: Told) -> None:
        """As `submit`; `tell` is called as soon as the loop hears of it, a pass before a future could wake anybody.

        Raises:
            JournalUnavailable: as of `submit`.
        """
        loop = asyncio.get_running_loop()
        self._check_process()
        with self._lock:
            self._check_closed()
            self._queue.put(_Job(work, size, loop, tell))
            self._handed += 1
            if self._thread is None:
                self._start()

    def opened(self) -> asyncio.Future[None]:
        """Done once the store is open: what only reads waits for no lock.

        Raises:
            JournalUnavailable: as of `submit`.
        """
        return self._promised(None, 0)

    def _promised(self, work: Callable[[], Any] | None, size: int) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.hand_over(work, size, partial(_settle, future))
        return future

    def check_open(self) -> None:
        """Raises JournalUnavailable if it is closed, or belongs to the process that this one was forked from."""
        self._check_process()
        self._check_closed()

    def _check_process(self) -> None:
        """Comes before the lock: in a fork, a thread that the parent had may hold it for ever."""
        if self._forked():
            raise _final_error("cannot use the journal in a forked process: open one of its own there")

    def _check_closed(self) -> None:
        if self._closed:
            raise _final_error("cannot use the journal while it is closed")

    def stop_nowait(self) -> None:
        """Takes nothing more; the thread writes what it was given, closes the store and ends."""
        if self._forked():
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                if self._thread is not None:
                    self._queue.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Waits, blocking, until the thread has ended."""
        if self._thread is not None and not self._forked():
            self._thread.join(timeout)

    async def aclose(self) -> None:
        """Writes what was handed over, then closes. Idempotent; may be cancelled without harm."""
        self.stop_nowait()
        if self._thread is not None and self._thread.is_alive() and not self._forked():
            await asyncio.to_thread(self._thread.join)

    def _forked(self) -> bool:
        return self._pid != os.getpid()

    def _start(self) -> None:
        self._thread = Thread(target=self._serve, name=self._name, daemon=True)
        _live.add(self)
        self._thread.start()

    # On the thread

    def _serve(self) -> None:
        try:
            while not self._stopping and (first := self._queue.get()) is not None:
                jobs = [first]
                try:
                    self._write(jobs)
                except BaseException as error:  # noqa: BLE001 - nothing may leave waiters behind
                    self._take(jobs)
                    for job in jobs:
                        job.result, job.error = None, error
                self._done += len(jobs)
                _deliver(jobs)
                del jobs, first
                self._store.settle(idle=self._queue.empty())
        finally:
            self._store.close()

    def _write(self, jobs: list[_Job]) -> None:
        """Commits what waits in one transaction."""
        store = self._store
        store.open()
        if jobs[0].work is None:
            return
        store.begin()
        self._take(jobs)
        try:
            for job in jobs:
                try:
                    job.result = None if job.work is None else store.run(job.work)
                except TransactionLost as lost:
                    raise lost.error from lost
                except Exception as error:  # noqa: BLE001 - goes to whoever handed the work over
                    job.error = error
            store.commit()
        except BaseException:
            store.rollback()
            raise
        self.commits += 1

    def _take(self, jobs: list[_Job]) -> None:
        """Adds what is queued, within bounds."""
        size = sum([job.size for job in jobs])
        while not (self._queue.empty() or self._stopping) and len(jobs) < BATCH_JOBS and size < BATCH_BYTES:
            if (job := self._queue.get_nowait()) is None:
                self._stopping = True
            else:
                jobs.append(job)
                size += job.size


def _final_error(text: str) -> JournalUnavailable:
    error = JournalUnavailable(text)
    error.retryable = False
    return error


def _deliver(jobs: list[_Job]) -> None:
    """Wakes each loop once, however many of its futures are done."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, done in by_loop.items():
        with suppress(RuntimeError):  # that loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_complete, done)


def _complete(jobs: list[_Job]) -> None:
    for place, job in enumerate(jobs):
        try:
            job.tell(job.result, job.error)
        except Exception as error:  # noqa: BLE001 - the others of the batch are told all the same
            job.loop.call_exception_handler(
                {"message": "who was told of a commit failed", "exception": error}
            )
        except BaseException:  # it stops the loop: the others are told once that goes on, to end
            job.loop.call_soon(_complete, jobs[place + 1 :])
            raise


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # its waiter was cancelled; the work is done all the same
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_live: WeakSet[GroupWriter] = WeakSet()


@atexit.register
def _at_exit() -> None:
    """A process that never closed its journals loses nothing that it handed over, and ends all the same."""
    for writer in list(_live):
        writer.stop_nowait()
    for writer in list(_live):
        writer.join(EXIT_S)


__all__ = ["BATCH_BYTES", "BATCH_JOBS", "GroupWriter", "Store", "Told", "TransactionLost"]
