"""Stops of a remote agent: the connection is closed; a server of ours says that it stopped (AG-90, AG-211)."""

from __future__ import annotations

import asyncio
import logging
from typing import final

from ..agent_errors import AgentError
from ..agents.operation import Later, Operation
from ..agents.surface import Attempt, Surface
from ..clock import within
from ..core.interrupts import Step
from ..projection import Delivered, StopResult
from .attempt import Sending
from .control import RunControlClient
from .listening import Listener
from .phases import Phases
from .running import Runner

logger = logging.getLogger("pilothouse.remote")


@final
class Stopper:
    """Stops what is in flight; with `control`, the proof is waited for, `grace` seconds at most."""

    def __init__(
        self,
        surface: Surface,
        listener: Listener,
        phases: Phases,
        runner: Runner,
        *,
        control: RunControlClient | None,
        grace: float,
    ) -> None:
        self._surface = surface
        self._listener = listener
        self._phases = phases
        self._runner = runner
        self._control = control
        self._grace = grace

    def stop(self, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. The connection is closed; a server of ours is asked to stop, and says that it did."""
        self._runner.withdraw()
        attempt = self._surface.attempt
        if attempt is None:
            return Later.settled("nothing")
        return self._stop(attempt, self._grace if grace is None else grace)

    def cancel(self, op: Operation) -> None:
        """A stop for one run alone."""
        if self._surface.tasks.closed or op.done():
            return
        attempt = self._surface.attempt
        if attempt is not None and attempt.op is op:
            self._stop(attempt, self._grace)
        else:
            self._runner.withdraw(op)

    def supersede(self, busy: Attempt, *, told: bool) -> None:
        """The live run gives way; `told`: what takes its place tells the server so."""
        self._halt(busy, "interrupted", "superseded")
        if self._control is not None and not told:
            order = self._order(self._control, busy.run_id)
            self._runner.wait_for(self._surface.tasks.spawn(order, "supersede"))
        busy.op.settle("interrupted")

    def _halt(self, attempt: Attempt, outcome: Delivered, reason: str | None = None) -> None:
        """Nothing more of it is told; its connection is being closed when this returns."""
        assert isinstance(attempt, Sending)
        attempt.live = False
        if attempt.task is not None:
            attempt.task.cancel()
        with self._surface.batch():
            self._leave_batch(attempt)
            self._listener.end(attempt, outcome, reason=reason)

    def _leave_batch(self, attempt: Sending) -> None:
        """A stop is no answer: what is asked stays, and an answer that may have left is uncertain (AG-95)."""
        book = self._surface.book
        if not attempt.resuming or book.phase == "collecting":
            book.step_if(Step.BOUNDARY)
        elif attempt.exchange is not None or book.phase == "acknowledged":
            book.step_if(Step.LOST)
        elif book.step_if(Step.UNSENT):
            book.decision = None

    def _stop(self, attempt: Attempt, grace: float) -> Later[StopResult]:
        self._halt(attempt, "aborted")
        late: Later[StopResult] = Later(asyncio.get_running_loop())
        with self._surface.batch():
            self._surface.stopping.set(True)
        task = self._surface.tasks.spawn(self._prove(attempt, grace, late), "stop")
        task.add_done_callback(lambda _: _settle(attempt, late, "unconfirmed"))  # closed meanwhile
        if self._control is not None:
            self._runner.wait_for(task)  # only our server says when it is over
        return late

    async def _prove(self, attempt: Attempt, grace: float, late: Later[StopResult]) -> None:
        result: StopResult = "will_stop"
        try:
            if attempt.task is not None:
                await asyncio.wait({attempt.task})
            if self._control is not None:
                result = await self._proved(self._control, attempt.run_id, grace)
            await self._phases.save()
        finally:
            with self._surface.batch():
                self._surface.stopping.set(False)
            _settle(attempt, late, result)
            self._runner.next()

    async def _proved(self, control: RunControlClient, run_id: str, grace: float) -> StopResult:
        try:
            stopped = await within(self._surface.clock, grace, _stopped_there(control, run_id))
        except TimeoutError:
            stopped = False
        except Exception as error:  # noqa: BLE001 - whatever it is, the stop is not proved
            stopped = isinstance(error, AgentError) and error.status == 404  # it never came into being
            if not stopped:
                logger.warning("the stop of run %s is not confirmed: %s", run_id, error)
        return "stopped" if stopped else "unconfirmed"

    async def _order(self, control: RunControlClient, run_id: str) -> None:
        try:
            async with asyncio.timeout(self._grace):
                await control.cancel(run_id, "superseded")
        except (AgentError, TimeoutError) as error:
            logger.debug("run %s was not stopped: %s", run_id, error)


async def _stopped_there(control: RunControlClient, run_id: str) -> bool:
    """Orders the stop and waits until the run has its end there; False if it was lost on the way."""
    await control.cancel(run_id, "stopped")
    view = await control.run(run_id)
    if view["state"] != "terminal":
        last = view["last_seq"]
        assert isinstance(last, int)
        async for _ in control.follow(run_id, after=last, deltas=False):
            pass
        view = await control.run(run_id)
    ended: bool = view["state"] == "terminal"
    return ended


def _settle(attempt: Attempt, late: Later[StopResult], result: StopResult) -> None:
    attempt.op.settle("aborted")
    late.settle(result)


__all__ = ["Stopper"]
