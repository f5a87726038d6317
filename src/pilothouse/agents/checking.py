"""Asking the journal what became of a run of which nobody knows the end (AG-115 … AG-121)."""

from __future__ import annotations

import asyncio
import logging

from ..agent_errors import AgentError
from ..errors import (
    AgentBusy,
    PilothouseError,
)
from ..events import Failed
from ..records import RunView
from .operation import Later
from .stopping import Stopping
from .telling import told_history

logger = logging.getLogger("pilothouse.agents")


class Checking(Stopping):
    """The layer that asks."""

    def check_status(self) -> Later[None]:
        """See `Agent.check_status`: answered by the journal; never takes a run over."""
        self._enter("check the status")
        if self._attempt is not None:
            raise AgentBusy("check the status", f"run {self._attempt.run_id} is running")
        if self._checking:
            raise AgentBusy("check the status", "another check is open")
        error = self.error.get()
        if error is None or error.kind != "interrupted" or error.run_id is None:
            return self._later(None)
        late: Later[None] = Later(asyncio.get_running_loop())
        with self._batch():
            self._checking = True
        self._spawn(self._check(error, late), "check").add_done_callback(lambda _: late.settle(None))
        return late

    async def _check(self, error: AgentError, late: Later[None]) -> None:
        assert error.run_id is not None
        try:
            view = await self._asked(error.run_id)
            with self._batch():
                self._checking = False
            if self.error.get() is error and self._attempt is None and not self._closed:
                await self._conclude_check(error, view)
        except PilothouseError as why:
            logger.warning("nobody could say what became of run %s: %s", error.run_id, why)
        finally:
            with self._batch():
                self._checking = False
            late.settle(None)

    async def _asked(self, run_id: str) -> RunView:
        runs = self._controller.runs
        view = await runs.inspect(run_id)
        askable = view.status == "unknown" and view.outcome is None
        if askable and view.unknown is not None and "check_status" in view.unknown.ways:
            await runs.check_status(run_id)
            view = await runs.inspect(run_id)
        return view

    async def _conclude_check(self, error: AgentError, view: RunView) -> None:
        """What an answer changes (AG-117)."""
        outcome = view.outcome
        if outcome is None and view.status == "unknown":
            logger.warning("run %s is still unknown", view.run_id)
            return
        runs = self._controller.runs
        path = told_history(await runs.history(view.run_id))
        if self.error.get() is not error or self._attempt is not None or self._closed:
            return
        with self._batch():
            self._display.snapshot(path, reasoning=True)
            if isinstance(outcome, Failed):
                self.error.set(self._failed(view.run_id, outcome))
                return
            self.error.set(None)
            self.status.set("idle")
        if outcome is None:
            self._join(view.run_id)
