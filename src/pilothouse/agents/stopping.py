"""Stops of a local agent: over when the call returns, proved later (AG-90 … AG-96)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any, final

from ..clock import within
from ..conversation.controller import AgentController
from ..errors import OwnedElsewhere
from ..projection import StopResult
from .following import Followed, Follower
from .operation import Later, Operation
from .sending import Sender
from .source import LocalSource
from .surface import Attempt, Surface

logger = logging.getLogger("pilothouse.agents")


@final
class Stopper:
    """Stops what is in flight, and waits for the proof for `grace` seconds."""

    def __init__(
        self,
        controller: AgentController,
        surface: Surface,
        source: LocalSource,
        follower: Follower,
        sender: Sender,
        *,
        grace: float,
    ) -> None:
        self._controller = controller
        self._surface = surface
        self._source = source
        self._follower = follower
        self._sender = sender
        self._grace = grace

    def cancel(self, op: Operation) -> None:
        """A stop for one run alone."""
        if self._surface.tasks.closed or op.done():
            return
        attempt = self._surface.attempt
        if attempt is not None and attempt.op is op:
            self._stop(attempt, self._grace)
        else:
            self._sender.withdraw(op)

    def stop(self, grace: float | None = None) -> Later[StopResult]:
        """See `Agent.stop`. A run that waits for answers is cancelled too: its requests close with a result each."""
        attempt, waits = self._surface.attempt, self._follower.waiting
        self._sender.withdraw_queued()
        if attempt is None and not waits and not self._follower.left:
            return Later.settled("nothing")
        return self._stop(attempt, self._grace if grace is None else grace)

    def _stop(self, attempt: Attempt | None, grace: float) -> Later[StopResult]:
        """Stops an attempt; None: a run that waits for answers, or what gave way to nothing that is left."""
        surface, follower = self._surface, self._follower
        if attempt is not None and self._decided(attempt):
            return Later.settled("nothing")  # its end is on its way, and stays what it is (AG-93)
        with surface.batch():
            surface.leave("aborted")
            self._source.subagents.end()
            follower.void()
            surface.rest()
            surface.stopping.set(True)
        follow = follower.stop(attempt)
        follower.captured = True
        asked: list[tuple[str, Attempt | None]] = []
        if attempt is not None:
            asked.append((attempt.run_id, attempt))
        elif follow is not None:
            asked.append((follow.run_id, None))
        asked += [(other.run_id, other) for other in follower.left]  # whose place nothing takes now
        orders = [run_id for run_id, other in asked if not self._ordered(run_id, other)]
        tasks = {other.task for _, other in asked if other is not None and other.task is not None}
        proof = partial(self._ended, orders, follow, tasks)
        late: Later[StopResult] = Later(asyncio.get_running_loop())

        def settle(result: StopResult) -> None:
            if attempt is not None:
                attempt.op.settle("aborted")
            late.settle(result)

        task = surface.tasks.spawn(self._prove(proof, grace, settle), "stop")
        task.add_done_callback(lambda _: settle("unconfirmed"))  # closed meanwhile: nobody is left waiting
        return late

    def _decided(self, attempt: Attempt) -> bool:
        """Whether the end of its run is fixed though it was not told yet."""
        last, follow = self._controller.last_reply, self._follower.shown
        followed = follow is not None and follow.attempt is attempt
        return followed and last is not None and last.id == attempt.run_id and last.outcome is not None

    def _ordered(self, run_id: str, attempt: Attempt | None) -> bool:
        """Tells whatever runs to stop; False: only the journal can tell it, which is to be waited for."""
        if attempt is not None and self._sender.stop(attempt):
            return True
        reply = self._controller.reply
        if reply is not None and reply.id == run_id:
            self._controller.abort()
            return True
        return self._controller.runs.cancel_nowait(run_id, "stopped")

    async def _prove(
        self,
        proof: Callable[[], Coroutine[Any, Any, None]],
        grace: float,
        settle: Callable[[StopResult], None],
    ) -> None:
        """Waits for the proof, bounded (AG-91)."""
        result: StopResult = "stopped"
        try:
            await within(self._surface.clock, grace, proof())
        except (TimeoutError, OwnedElsewhere):
            result = "unconfirmed"
        except Exception as error:  # noqa: BLE001 - whatever it is, the stop is not proved
            logger.warning("the stop of a run is not confirmed: %s", error)
            result = "unconfirmed"
        finally:
            with self._surface.batch():
                self._surface.stopping.set(False)
            settle(result)

    async def _ended(
        self, orders: Sequence[str], follow: Followed | None, tasks: Collection[asyncio.Task[None]]
    ) -> None:
        """Waits until what was ordered to stop has come to its end."""
        for run_id in orders:
            await self._controller.runs.cancel(run_id, "stopped")
        if follow is not None:
            await follow.over.wait()
        elif tasks:
            await asyncio.wait(tasks)


__all__ = ["Stopper"]
