"""What is due by time, for all runs of a controller, by one timer (RC-10).

Partial text, stages of a stop, expiry, leases, eviction: each is an entry here, none has a timer of its own.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar
from weakref import ref

from ..clock import call_later
from ..contracts import Clock

logger = logging.getLogger("pilothouse.runs")

Action = Callable[[], Coroutine[object, object, object] | None]
T = TypeVar("T")
_when = itemgetter(0)


def weakly(method: Action) -> Action:
    """The same action, without keeping alive whose method it is: what is gone by then has nothing due."""
    found, do = ref(method.__self__), method.__func__  # type: ignore[attr-defined]

    def action() -> Coroutine[object, object, object] | None:
        alive = found()
        return None if alive is None else do(alive)

    return action


class _Anchor:
    """What the event loop holds of an agenda: all of it while that is wanted, else nothing."""

    __slots__ = ("_weak", "held")

    def __init__(self, agenda: Agenda) -> None:
        self.held: Agenda | None = None
        self._weak = ref(agenda)

    def ring(self) -> None:
        agenda = self.held or self._weak()
        if agenda is not None:
            agenda.do_due()


class Agenda:
    """A heap of due actions and the one timer that is set for the next.

    An action is quick and synchronous, or returns a coroutine, which runs as a task that the agenda holds.
    """

    __slots__ = (
        "__weakref__",
        "_anchor",
        "_closed",
        "_heap",
        "_jobs",
        "_numbers",
        "_take_back",
        "_wake_at",
        "clock",
    )

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._heap: list[tuple[float, int, Action]] = []
        self._numbers = count()
        self._take_back: Callable[[], None] | None = None  # of the timer, while it is set
        self._wake_at = inf
        self._anchor = _Anchor(self)
        self._jobs: set[asyncio.Task[object]] = set()
        self._closed = False

    def __del__(self) -> None:
        """Nobody holds it any more: the event loop need not wait for its time."""
        if self._take_back is not None:
            self._take_back()

    def after(self, seconds: float, action: Action) -> None:
        """Does `action` in so many seconds, unless the agenda is closed by then."""
        if self._closed or seconds == inf:
            return
        due = self.clock.monotonic() + seconds
        heappush(self._heap, (due, next(self._numbers), action))
        if due < self._wake_at:
            self._set(due, seconds)

    def _set(self, due: float, seconds: float) -> None:
        if self._take_back is not None:
            self._take_back()
        self._wake_at = due
        self._take_back = call_later(self.clock, max(seconds, 0.0), self._anchor.ring)

    def hold(self, *, alive: bool) -> None:
        """Whether what is due keeps the agenda alive, and so whoever it is for: while there are runs to be driven.

        A controller that nobody holds any more, and that drives nothing, is not kept for the sake of its timers.
        """
        self._anchor.held = self if alive else None

    def do_due(self) -> None:
        """Does what is due now, and sets the timer for the next."""
        self._take_back = None
        self._wake_at = -inf  # what is added meanwhile is seen here
        while self._heap:
            due = self._heap[0][0]
            if (wait := due - self.clock.monotonic()) > 0:
                self._set(due, wait)
                return
            _, _, action = heappop(self._heap)
            self.do(action)
        self._wake_at = inf

    def do(self, action: Action) -> None:
        """Does it now; its failure is logged."""
        try:
            job = action()
        except Exception:
            logger.exception("a timed action failed")
            return
        if job is not None:
            self.spawn(job)

    def spawn(self, job: Coroutine[object, object, object]) -> None:
        """Runs a coroutine as a task that is held until it ends; its failure is logged."""
        task = asyncio.get_running_loop().create_task(job)
        self._jobs.add(task)
        task.add_done_callback(self._done)

    @property
    def busy(self) -> bool:
        """Whether a job that began has not ended."""
        return bool(self._jobs)

    def _done(self, task: asyncio.Task[object]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a timed job failed", exc_info=error)

    async def aclose(self) -> None:
        """Drops what is due, waits for jobs that began."""
        self._closed = True
        self._heap.clear()
        if self._take_back is not None:
            self._take_back()
            self._take_back = None
        if self._jobs:
            await asyncio.gather(*self._jobs, return_exceptions=True)


class DelayLine(Generic[T]):
    """Objects for which the same is due after the same time: first in, first out, with one entry in the agenda.

    It keeps none of them alive: what is gone by then has nothing due.
    """

    __slots__ = ("__weakref__", "_action", "_agenda", "_seconds", "_waiting", "clock")

    def __init__(
        self,
        agenda: Agenda,
        seconds: float | None,
        action: Callable[[T], Coroutine[object, object, object] | None],
    ) -> None:
        self._agenda = agenda
        self.clock = agenda.clock
        self._seconds = inf if seconds is None else seconds
        self._action = action
        self._waiting: list[tuple[float, ref[T]]] = []

    def add(self, item: T) -> None:
        """The action is due for it, in the line's time from now on."""
        if self._seconds == inf:
            return
        due = self.clock.monotonic() + self._seconds
        if not self._waiting:
            self._agenda.after(self._seconds, weakly(self._due))
        self._waiting.append((due, ref(item)))

    def _due(self) -> None:
        now, waiting = self.clock.monotonic(), self._waiting
        over = bisect_right(waiting, now, key=_when)
        due = waiting[:over]
        del waiting[:over]
        if waiting:  # before anything is done: that may add to the line
            self._agenda.after(waiting[0][0] - now, weakly(self._due))
        for _, found in due:
            if (item := found()) is not None:
                self._agenda.do(partial(self._action, item))
