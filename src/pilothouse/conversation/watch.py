"""The two limits on silence for a runtime that is not our loop: a port around its port (AC-72, AC-75, AC-108, TC-82).

The loop enforces them itself as it reads. Of any other runtime, its first delta or message is the hand-over, every fact or
delta is a sign of life, and nothing is counted while it is paused, in tools, or while somebody is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, Final

from ..clock import wait_any
from ..contracts import CancelScope, Clock, CommandInbox, GatePoint, RunFold, RunPort, Runtime
from ..errors import RecordRefused
from ..events import DeltaBody, Fact, Failed, MessageAdded, RunEnded
from ..loop.timers import Alarm
from ..messages import ArtifactRef
from ..records import Descriptor, Draft, Record, RunView, Start, StatusAnswer

GRACE: Final = 0.5
"""Seconds that a runtime has for leaving once it is cancelled."""


class Watched:
    """A runtime under the limits of its send; otherwise what it was given."""

    def __init__(self, runtime: Runtime, clock: Clock) -> None:
        self._runtime: Any = runtime
        self._clock = clock
        self.orphans = 0
        if hasattr(runtime, "offering"):  # it takes tools of AI controllers
            self.offering = self._offering
            self.takes_instructions = bool(getattr(runtime, "takes_instructions", True))

    @property
    def config_digest(self) -> str:
        """The runtime's own, if it has one."""
        return str(getattr(self._runtime, "config_digest", ""))

    def _offering(self, tools: Sequence[Any], instructions: str, *, digest: str = "") -> Watched:
        return Watched(self._runtime.offering(tools, instructions, digest=digest), self._clock)

    def describe(self) -> Descriptor:
        """The runtime's contract."""
        found: Descriptor = self._runtime.describe()
        return found

    async def run(self, start: Start, port: RunPort, /) -> None:
        """Works, unless it falls silent."""
        await self._under_limits(self._runtime.run, start, port)

    async def resume(self, start: Start, port: RunPort, /) -> None:
        """Goes on from the facts, unless it falls silent."""
        await self._under_limits(self._runtime.resume, start, port)

    async def query(self, start: Start, view: RunView, /) -> StatusAnswer:
        """Asks the runtime."""
        answer: StatusAnswer = await self._runtime.query(start, view)
        return answer

    async def _under_limits(
        self, work: Callable[[Start, RunPort], Awaitable[None]], start: Start, port: RunPort
    ) -> None:
        send = _seconds(start, "loop.send_timeout_ms")
        idle = _seconds(start, "loop.stream_idle_timeout_ms")
        if send is None and idle is None:
            await work(start, port)
            return
        watched = WatchedPort(port, self._clock, send, idle)
        inner = asyncio.ensure_future(work(start, watched))
        first: set[asyncio.Future[Any]] = {inner, watched.tripped}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not inner.done():
                await self._end(watched, port)
                await self._let_go(inner)
                return
            await inner
        finally:
            watched.stop()
            if not inner.done():
                inner.cancel()

    async def _end(self, watched: WatchedPort, port: RunPort) -> None:
        kind, text = watched.tripped.result()
        try:
            await port.record(RunEnded(Failed(kind, message=text, retryable=True)))
        except RecordRefused:  # a stop was faster
            return

    async def _let_go(self, inner: asyncio.Future[None]) -> None:
        inner.cancel()
        inner.add_done_callback(lambda done: done.cancelled() or done.exception())
        if not await wait_any(self._clock, GRACE, inner):
            self.orphans += 1
            inner.add_done_callback(self._came_home)

    def _came_home(self, _: object) -> None:
        self.orphans -= 1


class WatchedPort:
    """A run's port that notices every sign of life. `tripped` gets the failure's kind and text."""

    def __init__(self, port: RunPort, clock: Clock, send: float | None, idle: float | None) -> None:
        self._port = port
        self._clock = clock
        self._send = send
        self._idle = idle
        self._handed_over = False
        self._blocked = False
        self._since = clock.monotonic()
        self.tripped: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self._alarm = Alarm(clock, self._due, self._ring)
        watch = getattr(port, "on_gate", None)
        self._unwatch = None if watch is None else watch(lambda: self._alive(hands_over=False))
        self._alarm.look()

    def _due(self) -> float | None:
        limit = self._idle if self._handed_over else self._send
        return None if limit is None else self._since + limit

    def _ring(self) -> None:
        """Silence is over its limit; after a pause, a tool or a question, a full window follows."""
        port = self._port
        waits = bool(port.paused or port.state.requests) or any(
            call.state in ("awaiting", "started") for call in port.state.calls.values()
        )
        if waits or self._blocked:
            self._blocked = waits
            self._since = self._clock.monotonic()
            self._alarm.look()
        elif not self.tripped.done():
            kind = "idle_timeout" if self._handed_over else "send_timeout"
            limit = self._idle if self._handed_over else self._send
            self.tripped.set_result((kind, f"silent for {limit:g} s"))

    def _alive(self, *, hands_over: bool) -> None:
        self._since = self._clock.monotonic()
        if hands_over and not self._handed_over:
            self._handed_over = True
            self._alarm.look()

    def stop(self) -> None:
        """Nothing is watched any more."""
        self._alarm.stop()
        if self._unwatch is not None:
            self._unwatch()

    # contracts.RunPort

    @property
    def state(self) -> RunFold:
        """The fold of the facts."""
        return self._port.state

    @property
    def scope(self) -> CancelScope:
        """The stop."""
        return self._port.scope

    @property
    def commands(self) -> CommandInbox:
        """Commands."""
        return self._port.commands

    @property
    def paused(self) -> Collection[GatePoint]:
        """The points that are closed."""
        return self._port.paused

    def facts(self, after: int = 0) -> AsyncIterator[Record]:
        """The run's facts."""
        return self._port.facts(after)

    async def record(self, *facts: Fact | Draft) -> int:
        """Records, as a sign of life."""
        found = [fact.fact if isinstance(fact, Draft) else fact for fact in facts]
        self._alive(hands_over=any(isinstance(fact, MessageAdded) for fact in found))
        return await self._port.record(*facts)

    def tell(self, body: DeltaBody, /) -> None:
        """Tells, as a sign of life."""
        self._alive(hands_over=True)
        self._port.tell(body)

    async def gate(self, point: GatePoint) -> None:
        """Waits while paused; a full window follows."""
        await self._port.gate(point)
        self._alive(hands_over=False)

    async def put_artifact(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes."""
        return await self._port.put_artifact(data, media_type)

    async def get_artifact(self, digest: str) -> bytes:
        """The bytes of an artifact."""
        return await self._port.get_artifact(digest)


def _seconds(start: Start, name: str) -> float | None:
    given = start.spec.options.get(name)
    return given / 1000 if isinstance(given, int | float) else None
