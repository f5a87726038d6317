"""Answers to interrupts: claimed once, sent once, kept over restarts (AG-130 … AG-139)."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from datetime import UTC, datetime

from ..agent_errors import (
    RequestPending,
    StoreConflict,
)
from ..agents.operation import Operation
from ..agents.submissions import Submission
from ..core.interrupts import Decision, Step
from ..errors import AgentBusy
from ..loop.jsonschema import problems_of
from .asked import answered
from .ending import Ending
from .running import Captured, Sending, content_of

logger = logging.getLogger("pilothouse.remote")


class Answering(Ending):
    """The layer that answers."""

    @abstractmethod
    def _cancel(self, op: Operation) -> None:
        """A stop for one run alone."""

    def _resume(self, given: Submission) -> Operation:
        """Answers the open batch: one decision owns it from here on (AG-130)."""
        book = self._surface.book
        now = datetime.fromtimestamp(self._surface.clock.time_ms() / 1000, UTC)
        answers = book.check(given.resume, now=now, generation=given.generation, problems_of=problems_of)
        if self._surface.attempt is not None:
            raise AgentBusy("resume", f"run {self._surface.attempt.run_id} is running")
        if book.raised_by and self._last is not None and self._last.told == "failed":
            raise RequestPending("answer", [item.id for item in book.batch], "void: their run failed")
        if given.cancelled:
            return Operation.settled("aborted")
        parts, patch = given.parts, given.patch
        run_id = given.key or self._new_id()
        op = Operation(asyncio.get_running_loop(), run_id)
        resume, props = answered(
            answers, book.batch, self._settings.interrupt_wire, native=self._native, run_id=book.raised_by
        )
        attempt = Sending(run_id, op, self._new_id() if parts is not None else "")
        attempt.ordinary, attempt.resuming = False, True
        with self._surface.batch():
            self._step(Step.CLAIM)
            if attempt.message_id:
                self._surface.display.add_user(attempt.message_id, content_of(parts))
            self._begin(attempt, patch=patch, continues=True, props=props, resume=resume)
            decision = Decision(self._new_id(), run_id, attempt.body.decode())
            book.decision = decision
            self._captured = Captured(patch, decision)
            if self._store is None:
                self._step(Step.SENT)
        return op

    async def _claim(self, attempt: Sending) -> bool:
        """Writes the claim, then the intent to send; False where another instance has the batch (AG-130, AG-139)."""
        if self._store is None:
            return True
        try:
            await self._write()
            with self._surface.batch():
                self._step(Step.SENT)
            await self._write()
        except StoreConflict:
            ids = [item.id for item in self._surface.book.batch]
            await self._load_phases()
            with self._surface.batch():
                self._roll_back(attempt)
                if attempt.message_id:
                    self._surface.display.remove(attempt.message_id)
                self._surface.end(attempt, "aborted")
            attempt.op.refuse(RequestPending("answer", ids, "answered by another instance"))
            return False
        return True

    def _answer_again(self, decision: Decision, captured: Captured) -> Operation:
        attempt = Sending(
            decision.run_id,
            Operation(asyncio.get_running_loop(), decision.run_id),
            body=decision.body.encode(),
        )
        attempt.ordinary, attempt.resuming = False, True
        with self._surface.batch():
            self._step(Step.CLAIM)
            self._begin(attempt, patch=captured.patch if captured.rolled_back else None, continues=True)
            captured.rolled_back = False
            if self._store is None:
                self._step(Step.SENT)
        return attempt.op

    @property
    def _store_key(self) -> str:
        return f"{self.name}:{self.url}|{self._thread}"

    async def _load_phases(self) -> None:
        assert self._store is not None
        found = await self._store.load(self._store_key)
        if found is None:
            return
        self._revision = found[0]
        with self._surface.batch():
            self._surface.book.load(found[1])

    async def _write(self) -> None:
        assert self._store is not None
        self._revision = await self._store.save(
            self._store_key, self._surface.book.dump(), expected=self._revision
        )

    async def _save(self) -> None:
        """Keeps the phase as it is; a lost race is noticed by whoever answers next."""
        if self._store is None or (self._revision == 0 and self._surface.book.phase == "none"):
            return
        try:
            await self._write()
        except StoreConflict:
            await self._load_phases()
        except Exception:
            logger.exception("the phase of the interrupts of thread %s could not be kept", self._thread)
