"""Asking the backend: what became of a run, what a thread holds, which run to join (AG-115 … AG-121)."""

from __future__ import annotations

import asyncio
import logging

from ..agent_errors import (
    AgentError,
)
from ..agents.operation import Later, Operation
from ..commands import TERMINATE
from ..core.interrupts import Step
from ..errors import AgentBusy
from ..projection import Err, ToolOutcome
from .check import Verdict, ask_control, ask_reconcile
from .running import Sending
from .stopping import Stopping

logger = logging.getLogger("pilothouse.remote")


class Asking(Stopping):
    """The layer that asks."""

    def _check_status(self) -> Later[None]:
        """See `Agent.check_status`: only reads; the answer arrives on the signals."""
        self._surface.tasks.enter("check the status")
        if self._surface.attempt is not None:
            raise AgentBusy("check the status", f"run {self._surface.attempt.run_id} is running")
        if self._surface.checking:
            raise AgentBusy("check the status", "another check is open")
        error = self.error.get()
        uncertain = self._surface.book.phase in ("uncertain", "recovery-required")
        if not uncertain and (error is None or error.kind != "interrupted"):
            return Later.settled(None)
        return self._ask()

    def _ask(self) -> Later[None]:
        late: Later[None] = Later(asyncio.get_running_loop())
        error = self.error.get()
        decision = self._surface.book.decision
        run_id = decision.run_id if decision is not None else (error.run_id if error is not None else None)
        with self._surface.batch():
            self._surface.checking = True
        task = self._surface.tasks.spawn(self._check(run_id or "", error, late), "check")
        task.add_done_callback(lambda _: late.settle(None))
        return late

    def _check_once(self, attempt: Sending) -> None:
        """After a cut answer the first question is asked by itself (AG-121)."""
        if (
            self._auto_checked != attempt.run_id
            and not self._surface.checking
            and not self._surface.tasks.closed
        ):
            self._auto_checked = attempt.run_id
            self._ask()

    async def _check(self, run_id: str, error: AgentError | None, late: Later[None]) -> None:
        thread = self._thread
        verdict: Verdict | None = None
        try:
            if self._control is not None:
                verdict = await ask_control(self._control, self.url, thread, run_id)
            else:
                assert self._settings.reconcile is not None
                book = self._surface.book
                verdict = await ask_reconcile(
                    self._settings.reconcile, thread, run_id, book.batch, book.generation
                )
        except Exception as why:  # noqa: BLE001 - a failure to ask changes nothing (AG-65)
            logger.warning("nobody could say what became of run %s: %s", run_id, why)
        finally:
            fresh = self.error.get() is error and self._surface.attempt is None and self._thread == thread
            with self._surface.batch():
                self._surface.checking = False
                if verdict is not None and fresh and not self._surface.tasks.closed:
                    self._apply(verdict, run_id)
            if self._store is not None and not self._surface.tasks.closed:
                await self._save()
            late.settle(None)
            if not self._surface.tasks.closed:
                self._next()

    def _apply(self, verdict: Verdict, run_id: str) -> None:
        """What an answer changes (AG-117, AG-120)."""
        if verdict.kind == "unknown":
            logger.warning("run %s is still unknown", run_id)
            return
        if verdict.messages is not None:
            self._surface.display.snapshot(verdict.messages, reasoning=True)
        if verdict.state is not None:
            self._reducer.set_state(verdict.state)
        book = self._surface.book
        if verdict.kind == "waiting":
            if verdict.batch:
                book.restore(verdict.batch, run_id)
            elif book.admits(Step.RESTORED_PENDING):
                self._step(Step.RESTORED_PENDING)
                book.decision = None
            self._native = True
        elif book.admits(Step.RESTORED_DONE):
            self._step(Step.RESTORED_DONE)
        if verdict.kind == "failed":
            assert verdict.error is not None
            verdict.error.run_id = run_id
            self.status.set("error")
            self.error.set(verdict.error)
            return
        self.error.set(None)
        self.status.set("idle")
        if verdict.kind == "running":
            self._join(run_id)

    async def _hydrate(self) -> None:
        """What the server has of the thread: messages, a run that lives, requests that wait (AG-138)."""
        assert self._control is not None
        from .check import hydrated

        try:
            found = await hydrated(self._control, self.url, self._thread)
        except AgentError as error:
            logger.warning("thread %s could not be loaded: %s", self._thread, error)
            return
        if self._surface.attempt is not None or self._surface.tasks.closed:
            return
        with self._surface.batch():
            if found.messages:
                self._surface.display.snapshot(found.messages, reasoning=True)
            if not found.batch:
                self._step_if(Step.CLOSED)
            if found.batch:
                self._surface.book.restore(found.batch, found.run_id)
            elif found.run_id:
                self._join(found.run_id)

    def _join(self, run_id: str) -> None:
        """Follows a run that lives: a GET, which starts nothing."""
        from .check import join_url

        assert self._surface.tasks.loop is not None
        attempt = Sending(run_id, Operation(self._surface.tasks.loop, run_id))
        attempt.ordinary = False
        attempt.url = join_url(self.url, self._thread, run_id)
        self._begin(attempt, continues=True)

    async def _deliver(self, outcomes: dict[str, ToolOutcome]) -> None:
        """Gives client results to the waiting run of our server without going on (AG-149, AG-150)."""
        assert self._control is not None
        run_id = self._last.run_id if self._last is not None else ""
        for call_id, outcome in outcomes.items():
            text = (
                outcome.message
                if isinstance(outcome, Err)
                else self._surface.display.get(f"{call_id}:result")
            )
            said = text if isinstance(text, str) else (text.text if text is not None else "")
            await self._control.command(
                run_id,
                f"flush:{call_id}"[:190],
                "answer",
                request_id=f"external:{call_id}",
                resolution={
                    "kind": "external",
                    "content": [{"type": "text", "text": said}],
                    "is_error": isinstance(outcome, Err),
                },
                extensions={TERMINATE: True},
            )
