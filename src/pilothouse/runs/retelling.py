"""A foreign agent tells a run again: whether it tells what is recorded (RC-55, RC-57).

Nothing is written here. What the controller itself can prove, such as answers and settled requests, need not come
again; everything else must, in order, with the same event id and digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import TypeAlias, TypeVar

from ..clock import wait_any
from ..contracts import Clock, Replay, Replayable, RunPort
from ..core.canonical import NotJSON, draft_digest
from ..core.run import RunState
from ..core.settling import event_id_of
from ..errors import RecoveryMismatch
from ..events import (
    CommandAnswered,
    InputReturned,
    Noted,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunStarted,
)
from ..records import Draft, Record, Start
from .timing import RunTiming

T = TypeVar("T")

CLOSING_S = 1.0
"""How long an agent that is not listened to any more may take to notice."""

Work: TypeAlias = Callable[[Start, RunPort], Awaitable[None]]

_MAY = (CommandAnswered, RequestResolved, RequestClosed, InputReturned, Noted)


def _optional(record: Record, state: RunState) -> bool:
    """Whether a recorded fact of the runtime may be left out of a retelling (the column *replay* of RC §3.3)."""
    fact = record.fact
    if isinstance(fact, RequestOpened):
        return fact.request.id not in state.requests
    if isinstance(fact, RunStarted):  # the port puts one in front of a runtime's first fact
        return record.event_id == event_id_of(fact, 0) and not fact.skipped
    return isinstance(fact, _MAY)


class Retelling:
    """One try to recover a run by what its agent tells. Closed by the work that it hands over, or by `aclose`."""

    def __init__(self, clock: Clock, timing: RunTiming, prefix: Sequence[Record], state: RunState) -> None:
        self._clock = clock
        self._timing = timing
        self._prefix = prefix
        self._state = state
        self._stack = AsyncExitStack()

    async def check(self, runtime: Replayable, start: Start) -> tuple[Work | None, int]:
        """What drives the run from here on (None: its beginning again), and how many facts were told again.

        Raises:
            RecoveryMismatch: `prefix`, `timeout` or `absent`; nothing was written.
        """
        try:
            replay = await self._bounded(
                self._stack.enter_async_context(runtime.replay(start, self._prefix)), self._timing.recover
            )
            if self._begins_again(replay, start.spec.run_id):
                await self.aclose()
                return None, 0
            told = await self._bounded(self._compare(replay), self._timing.recover)
        except RecoveryMismatch:
            await self.aclose()
            raise
        except Exception as error:
            await self.aclose()
            why = f"the retelling failed: {type(error).__name__}: {error}"
            raise RecoveryMismatch("prefix", why) from error
        except BaseException:
            await self.aclose()
            raise

        async def confirm(_start: Start, port: RunPort) -> None:
            async with self._stack:
                await replay.confirm(port)

        return confirm, told

    async def aclose(self) -> None:
        """Lets go of the agent."""
        await self._stack.aclose()

    def _begins_again(self, replay: Replay, run_id: str) -> bool:
        """Whether the agent never had the run; one that had told something of it must still have it (RC-57)."""
        if replay.status == "absent" and self._prefix:
            raise RecoveryMismatch("absent", f"the agent no longer has run {run_id}")
        return replay.status == "absent"

    async def _compare(self, replay: Replay) -> int:
        """Reads until nothing that must come is left; returns how many facts came again."""
        items = aiter(replay)
        at = told = 0
        while (missing := self._next_must(at)) is not None:
            try:
                item = await self._bounded(anext(items), self._timing.replay_item)
            except StopAsyncIteration:
                raise RecoveryMismatch("prefix", f"expected {missing.event_id}, got the end") from None
            if isinstance(item, Draft):
                at = self._place(at, item) + 1
                told += 1
        return told

    def _next_must(self, at: int) -> Record | None:
        return next((record for record in self._prefix[at:] if not _optional(record, self._state)), None)

    def _place(self, at: int, draft: Draft) -> int:
        """Where in the prefix a draft stands: at the next fact, or behind such as may be left out."""
        event_id = draft.event_id or event_id_of(draft.fact, 0)
        try:
            digest = draft_digest(draft.fact, event_id, draft.causation, draft.source)
        except NotJSON as error:
            raise RecoveryMismatch("prefix", f"{event_id} is not JSON: {error}") from error
        for place in range(at, len(self._prefix)):
            record = self._prefix[place]
            if record.event_id == event_id:
                if record.digest != digest:
                    raise RecoveryMismatch("prefix", f"{event_id} was told with other content")
                return place
            if not _optional(record, self._state):
                raise RecoveryMismatch("prefix", f"expected {record.event_id}, got {event_id}")
        raise RecoveryMismatch("prefix", f"expected nothing more, got {event_id}")

    async def _bounded(self, waiting: Awaitable[T], seconds: float) -> T:
        task = asyncio.ensure_future(waiting)
        try:
            if not await wait_any(self._clock, seconds, task):
                raise RecoveryMismatch("timeout", f"the agent told nothing for {seconds} s")
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                # It is to let go of the stream before that is closed.
                await asyncio.wait({task}, timeout=CLOSING_S)
