"""A run that another process drives, shown here: its facts from the journal, its deltas through the relay.

Who looks at a run need not know where it is driven (`PublishedRun`). One a run and process, however many look at it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from ..clock import SystemClock
from ..cluster import Place
from ..contracts import Clock, Journal
from ..core.run import Phase, RunState, apply
from ..errors import JournalCorrupt, JournalError
from ..events import (
    ArgumentsTold,
    CallHeartbeat,
    CallProgress,
    Delta,
    ReasoningTold,
    ResponseStream,
    TextTold,
)
from ..records import Record, Registration
from .ring import Observer, Ring

logger = logging.getLogger("pilothouse.runs")

PAGE = 500

RETRY_S = 0.5
"""Seconds until the journal is asked again where it was away."""

_OVER = (Phase.TERMINAL, Phase.UNKNOWN)
_OF_A_MESSAGE = (TextTold, ReasoningTold, ArgumentsTold, ResponseStream)
_OF_A_CALL = (CallProgress, CallHeartbeat)


class Mirror:
    """One run as it goes on elsewhere.

    Attributes:
        state: the fold of the facts that were shown.
        over: nothing more will be shown here.
        place: how far the deltas were read.
    """

    __slots__ = (
        "_clock",
        "_held",
        "_journal",
        "_on_over",
        "_pump",
        "_woken",
        "followers",
        "observers",
        "over",
        "place",
        "registration",
        "ring",
        "run_id",
        "state",
    )

    def __init__(
        self,
        registration: Registration,
        state: RunState,
        *,
        journal: Journal,
        clock: Clock | None = None,
        buffer: int,
        buffer_bytes: int,
        on_over: Callable[[Mirror], None],
    ) -> None:
        self.registration = registration
        self.run_id = registration.spec.run_id
        self.state = state
        self.ring = Ring(buffer, buffer_bytes)
        self.observers: list[Observer] = []
        self.followers = 0
        self.over = False
        self.place: Place = (0, 0)
        self._journal = journal
        self._clock = clock or SystemClock()
        self._on_over = on_over
        self._held: deque[Delta] = deque()  # told behind facts that were not read yet
        self._woken = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def wanted(self) -> bool:
        """Whether anybody looks at it."""
        return bool(self.followers or self.observers)

    @property
    def stoppable(self) -> bool:
        """Whether a stop can still decide how the run ends, as far as is known here."""
        return not self.over and self.state.phase not in _OVER

    def begin(self) -> None:
        """Begins to show what happens."""
        if self._pump is None and not self.over:
            self._pump = asyncio.get_running_loop().create_task(
                self._follow(), name=f"pilothouse-mirror-{self.run_id}"
            )

    def take(self, deltas: Sequence[Delta], place: Place) -> None:
        """Shows what was told there, each behind the fact that it was told after."""
        self.place = place
        self._held.extend(deltas)
        self._release()
        if self._held:
            self._woken.set()

    def close(self) -> None:
        """Shows nothing more: the run is over, driven here, or nobody looks any longer."""
        if self.over:
            return
        self.over = True
        self.ring.close()
        if not self.followers:
            self.ring.clear()
        if self._pump is not None and self._pump is not asyncio.current_task():
            self._pump.cancel()
        self._on_over(self)

    # Facts

    async def _follow(self) -> None:
        while not self.over:
            try:
                await self._read()
                if not self.over:
                    await self._wait()
            except JournalCorrupt:
                logger.exception("run %s cannot be shown any further", self.run_id)
                self.close()
            except JournalError as error:
                logger.debug("run %s is looked at again later: %s", self.run_id, error)
                await self._clock.sleep(RETRY_S)

    async def _read(self) -> None:
        more = True
        while more and not self.over:
            page = await self._journal.read(self.run_id, after=self.state.seq, limit=PAGE)
            for record in page.records:
                self._show(record)
            more = page.more
        if self.state.phase is Phase.UNKNOWN:  # a loss with which the facts end
            self.close()

    async def _wait(self) -> None:
        """Until the journal has more, or a delta says that it has."""
        self._woken.clear()
        moved = asyncio.ensure_future(self._changed())
        woken = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait((moved, woken), return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()
            if not moved.done():
                moved.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.wait((moved,))
        if moved.done() and not moved.cancelled():
            moved.result()

    def _changed(self) -> Awaitable[int]:
        return self._journal.changed(self.run_id, self.state.seq, timeout=30.0)

    def _show(self, record: Record) -> None:
        apply(self.state, record)
        self._publish(record, len(record.body) + 200)
        self._release()
        if self.state.phase is Phase.TERMINAL:
            self.close()

    # Deltas

    def _release(self) -> None:
        """Shows the deltas whose facts were shown, but for those that came behind what superseded them."""
        while self._held and self._held[0].after_seq <= self.state.seq and not self.over:
            delta = self._held.popleft()
            if not self._superseded(delta):
                self._publish(delta, 400)

    def _superseded(self, delta: Delta) -> bool:
        body = delta.body
        if delta.after_seq == self.state.seq:
            return False
        if isinstance(body, _OF_A_MESSAGE):
            return self.state.names.has("message", body.message_id)
        return isinstance(body, _OF_A_CALL) and body.call_id not in self.state.calls

    def _publish(self, item: Record | Delta, size: int) -> None:
        self.ring.append(item, size)
        for observer in tuple(self.observers):
            try:
                observer(item)
            except Exception:
                logger.exception("an observer of run %s failed", self.run_id)


__all__ = ["Mirror"]
