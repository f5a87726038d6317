"""Stops of a remote agent: the connection is closed; a server of ours says that it stopped (AG-90, AG-211)."""

from __future__ import annotations

import asyncio
import logging

from ..agent_errors import (
    AgentError,
)
from ..agents.operation import Later, Operation
from ..agents.surface import Attempt
from ..clock import within
from ..core.interrupts import Step
from ..projection import Delivered, StopResult
from .answering import Answering
from .running import Sending

logger = logging.getLogger("pilothouse.remote")


class Stopping(Answering):
    """The layer that stops."""

    def stop(self, *, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. The connection is closed; a server of ours is asked to stop, and says that it did."""
        self._surface.tasks.enter("stop")
        with self._surface.batch():
            for waiting, _ in self._queue:
                if waiting.message_id:
                    self._surface.display.remove(waiting.message_id)
                waiting.op.settle("aborted")
            self._queue.clear()
        attempt = self._surface.attempt
        if attempt is None:
            return Later.settled("nothing")
        return self._stop(attempt, grace)

    def _cancel(self, op: Operation) -> None:
        """A stop for one run alone."""
        if self._surface.tasks.closed or op.done():
            return
        if self._surface.attempt is not None and self._surface.attempt.op is op:
            self._stop(self._surface.attempt, None)
            return
        for item in list(self._queue):
            if item[0].op is op:
                self._queue.remove(item)
                with self._surface.batch():
                    self._surface.display.remove(item[0].message_id)
                item[0].op.settle("aborted")

    def _stop(self, attempt: Attempt, grace: float | None) -> Later[StopResult]:
        self._halt(attempt, "aborted", None)
        late: Later[StopResult] = Later(asyncio.get_running_loop())
        with self._surface.batch():
            self.stopping.set(True)
        limit = self._settings.stop_grace if grace is None else grace
        task = self._surface.tasks.spawn(self._stopped(attempt, limit, late), "stop")
        task.add_done_callback(lambda _: self._given_up(attempt, late))
        self._awaited(task)
        return late

    def _given_up(self, attempt: Attempt, late: Later[StopResult]) -> None:
        """The agent was closed meanwhile: nobody is left waiting."""
        attempt.op.settle("aborted")
        late.settle("unconfirmed")

    def _awaited(self, stop: asyncio.Task[None]) -> None:
        """The next request waits for this stop: only our server says when it is over."""
        if self._control is not None:
            self._stops.add(stop)
            stop.add_done_callback(self._stops.discard)

    def _halt(self, attempt: Attempt, outcome: Delivered, reason: str | None) -> None:
        """Nothing more of it is told; its connection is being closed when this returns."""
        assert isinstance(attempt, Sending)
        attempt.live = False
        if attempt.task is not None:
            attempt.task.cancel()
        with self._surface.batch():
            book = self._surface.book
            if attempt.resuming and book.phase in ("claimed", "resuming", "acknowledged"):
                left = attempt.exchange is not None
                if left or book.phase == "acknowledged":
                    self._step_if(Step.LOST)
                elif book.phase in ("claimed", "resuming"):
                    self._step(Step.UNSENT)
                    book.decision = None
            elif book.phase == "collecting":
                self._step(Step.BOUNDARY)
            self._roll_back(attempt)
            attempt.outcome = outcome
            self._surface.end(attempt, outcome, reason=reason)

    async def _stopped(self, attempt: Attempt, grace: float, late: Later[StopResult]) -> None:
        result: StopResult = "will_stop"
        try:
            if attempt.task is not None:
                await asyncio.wait({attempt.task})
            if self._control is not None:
                result = await self._proved(attempt, grace)
            await self._save()
        finally:
            with self._surface.batch():
                self.stopping.set(False)
            attempt.op.settle("aborted")
            late.settle(result)
            self._next()

    async def _proved(self, attempt: Attempt, grace: float) -> StopResult:
        assert self._control is not None
        try:
            stopped = await within(self._surface.clock, grace, self._stopped_there(attempt.run_id))
        except TimeoutError:
            stopped = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the stop is not proved
            stopped = isinstance(error, AgentError) and error.status == 404  # it never came into being
            if not stopped:
                logger.warning("the stop of run %s is not confirmed: %s", attempt.run_id, error)
        return "stopped" if stopped else "unconfirmed"

    async def _stopped_there(self, run_id: str) -> bool:
        """Orders the stop and waits until the run has its end there; False if it was lost on the way."""
        assert self._control is not None
        await self._control.cancel(run_id, "stopped")
        view = await self._control.run(run_id)
        if view["state"] != "terminal":
            last = view["last_seq"]
            assert isinstance(last, int)
            async for _ in self._control.follow(run_id, after=last, deltas=False):
                pass
            view = await self._control.run(run_id)
        ended: bool = view["state"] == "terminal"
        return ended

    def _supersede(self, busy: Attempt, *, told: bool) -> None:
        """The live run gives way; `told`: what takes its place tells the server so."""
        self._halt(busy, "interrupted", "superseded")
        if self._control is not None and not told:
            self._awaited(self._surface.tasks.spawn(self._told_to_stop(busy.run_id), "supersede"))
        busy.op.settle("interrupted")

    async def _told_to_stop(self, run_id: str) -> None:
        assert self._control is not None
        try:
            async with asyncio.timeout(self._settings.stop_grace):
                await self._control.cancel(run_id, "superseded")
        except (AgentError, TimeoutError) as error:
            logger.debug("run %s was not stopped: %s", run_id, error)
