"""How an attempt ends, told or not: by its terminal event, a refusal, or the table *Ends*."""

from __future__ import annotations

import logging
from typing import Final, get_args

from msgspec import UNSET

from ..agent_errors import (
    AgentError,
)
from ..core.agui import events as agui
from ..core.agui.told import interrupt_of, usage_of
from ..core.classify import of_kind, of_status
from ..core.interrupts import Step
from ..projection import Delivered
from ..responses import RETRYABLE, ErrorKind
from .exchange import Exchange
from .running import Running, Sending

logger = logging.getLogger("pilothouse.remote")


_KINDS: Final = frozenset(get_args(ErrorKind))


class Ending(Running):
    """The layer that ends attempts."""

    def _finished(self, attempt: Sending, event: agui.RunFinished) -> None:
        outcome = event.outcome
        usage = usage_of(event.usage) if event.usage is not UNSET else None
        attempt.told = "finished"
        book = self._surface.book
        pending: list[str] | None = None
        if isinstance(outcome, agui.Interrupted):
            self._see(attempt, [interrupt_of(item) for item in outcome.interrupts], native=True)
        elif isinstance(outcome, agui.Success) and outcome.pending_tool_call_ids is not UNSET:
            pending = outcome.pending_tool_call_ids
        self.client_tools.told = None if pending is None else frozenset(pending)
        if book.phase == "collecting":
            self._step(Step.BOUNDARY)
            self._over(attempt, "paused", usage=usage)
        elif isinstance(outcome, agui.CancelledEnd):
            self._step_if(Step.DONE)
            self._over(attempt, "aborted", usage=usage)
        else:
            if book.phase == "resuming":
                self._step(Step.STARTED)
            self._step_if(Step.DONE)
            waiting = bool(pending)
            if not waiting:
                self.client_tools.carried(attempt.carried)
            noted = event.result.get("pilothouse") if isinstance(event.result, dict) else None
            reason = noted.get("reason") if isinstance(noted, dict) else None
            self._over(attempt, "paused" if waiting else "success", usage=usage, reason=reason)

    def _failed(self, attempt: Sending, event: agui.RunError) -> None:
        """RUN_ERROR: the end, or what turns an end into a failure (AG-207)."""
        usage = usage_of(event.usage) if event.usage is not UNSET else None
        if attempt.told == "failed":
            return
        late = attempt.told == "finished"
        attempt.told = "failed"
        code = event.code if event.code is not UNSET else None
        error = self._told_error(attempt, event.message, code)
        if attempt is self._surface.attempt:
            lost = code in ("outcome_unknown", "abandoned")
            self._book_failed(lost=lost)
            delivered: Delivered = "interrupted" if lost else "error"
            self._over(
                attempt,
                delivered,
                error=None if code == "abandoned" else error,
                usage=usage,
                reason="abandoned" if code == "abandoned" else None,
            )
        elif late and self._surface.attempt is None and attempt is self._last:
            self._step_if(Step.VOID)
            attempt.outcome = "error"
            self.status.set("error")
            self.error.set(error)

    def _told_error(self, attempt: Sending, message: str, code: str | None) -> AgentError:
        if code == "outcome_unknown":
            return self._interrupted(attempt, message, code)
        if code is not None and code in _KINDS:
            error = of_kind(code, message, code=code, retryable=code in RETRYABLE)
        elif code is not None and code.isdigit() and len(code) == 3:
            error = of_status(int(code), message)
        else:
            error = AgentError(message or "the run failed", "server", retryable=True, code=code)
        error.run_id = attempt.run_id
        return error

    async def _close(self, attempt: Sending, exchange: Exchange, failure: AgentError | None) -> None:
        """The connection is closed: the run has an end now, told or not."""
        if attempt is self._surface.attempt and attempt.live and not self._surface.tasks.closed:
            with self._surface.batch():
                if failure is not None and exchange.left and failure.kind == "connection":
                    failure = None  # what left is not undone by a connection that broke
                if (
                    failure is None
                    and attempt.seen
                    and self._surface.book.phase == "collecting"
                    and not exchange.cut
                ):
                    self._step(Step.BOUNDARY)  # an older backend ends a pause by ending the stream
                    self._over(attempt, "paused")
                elif failure is not None:
                    self._refused(attempt, exchange, failure)
                else:
                    self._lost(attempt, exchange)
        if attempt.resuming and failure is not None and failure.status == 409 and self._control is not None:
            await self._hydrate()  # somebody else answered first
        await self._save()
        attempt.op.settle(attempt.outcome)
        if attempt.resuming and self._surface.book.phase == "uncertain" and self.check_status is not None:
            self._check_once(attempt)
        self._next()

    def _refused(self, attempt: Sending, exchange: Exchange, failure: AgentError) -> None:
        """It failed in a way that says what happened: nothing left, a refusal, or no AG-UI."""
        failure.run_id = attempt.run_id
        book = self._surface.book
        if attempt.resuming and book.phase == "resuming":
            if not exchange.left:
                self._step(Step.UNSENT)  # kept for retry(), byte for byte
            elif failure.status is not None and failure.status < 500:
                self._step(Step.UNSENT)
                if failure.status in (400, 409, 422):
                    book.decision = None  # refused for what it says: another answer may be given
            else:
                self._step(Step.LOST)
        else:
            self._book_failed()
        self._over(attempt, "error", error=failure)

    def _book_failed(self, *, lost: bool = False) -> None:
        book = self._surface.book
        if book.phase == "collecting":
            self._step(Step.LOST if lost else Step.VOID)
        elif book.phase in ("resuming", "acknowledged"):
            self._step(Step.LOST if lost else Step.FAILED)

    def _lost(self, attempt: Sending, exchange: Exchange) -> None:
        """Nobody told an end (the table *Ends*)."""
        if (
            attempt.resuming and self._surface.book.phase in ("resuming", "acknowledged")
        ) or self._surface.book.phase == "collecting":
            self._step(Step.LOST)
        why = f": {exchange.cut}" if exchange.cut is not None else ""
        error = self._interrupted(attempt, f"the connection ended before the run did{why}", None)
        error.__cause__ = exchange.cut
        self._over(attempt, "interrupted", error=error)

    def _interrupted(self, attempt: Sending, message: str, code: str | None) -> AgentError:
        if self.check_status is not None:
            detail = "ask the backend what became of it"
            return AgentError(
                message, "interrupted", recovery="check", detail=detail, code=code, run_id=attempt.run_id
            )
        if attempt.ordinary and not attempt.seen:
            return AgentError(
                message, "interrupted", retryable=True, recovery="retry", code=code, run_id=attempt.run_id
            )
        detail = "the backend may have done it: look before you send it again"
        return AgentError(
            message, "interrupted", recovery="none", detail=detail, code=code, run_id=attempt.run_id
        )
