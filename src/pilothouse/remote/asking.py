"""Asking the backend: what became of a run, what a thread holds, which run to join (AG-115 … AG-121)."""

from __future__ import annotations

import logging
from typing import final

from ..agent_errors import AgentError
from ..agents.operation import Later
from ..agents.surface import Surface
from ..core.agui.reduce import Reducer
from ..core.interrupts import Step
from .attempt import Sending
from .check import Reconcile, Verdict, ask_control, ask_reconcile, hydrated, join_url
from .control import RunControlClient
from .phases import Phases
from .running import Runner

logger = logging.getLogger("pilothouse.remote")


@final
class Asker:
    """Asks our server, or a function of the host; only reads, and shows what it learned."""

    def __init__(
        self,
        surface: Surface,
        reducer: Reducer,
        phases: Phases,
        runner: Runner,
        *,
        url: str,
        control: RunControlClient | None,
        reconcile: Reconcile | None,
    ) -> None:
        self._surface = surface
        self._book = surface.book
        self._reducer = reducer
        self._phases = phases
        self._runner = runner
        self._url = url
        self._control = control
        self._reconcile = reconcile
        self._asked_about = ""  # the run whose cut answer led to a question by itself

    def check_status(self) -> Later[None]:
        """See `Agent.check_status`: the answer arrives on the signals."""
        self._surface.admit_check()
        error = self._surface.error.get()
        uncertain = self._book.phase in ("uncertain", "recovery-required")
        if not uncertain and (error is None or error.kind != "interrupted"):
            return Later.settled(None)
        return self._ask()

    def check_once(self, run_id: str) -> None:
        """After a cut answer the first question is asked by itself (AG-121)."""
        askable = self._control is not None or self._reconcile is not None
        if askable and self._asked_about != run_id and not self._surface.checking:
            self._asked_about = run_id
            self._ask()

    def _ask(self) -> Later[None]:
        error, decision = self._surface.error.get(), self._book.decision
        run_id = decision.run_id if decision is not None else (error.run_id if error is not None else None)
        return self._surface.check(lambda: self._check(run_id or "", error))

    async def _check(self, run_id: str, error: AgentError | None) -> None:
        surface, thread_id = self._surface, self._runner.thread_id
        verdict: Verdict | None = None
        try:
            verdict = await self._verdict(thread_id, run_id)
        except Exception as why:  # noqa: BLE001 - a failure to ask changes nothing (AG-65)
            logger.warning("nobody could say what became of run %s: %s", run_id, why)
        finally:
            same = self._runner.thread_id == thread_id and surface.error.get() is error
            with surface.batch():
                surface.checking = False
                if verdict is not None and same and surface.attempt is None and not surface.tasks.closed:
                    self._apply(verdict, run_id)
        await self._phases.save()
        self._runner.next()

    async def _verdict(self, thread_id: str, run_id: str) -> Verdict:
        if self._control is not None:
            return await ask_control(self._control, self._url, thread_id, run_id)
        assert self._reconcile is not None
        book = self._book
        return await ask_reconcile(self._reconcile, thread_id, run_id, book.batch, book.generation)

    def _apply(self, verdict: Verdict, run_id: str) -> None:
        """What an answer changes (AG-117, AG-120)."""
        if verdict.kind == "unknown":
            logger.warning("run %s is still unknown", run_id)
            return
        if verdict.messages is not None:
            self._surface.display.snapshot(verdict.messages, reasoning=True)
        if verdict.state is not None:
            self._reducer.set_state(verdict.state)
        book = self._book
        if verdict.kind != "waiting":
            book.step_if(Step.RESTORED_DONE)
        elif verdict.batch:
            book.restore(verdict.batch, run_id)
        elif book.step_if(Step.RESTORED_PENDING):
            book.decision, book.native = None, True
        if verdict.error is not None:
            verdict.error.run_id = run_id
        self._surface.rest(verdict.error)
        if verdict.kind == "running":
            self._join(run_id)

    async def hydrate(self) -> None:
        """What our server has of the thread: messages, a run that lives, requests that wait (AG-138)."""
        surface = self._surface
        if self._control is None:
            return
        try:
            found = await hydrated(self._control, self._url, self._runner.thread_id)
        except AgentError as error:
            logger.warning("thread %s could not be loaded: %s", self._runner.thread_id, error)
            return
        if surface.attempt is not None or surface.tasks.closed:
            return
        with surface.batch():
            if found.messages:
                surface.display.snapshot(found.messages, reasoning=True)
            if found.batch:
                self._book.restore(found.batch, found.run_id)
                return
            self._book.step_if(Step.CLOSED)
            if found.run_id:
                self._join(found.run_id)

    def _join(self, run_id: str) -> None:
        """Follows a run that lives: a GET, which starts nothing."""
        url = join_url(self._url, self._runner.thread_id, run_id)
        self._runner.begin(Sending(run_id, url=url, ordinary=False), continues=True)


__all__ = ["Asker"]
