"""Stops of a local agent: over when the call returns, proved later (AG-90 … AG-96)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any

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
        waiting.live = False
        for reply in self._controller.queued:
            if reply.id == waiting.run_id:
                reply.abort()
        if (task := self._queued.get(waiting)) is not None and waiting.run_id not in self._commits:
            task.cancel()
            self._take_back(waiting, None)

    def _stop(self, grace: float | None, *, queued: bool = True) -> Later[StopResult]:
        attempt, follow = self._attempt, self._follow
        waits = follow is not None and not follow.over.is_set() and not follow.stopped
        if queued:
            for waiting in list(self._queued):
                self._withdraw(waiting)
        if attempt is None and not waits:
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
        asked = self._order_stop(run_id, attempt)
        self._spawn(self._stopped(run_id, attempt, follow, asked, grace, late), "stop")
        return late

    def _decided(self, attempt: Attempt) -> bool:
        """Whether the run's end is fixed though it was not told yet."""
        last = self._controller.last_reply
        return last is not None and last.id == attempt.run_id and last.outcome is not None

    def _order_stop(self, run_id: str, attempt: Attempt | None) -> Awaitable[Any] | None:
        """Tells whatever runs to stop, before this returns where it is here."""
        controller = self._controller
        reply = controller.reply
        if reply is not None and reply.id == run_id:
            controller.abort()
            return None
        if attempt is not None and attempt.run_id not in self._commits and attempt.task is not None:
            task, follow = attempt.task, self._follow
            if follow is None or follow.run_id != run_id:  # the task never ran: nothing was registered
                task.cancel()
                self._take_back(attempt, None)
                return None
        if controller.runs.cancel_nowait(run_id, "stopped"):
            return None
        return controller.runs.cancel(run_id, "stopped")

    async def _stopped(
        self,
        run_id: str,
        attempt: Attempt | None,
        follow: Followed | None,
        asked: Awaitable[Any] | None,
        grace: float | None,
        late: Later[StopResult],
    ) -> None:
        """Waits for the proof, bounded (AG-91)."""
        result: StopResult = "stopped"
        limit = asyncio.ensure_future(self._clock.sleep(self._grace if grace is None else grace))
        proof = asyncio.ensure_future(self._proof(run_id, attempt, follow, asked))
        try:
            await asyncio.wait({limit, proof}, return_when=asyncio.FIRST_COMPLETED)
            if not proof.done() or isinstance(proof.exception(), OwnedElsewhere):
                result = "unconfirmed"
            elif proof.exception() is not None:
                logger.warning("the stop of run %s is not confirmed: %s", run_id, proof.exception())
                result = "unconfirmed"
        finally:
            limit.cancel()
            proof.cancel()
            with self._batch():
                self.stopping.set(False)
            if attempt is not None:
                self._settle(attempt, "aborted")
            late.settle(result)

    async def _proof(
        self, run_id: str, attempt: Attempt | None, follow: Followed | None, asked: Awaitable[Any] | None
    ) -> None:
        if asked is not None:
            await asked
        if follow is not None:
            await follow.over.wait()
        elif attempt is not None and attempt.task is not None:
            await asyncio.wait({attempt.task})
