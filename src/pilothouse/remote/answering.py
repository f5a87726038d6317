"""Answers to interrupts: claimed once, sent once, repeated byte for byte (AG-130 … AG-139)."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from ..agent_errors import RequestPending
from ..agents.given import Submission
from ..agents.operation import Operation
from ..agents.surface import Surface
from ..core.interrupts import Decision, Step
from .asked import InterruptWire, answered
from .attempt import Sending, content_of
from .listening import Listener
from .phases import Phases
from .running import Runner


@final
class Answerer:
    """Answers the open batch; one decision owns it from then on."""

    def __init__(
        self,
        surface: Surface,
        listener: Listener,
        phases: Phases,
        runner: Runner,
        *,
        wire: InterruptWire,
        new_id: Callable[[], str],
    ) -> None:
        self._surface = surface
        self._book = surface.book
        self._listener = listener
        self._phases = phases
        self._runner = runner
        self._wire = wire
        self._new_id = new_id

    def resume(self, given: Submission) -> Operation:
        """Answers, with a message and a patch of the state where they were given (AG-73)."""
        book, surface, last = self._book, self._surface, self._listener.last
        answers = given.answers_to(surface)
        surface.check_free("resume")
        if book.raised_by and last is not None and last.told == "failed":
            raise RequestPending("answer", [item.id for item in book.batch], "void: their run failed")
        if given.cancelled:
            return Operation.settled("aborted")
        resume, props = answered(answers, book.batch, self._wire, native=book.native, run_id=book.raised_by)
        parts = given.parts
        attempt = Sending(
            given.key or self._new_id(),
            self._new_id() if parts is not None else "",
            patch=given.patch,
            ordinary=False,
            resuming=True,
        )
        with surface.batch():
            book.step(Step.CLAIM)
            if attempt.message_id:
                surface.display.add_user(attempt.message_id, content_of(parts))
            self._runner.begin(attempt, patch=given.patch, continues=True, props=props, resume=resume)
            attempt.decision = Decision(self._new_id(), attempt.run_id, attempt.body.decode())
            self._claimed(attempt, attempt.decision)
        return attempt.op

    def again(self, before: Sending, decision: Decision) -> Operation:
        """Sends a decision again that provably never left."""
        attempt = Sending(
            decision.run_id, patch=before.patch, decision=decision, ordinary=False, resuming=True
        )
        with self._surface.batch():
            self._book.step(Step.CLAIM)
            self._runner.begin(attempt, patch=before.patch if before.rolled_back else None, continues=True)
            self._claimed(attempt, decision)
        return attempt.op

    def _claimed(self, attempt: Sending, decision: Decision) -> None:
        self._book.decision = decision
        self._runner.captured = attempt
        if not self._phases.kept:
            self._book.step(Step.SENT)


__all__ = ["Answerer"]
