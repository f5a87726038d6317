"""All open streams of a server: counted, limited, cut together; and what becomes of a run that nobody follows any more."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ..contracts import Clock
from ..core.agui.wire import Shared
from .problems import Problem
from .settings import CancelAfter, OnDisconnect, ServerLimits, StreamOptions

if TYPE_CHECKING:
    from .stream import Stream

logger = logging.getLogger("pilothouse.server")

_KEPT: Final = 4
"""Conversations of one run that are kept for its readers: the present one, and those of readers that lag."""


Made = TypeVar("Made")


class ReaderCache:
    """What the readers of one run need alike: made once, for whoever comes first, while there are at least two.

    Attributes:
        frames: flowing text as it is sent.
    """

    def __init__(self) -> None:
        self.frames: Shared = {}
        self._made: dict[Hashable, asyncio.Task[Any]] = {}

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, Made]]) -> Made:
        """What `make` makes. Who leaves meanwhile takes it from nobody, and a failure is not kept."""
        task = self._made.get(key)
        if task is None:
            if len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            task = self._made[key] = asyncio.get_running_loop().create_task(make())
        try:
            made: Made = await asyncio.shield(task)
        except Exception:
            self._made.pop(key, None)
            raise
        return made


class Registry:
    """All open streams of a server: counted, limited, and cut together."""

    def __init__(self, clock: Clock, options: StreamOptions, limits: ServerLimits) -> None:
        self.clock = clock
        self.options = options
        self._limits = limits
        self._streams: set[Stream] = set()
        self._tenants: Counter[str] = Counter()
        self._runs: Counter[str] = Counter()
        self._reader_caches: dict[str, ReaderCache] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._cut_off = ""  # why all streams were cut: those that come back are not let in
        self.cuts: Counter[str] = Counter()
        self.start_overs = 0

    def __len__(self) -> int:
        return len(self._streams)

    def check(self, tenant: str, run: str) -> None:
        """Refuses a further stream that there is no room for.

        Raises:
            Problem: 429 or 503, with when to come again.
        """
        limits = self._limits
        if self._cut_off:
            raise Problem(503, self._cut_off, "the server is going down", headers={"Retry-After": "5"})
        if limits.streams is not None and len(self._streams) >= limits.streams:
            raise _too_many(503, "overloaded")
        if limits.streams_per_tenant is not None and self._tenants[tenant] >= limits.streams_per_tenant:
            raise _too_many(429, "too_many_streams")
        if limits.followers_per_run is not None and self._runs[run] >= limits.followers_per_run:
            raise _too_many(429, "too_many_streams")

    def followers(self, run: str) -> int:
        """How many connections follow a run."""
        return self._runs[run]

    def reader_cache(self, run: str) -> ReaderCache | None:
        """What one connection made of a run and others can use; None where there is no other."""
        if self._runs[run] < 2:
            return None
        found = self._reader_caches.get(run)
        if found is None:
            found = self._reader_caches[run] = ReaderCache()
        return found

    def shared(self, run: str) -> Shared | None:
        """Frames of a run that one connection wrote and others can use; None where there is no other."""
        reader_cache = self.reader_cache(run)
        return None if reader_cache is None else reader_cache.frames

    @asynccontextmanager
    async def open(self, stream: Stream) -> AsyncIterator[None]:
        """Counts a stream while it is open."""
        self._streams.add(stream)
        self._tenants[stream.tenant] += 1
        self._runs[stream.run] += 1
        if self._cut_off:  # it was let in just before
            stream.cut(self._cut_off)
        try:
            yield
        finally:
            self._streams.discard(stream)
            self._less(self._tenants, stream.tenant)
            if not self._less(self._runs, stream.run):
                self._reader_caches.pop(stream.run, None)
            if not self._streams:
                waiters, self._waiters = self._waiters, []
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(None)

    @staticmethod
    def _less(counter: Counter[str], key: str) -> int:
        counter[key] -= 1
        left = counter[key]
        if not left:
            del counter[key]
        return left

    def faces(self) -> Counter[str]:
        """How many streams of each face are open."""
        return Counter([stream.face for stream in self._streams])

    def cut_all(self, reason: str) -> None:
        """Cuts every open stream, for good: a client that comes back at once must not find what the others were spared."""
        self._cut_off = reason
        for stream in list(self._streams):
            stream.cut(reason)

    async def wait_empty(self) -> None:
        """Waits until no stream is open."""
        while self._streams:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


def _too_many(status: int, code: str) -> Problem:
    return Problem(status, code, "too many streams are open", headers={"Retry-After": "1"})


class DisconnectPolicy:
    """What becomes of a run that nobody follows any more (SV-60); `policy` is one for all faces, or one for each."""

    def __init__(
        self,
        registry: Registry,
        policy: OnDisconnect | Mapping[str, OnDisconnect],
        spawn: Callable[[Awaitable[object], str], object],
    ) -> None:
        self._registry = registry
        self._policies = policy if isinstance(policy, Mapping) else None
        self._policy: OnDisconnect = "continue" if isinstance(policy, Mapping) else policy
        self._spawn = spawn

    def gone(self, run: str, face: str, cancel: Callable[[], Awaitable[object]]) -> None:
        """A reader of that run left, on that face. Called while it still counts."""
        policy = self._policy if self._policies is None else self._policies.get(face, "continue")
        if policy != "continue":
            self._spawn(self._later(run, policy, cancel), f"unfollowed {run}")

    async def _later(self, run: str, policy: OnDisconnect, cancel: Callable[[], Awaitable[object]]) -> None:
        seconds = policy.seconds if isinstance(policy, CancelAfter) else 0.0
        await self._registry.clock.sleep(seconds)
        if not self._registry.followers(run):
            try:
                await cancel()
            except Exception:
                logger.exception("run %s, which nobody follows, was not cancelled", run)


__all__ = ["DisconnectPolicy", "ReaderCache", "Registry"]
