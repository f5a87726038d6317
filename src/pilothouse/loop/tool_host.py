"""What all runs of one loop share for their tools: threads, resources, and what was left behind."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from .threads import Threads
from .waiting import Wakeup

if TYPE_CHECKING:
    from .approval import Rule

logger: Final = logging.getLogger("pilothouse.loop")

MAX_THREADS: Final = 1_000
"""Threads whose remembered approvals are kept."""


@final
class Resources:
    """Things that one call at a time may use, by name. An abandoned call keeps its own until it ends (LP-45)."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        # Dictionaries without values: an empty set takes 0.2 kB, and most loops never lend anything.
        self._held: dict[str, None] = {}
        self._waiting: dict[Wakeup, None] = {}

    def take(self, name: str | None, wakeup: Wakeup) -> bool:
        """Takes it if it is free; if not, `wakeup` rings when something becomes free."""
        if name is None:
            return True
        if name in self._held:
            self._waiting[wakeup] = None
            return False
        self._held[name] = None
        return True

    def give_back(self, name: str | None) -> None:
        """Frees it."""
        if name is not None:
            self._held.pop(name, None)
            waiting, self._waiting = self._waiting, {}
            for wakeup in waiting:
                wakeup.ring()


@final
class ToolHost:
    """Shared by the runs of a loop; closed with it.

    Attributes:
        deps: what `ToolContext.deps` is.
        abandoned: work that did not end in its grace and still goes on.
        entered: calls whose function goes on, by their idempotency key.
        jobs: work that tools have handed over (TL-17).
    """

    def __init__(self, deps: object) -> None:
        self.deps = deps
        self.resources = Resources()
        self.abandoned: dict[asyncio.Future[Any], None] = {}
        self.entered: dict[str, asyncio.Future[Any]] = {}
        self.jobs: dict[str, asyncio.Task[Any]] = {}
        self._jobs_made = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = 0
        self._threads: Threads | None = None
        self._rules: dict[str, list[Rule]] = {}  # the thread used last is the last

    def rules(self, thread_id: str) -> Sequence[Rule]:
        """What people have allowed for a whole thread. Memory of this process: after a restart they are asked again."""
        return self._rules.get(thread_id, ())

    def remember(self, thread_id: str, rule: Rule) -> None:
        """Remembers an allow for the thread; the threads used last are kept."""
        self._rules[thread_id] = [*self._rules.pop(thread_id, ()), rule]
        while len(self._rules) > MAX_THREADS:
            del self._rules[next(iter(self._rules))]

    @property
    def threads(self) -> Threads:
        """The worker threads; none is started before a sync tool runs."""
        if self._threads is None:
            self._threads = Threads()
        return self._threads

    def abandon(self, work: asyncio.Future[Any], release: Callable[[], object]) -> None:
        """Holds work that nobody waits for any more until it ends; what it says then is dropped (EF-12)."""
        self.abandoned[work] = None

        def ended(future: asyncio.Future[Any]) -> None:
            self.abandoned.pop(future, None)
            if not future.cancelled():
                future.exception()  # looked at, so that nobody warns
            release()

        work.add_done_callback(ended)

    def detach(self, work: Coroutine[Any, Any, Any], name: str) -> str:
        """Runs work as a job of the loop; returns the job's id. From any thread, once a run has begun."""
        self._jobs_made += 1
        job = f"job-{self._jobs_made}"
        loop = self._loop
        assert loop is not None
        if threading.get_ident() == self._home:
            self._start(job, name, work)
        else:
            loop.call_soon_threadsafe(self._start, job, name, work)
        return job

    def _start(self, job: str, name: str, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"{job} {name}")
        self.jobs[job] = task
        task.add_done_callback(lambda done: self._ended(job, name, done))

    def _ended(self, job: str, name: str, task: asyncio.Task[Any]) -> None:
        self.jobs.pop(job, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s (%s) failed", job, name, exc_info=error)

    def attach(self) -> None:
        """Remembers the event loop that jobs of other threads go to."""
        if self._loop is None:
            self._loop, self._home = asyncio.get_running_loop(), threading.get_ident()

    async def close(self) -> None:
        """Stops the jobs and lets idle threads end."""
        jobs = list(self.jobs.values())
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.gather(*jobs, return_exceptions=True)
        if self._threads is not None:
            self._threads.close()
            self._threads = None
