"""Stops of a local agent: over when the call returns, proved later (AG-90 … AG-96)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..clock import within
from ..errors import (
    OwnedElsewhere,
)
from ..projection import StopResult
from .following import Followed
from .operation import Later, Operation
from .steering import Steering
from .surface import Attempt

logger = logging.getLogger("pilothouse.agents")


class Stopping(Steering):
    """The layer that stops."""

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. A run that waits for answers is cancelled too: its requests close with a result each."""
        self._enter("stop")
        return self._stop(grace)

    def _cancel(self, op: Operation, reason: str) -> None:
        """A stop for one run alone."""
        if self._closed or op.done():
            return
        attempt = self._attempt
        if attempt is not None and attempt.op is op:
            self._stop(None, queued=False)
            return
        for waiting in list(self._queued):
            if waiting.op is op:
                self._withdraw(waiting)

    def _withdraw(self, waiting: Attempt) -> None:
        """Takes a queued submission back, or stops it if its turn has just come."""
        task = self._queued.get(waiting)
        waiting.live, waiting.stopped = False, True
        for queued in self._controller.queued:
            if queued.id == waiting.run_id:
                queued.abort()
        current = self._controller.reply
        if task is None:
            return
        if not waiting.handed:
            task.cancel()
            self._take_back(waiting, None)
            return
        task.add_done_callback(lambda _: self._settle(waiting, "aborted"))
        if current is not None and current.id == waiting.run_id:
            self._controller.abort()

    def _stop(self, grace: float | None, *, queued: bool = True) -> Later[StopResult]:
        attempt, follow = self._attempt, self._follow
        waits = follow is not None and not follow.over.is_set() and not follow.stopped
        if queued:
            for waiting in list(self._queued):
                self._withdraw(waiting)
        if attempt is None and not waits and not self._left:
            return self._later("nothing")
        if (
            attempt is not None
            and follow is not None
            and follow.attempt is attempt
            and self._decided(attempt)
        ):
            return self._later("nothing")  # its end is on its way, and stays what it is (AG-93)
        with self._batch():
            self._display.end("aborted")
            self._children.end()
            if attempt is not None:
                attempt.live = False
            self._attempt = None
            self._void_book()
            self.client_tools.stopped()
            self.status.set("idle")
            self.is_loading.set(False)
            self.error.set(None)
            self.stopping.set(True)
        if follow is not None and follow.attempt is attempt:
            follow.telling.current = False
            follow.stopped = True
            self._stale = True
        else:
            follow = None
        self._captured = True
        late: Later[StopResult] = Later(asyncio.get_running_loop())
        run_id = attempt.run_id if attempt is not None else (follow.run_id if follow is not None else "")
        left = list(self._left)  # whose place nothing takes now
        asked = [self._order_stop(run_id, attempt)] if run_id else []
        asked += [self._order_stop(other.run_id, other) for other in left]
        tasks = {other.task for other in (attempt, *left) if other is not None and other.task is not None}
        orders = [order for order in asked if order is not None]
        proof = self._proof(follow, orders, tasks)
        task = self._spawn(self._stopped(run_id, attempt, proof, grace, late), "stop")
        task.add_done_callback(lambda _: self._given_up(attempt, late))
        return late

    def _decided(self, attempt: Attempt) -> bool:
        """Whether the run's end is fixed though it was not told yet."""
        last = self._controller.last_reply
        return last is not None and last.id == attempt.run_id and last.outcome is not None

    def _order_stop(self, run_id: str, attempt: Attempt | None) -> str | None:
        """Tells whatever runs to stop, before this returns where it is here; else the run that is still to be told."""
        controller = self._controller
        if attempt is not None:
            attempt.stopped = True
        reply = controller.reply
        if reply is not None and reply.id == run_id:
            controller.abort()
            return None
        if attempt is not None and not attempt.begun and attempt.task is not None:  # nothing was registered
            attempt.task.cancel()
            self._take_back(attempt, None)
            return None
        if attempt is not None and not attempt.handed:
            return None  # it is taken back instead
        if controller.runs.cancel_nowait(run_id, "stopped"):
            return None
        return run_id

    async def _stopped(
        self,
        run_id: str,
        attempt: Attempt | None,
        proof: Callable[[], Coroutine[Any, Any, None]],
        grace: float | None,
        late: Later[StopResult],
    ) -> None:
        """Waits for the proof, bounded (AG-91)."""
        result: StopResult = "stopped"
        try:
            await within(self._clock, self._grace if grace is None else grace, proof())
        except (TimeoutError, OwnedElsewhere):
            result = "unconfirmed"
        except Exception as error:  # noqa: BLE001 - whatever it is, the stop is not proved
            logger.warning("the stop of run %s is not confirmed: %s", run_id, error)
            result = "unconfirmed"
        finally:
            with self._batch():
                self.stopping.set(False)
            if attempt is not None:
                self._settle(attempt, "aborted")
            late.settle(result)

    def _given_up(self, attempt: Attempt | None, late: Later[StopResult]) -> None:
        """The agent was closed meanwhile: nobody is left waiting."""
        if attempt is not None:
            self._settle(attempt, "aborted")
        late.settle("unconfirmed")

    def _proof(
        self, follow: Followed | None, orders: Sequence[str], tasks: set[asyncio.Task[Any]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Waits until what was ordered to stop has come to its end."""

        async def proof() -> None:
            for run_id in orders:
                await self._controller.runs.cancel(run_id, "stopped")
            if follow is not None:
                await follow.over.wait()
            elif tasks:
                await asyncio.wait(tasks)

        return proof
