"""What all runs of one loop share for their tools: threads, resources, and what was left behind."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, final

from .approval import Rule
from .threads import Threads
from .waiting import Wakeup

MAX_THREADS: Final = 1_000
"""Threads whose remembered approvals are kept."""


@final
class Resources:
    """Things that one call at a time may use, by name. An abandoned call keeps its own until it ends (LP-45)."""

    __slots__ = ("_held", "_waiting")

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._waiting: set[Wakeup] = set()

    def take(self, name: str | None, wakeup: Wakeup) -> bool:
        """Takes it if it is free; if not, `wakeup` rings when something becomes free."""
        if name is None:
            return True
        if name in self._held:
            self._waiting.add(wakeup)
            return False
        self._held.add(name)
        return True

    def give_back(self, name: str | None) -> None:
        """Frees it."""
        if name is not None:
            self._held.discard(name)
            waiting, self._waiting = self._waiting, set()
            for wakeup in waiting:
                wakeup.ring()


@final
class Bench:
    """Shared by the runs of a loop; closed with it.

    Attributes:
        deps: what `ToolContext.deps` is.
        abandoned: work that did not end in its grace and still goes on.
    """

    def __init__(self, deps: object) -> None:
        self.deps = deps
        self.resources = Resources()
        self.abandoned: set[asyncio.Future[Any]] = set()
        self._threads: Threads | None = None
        self._rules: OrderedDict[str, list[Rule]] = OrderedDict()

    def rules(self, thread_id: str) -> Sequence[Rule]:
        """What people have allowed for a whole thread. Memory of this process: after a restart they are asked again."""
        return self._rules.get(thread_id, ())

    def remember(self, thread_id: str, rule: Rule) -> None:
        """Remembers an allow for the thread; the threads used last are kept."""
        self._rules.setdefault(thread_id, []).append(rule)
        self._rules.move_to_end(thread_id)
        while len(self._rules) > MAX_THREADS:
            self._rules.popitem(last=False)

    @property
    def threads(self) -> Threads:
        """The worker threads; none is started before a sync tool runs."""
        if self._threads is None:
            self._threads = Threads()
        return self._threads

    def abandon(self, work: asyncio.Future[Any], release: Callable[[], object]) -> None:
        """Holds work that nobody waits for any more until it ends; what it says then is dropped (EF-12)."""
        self.abandoned.add(work)

        def ended(future: asyncio.Future[Any]) -> None:
            self.abandoned.discard(future)
            if not future.cancelled():
                future.exception()  # looked at, so that nobody warns
            release()

        work.add_done_callback(ended)

    def close(self) -> None:
        """Lets idle threads end."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
