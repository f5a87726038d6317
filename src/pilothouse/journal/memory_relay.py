"""What several controllers over one journal in memory tell each other: for tests, and as the reading of the contract."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, final

from ..cluster import Place, Posted, Signal, Ticket, Told, queue_of
from ..core.run import TAKEOVERS_TRIED
from ..errors import CommandConflict, RunNotFound
from ..records import Owner
from .liveness import LeaseClock

if TYPE_CHECKING:
    from .memory import _Run

_KEPT = 1_000
"""Batches of deltas that are kept of all runs."""


@final
class _Post:
    __slots__ = ("answer", "body", "waiters")

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answer: bytes | None = None
        self.waiters: list[asyncio.Future[None]] = []


@final
class MemoryRelay:
    """Implements `cluster.Relay` within one event loop."""

    def __init__(self, runs: dict[str, _Run], leases: dict[str, int], clock: LeaseClock) -> None:
        self._runs = runs
        self._leases = leases
        self._clock = clock
        self._posts: dict[str, dict[str, _Post]] = {}
        self._told: list[Told] = []
        self._follows: dict[tuple[str, str], int] = {}
        self._callbacks: dict[Signal, list[Callable[[], object]]] = {"inbox": [], "told": []}

    async def post(self, run_id: str, command_id: str, body: bytes) -> bytes | None:
        """Puts a command into the inbox of a run; the answer, if it has one already."""
        if run_id not in self._runs:
            raise RunNotFound(run_id)
        found = self._posts.setdefault(run_id, {}).setdefault(command_id, _Post(body))
        if found.body != body:
            raise CommandConflict(run_id, command_id)
        self._call("inbox")
        return found.answer

    async def answered(self, run_id: str, command_id: str, *, timeout: float) -> bytes | None:
        """Waits for the answer."""
        found = self._posts[run_id][command_id]
        if found.answer is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            found.waiters.append(waiter)
            await asyncio.wait((waiter,), timeout=timeout)
        return found.answer

    async def inbox(self, run_ids: Collection[str]) -> tuple[Sequence[Posted], frozenset[str]]:
        """Commands without an answer, and which of the runs are followed elsewhere."""
        now = self._clock.now_ms()
        posted = [
            Posted(run_id, command_id, post.body)
            for run_id in run_ids
            for command_id, post in self._posts.get(run_id, {}).items()
            if post.answer is None
        ]
        wanted = {run_id for (run_id, _), until in self._follows.items() if until > now}
        return posted, frozenset(wanted.intersection(run_ids))

    async def answer(self, run_id: str, command_id: str, answer: bytes) -> None:
        """Answers a command; the first answer stays."""
        found = self._posts[run_id][command_id]
        if found.answer is None:
            found.answer = answer
        for waiter in found.waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def follow(self, node: str, run_ids: Collection[str], *, ttl_ms: int) -> None:
        """Says that this process wants the deltas of these runs for so long."""
        until = self._clock.now_ms() + ttl_ms
        self._follows.update({(run_id, node): until for run_id in run_ids})
        self._call("inbox")

    async def tell(self, told: Sequence[Told]) -> None:
        """Sends deltas."""
        self._told += told
        del self._told[:-_KEPT]
        self._call("told")

    async def told(self, places: Mapping[str, Place]) -> Sequence[Told]:
        """What was told of these runs behind these places, in order."""
        found = [
            item
            for item in self._told
            if item.run_id in places and (item.fence, item.n) > places[item.run_id]
        ]
        return sorted(found, key=lambda item: (item.run_id, item.fence, item.n))

    async def stranded(
        self, binding: str, descriptor_digest: str, *, after: int, limit: int
    ) -> tuple[Sequence[Ticket], int]:
        """Runs that should be driven and that nobody drives."""
        now = self._clock.now_ms()
        found = [
            run
            for run_id, run in self._runs.items()
            if run.number > after - 1
            and run.registration.binding == binding
            and run.registration.descriptor_digest == descriptor_digest
            and run.summary.state not in ("terminal", "unknown")
            and run.summary.takeovers < TAKEOVERS_TRIED
            and (run.owner is None or self._leases.get(run.owner, 0) <= now)
            and (
                not run.summary.resting or any(p.answer is None for p in self._posts.get(run_id, {}).values())
            )
        ][:limit]
        specs = [(run.registration.spec, run.fence) for run in found]
        queue = queue_of(binding, descriptor_digest)
        tickets = [Ticket(spec.run_id, queue, fence, spec.tenant, spec.thread_id) for spec, fence in specs]
        return tickets, found[-1].number + 1 if len(found) == limit else 0

    async def load(self, tenant: str, thread_id: str) -> tuple[int, int]:
        """How many runs of a principal, and of a thread, are driven now."""
        now = self._clock.now_ms()
        driven = [
            run.registration.spec
            for run in self._runs.values()
            if run.owner is not None
            and self._leases.get(run.owner, 0) > now
            and run.summary.state != "terminal"
            and not run.summary.resting
        ]
        of_tenant = [spec for spec in driven if spec.tenant == tenant]
        return len(of_tenant), sum(spec.thread_id == thread_id for spec in of_tenant)

    async def heartbeat(self, owner: Owner, ttl_ms: int) -> None:
        """This owner lives."""
        self._leases[owner.id] = self._clock.now_ms() + ttl_ms

    async def dead(self, owners: Collection[str]) -> frozenset[str]:
        """Which of these owners do not live any more."""
        now = self._clock.now_ms()
        return frozenset([owner for owner in owners if self._leases.get(owner, 0) <= now])

    def on_signal(self, signal: Signal, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back when there may be something new."""
        callbacks = self._callbacks[signal]
        callbacks.append(callback)
        return lambda: callbacks.remove(callback)

    def _call(self, signal: Signal) -> None:
        for callback in tuple(self._callbacks[signal]):
            callback()


__all__ = ["MemoryRelay"]
