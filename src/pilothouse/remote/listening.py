"""What the stream of an attempt means: its events, how it ends by them, and what an end means that nobody told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, final, get_args

from msgspec import UNSET

from ..agent_errors import AgentError
from ..agents.surface import Surface
from ..core.agui import events as agui
from ..core.agui.reading import Arrived, ProtocolFault, TooLarge
from ..core.agui.reduce import Reducer
from ..core.agui.told import interrupt_of, usage_of
from ..core.classify import of_kind, of_status
from ..core.interrupts import Step
from ..projection import AgentUsage, Delivered, Interrupt
from ..responses import RETRYABLE, ErrorKind
from .attempt import Sending
from .exchange import AgentLimits, Exchange
from .tools import RemoteTools

_KINDS: Final = frozenset(get_args(ErrorKind))


@final
class Listener:
    """Takes in what is heard of attempts: values go to the reducer, ends to the status and the batch of interrupts.

    Args:
        askable: a backend can be asked what became of a run.

    Attributes:
        last: the attempt that was begun last; None before the first, and on another thread.
    """

    def __init__(
        self,
        surface: Surface,
        reducer: Reducer,
        client_tools: RemoteTools,
        limits: AgentLimits,
        *,
        askable: bool,
    ) -> None:
        self.last: Sending | None = None
        self._surface = surface
        self._book = surface.book
        self._reducer = reducer
        self._tools = client_tools
        self._limits = limits
        self._askable = askable

    def take(self, attempt: Sending, batch: Sequence[Arrived], *, ours: bool) -> bool:
        """Tells what arrived together; False once nobody wants more of it."""
        self._reducer.ours = self._reducer.ours or ours
        with self._surface.batch():
            for event, _ in batch:
                if self._surface.tasks.closed or (not attempt.live and not attempt.told):
                    return False
                self._event(attempt, event)
        for item in self._reducer.take_events():
            self._surface.events.emit(item)
        return True

    def _event(self, attempt: Sending, event: agui.Event) -> None:
        attempt.seen = True
        match event:
            case agui.RunStarted():
                self._started(attempt)
            case agui.RunFinished():
                if attempt is self._surface.attempt:
                    self._finished(attempt, event)
            case agui.RunError():
                self._failed(attempt, event)
            case _ if attempt is self._surface.attempt:
                self._reducer.apply(event)
                self._notice(attempt)
                self._check_limits(event)
            case _:
                pass

    def _check_limits(self, event: agui.Event) -> None:
        limits = self._limits
        if len(self._surface.display.messages) > limits.messages:
            raise TooLarge(f"more than {limits.messages} messages")
        if self._reducer.size_of(event) > limits.message:
            raise TooLarge(f"a message of more than {limits.message} characters")

    def _started(self, attempt: Sending) -> None:
        if attempt.resuming:
            self._book.step_if(Step.STARTED)
        if attempt.told and self._surface.attempt is None and attempt is self.last:
            attempt.told, attempt.live = "", True  # a stream that tells several runs
            self._surface.display.end("success")
            self._surface.admit(attempt)
            if attempt.message_id:  # what this action said is still on its way
                self._surface.display.mark_sent(attempt.message_id)
        elif attempt is self._surface.attempt and attempt.started:
            self._reducer.start_over()
        attempt.started = True

    def _notice(self, attempt: Sending) -> None:
        """An older notice of a pause (AG-136)."""
        seen, self._reducer.interrupts = self._reducer.interrupts, []
        if seen:
            self._see(attempt, seen, native=False)

    def _see(self, attempt: Sending, batch: Sequence[Interrupt], *, native: bool) -> None:
        try:
            self._book.see(batch, attempt.run_id, native=native)
        except ValueError as error:
            raise ProtocolFault(str(error)) from error

    # Ends that are told

    def _finished(self, attempt: Sending, event: agui.RunFinished) -> None:
        outcome = event.outcome
        usage = usage_of(event.usage) if event.usage is not UNSET else None
        attempt.told = "finished"
        book = self._book
        pending: list[str] | None = None
        if isinstance(outcome, agui.Interrupted):
            self._see(attempt, [interrupt_of(item) for item in outcome.interrupts], native=True)
        elif isinstance(outcome, agui.Success) and outcome.pending_tool_call_ids is not UNSET:
            pending = outcome.pending_tool_call_ids
        self._tools.told = None if pending is None else frozenset(pending)
        if book.step_if(Step.BOUNDARY):
            self.end(attempt, "paused", usage=usage)
            return
        if isinstance(outcome, agui.CancelledEnd):
            book.step_if(Step.DONE)
            self.end(attempt, "aborted", usage=usage)
            return
        book.step_if(Step.STARTED)
        book.step_if(Step.DONE)
        if not pending:
            self._tools.carried(attempt.carried)
        noted = event.result.get("pilothouse") if isinstance(event.result, dict) else None
        reason = noted.get("reason") if isinstance(noted, dict) else None
        self.end(attempt, "paused" if pending else "success", usage=usage, reason=reason)

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
            lost, abandoned = code in ("outcome_unknown", "abandoned"), code == "abandoned"
            self._fail_book(lost=lost)
            self.end(
                attempt,
                "interrupted" if lost else "error",
                error=None if abandoned else error,
                usage=usage,
                reason="abandoned" if abandoned else None,
            )
        elif late and self._surface.attempt is None and attempt is self.last:
            self._book.step_if(Step.VOID)
            attempt.outcome = "error"
            self._surface.rest(error)

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

    # Ends that nobody told

    def close(self, attempt: Sending, exchange: Exchange, failure: AgentError | None) -> None:
        """The connection is closed: the run has an end now, told or not."""
        if attempt is not self._surface.attempt or not attempt.live or self._surface.tasks.closed:
            return
        if failure is not None and exchange.left and failure.kind == "connection":
            failure = None  # what left is not undone by a connection that broke
        with self._surface.batch():
            if failure is not None:
                self._refused(attempt, exchange, failure)
            elif attempt.seen and exchange.cut is None and self._book.step_if(Step.BOUNDARY):
                self.end(attempt, "paused")  # an older backend ends a pause by ending the stream
            else:
                self._lost(attempt, exchange)

    def _refused(self, attempt: Sending, exchange: Exchange, failure: AgentError) -> None:
        """It failed in a way that says what happened: nothing left, a refusal, or no AG-UI."""
        failure.run_id = attempt.run_id
        book = self._book
        if not attempt.resuming or book.phase != "resuming":
            self._fail_book()
        elif exchange.left and (failure.status is None or failure.status >= 500):
            book.step(Step.LOST)
        else:
            book.step(Step.UNSENT)  # kept for retry(), byte for byte
            if exchange.left and failure.status in (400, 409, 422):
                book.decision = None  # refused for what it says: another answer may be given
        self.end(attempt, "error", error=failure)

    def _fail_book(self, *, lost: bool = False) -> None:
        book = self._book
        if book.phase == "collecting":
            book.step(Step.LOST if lost else Step.VOID)
        elif book.phase in ("resuming", "acknowledged"):
            book.step(Step.LOST if lost else Step.FAILED)

    def _lost(self, attempt: Sending, exchange: Exchange) -> None:
        """Nobody told an end (the table *Ends*)."""
        phase = self._book.phase
        if phase == "collecting" or (attempt.resuming and phase in ("resuming", "acknowledged")):
            self._book.step(Step.LOST)
        why = f": {exchange.cut}" if exchange.cut is not None else ""
        error = self._interrupted(attempt, f"the connection ended before the run did{why}", None)
        error.__cause__ = exchange.cut
        self.end(attempt, "interrupted", error=error)

    def _interrupted(self, attempt: Sending, message: str, code: str | None) -> AgentError:
        run_id = attempt.run_id
        if not self._askable and attempt.ordinary and not attempt.seen:
            return AgentError(
                message, "interrupted", retryable=True, recovery="retry", code=code, run_id=run_id
            )
        detail = "the backend may have done it: look before you send it again"
        if self._askable:
            detail = "ask the backend what became of it"
        return AgentError(
            message,
            "interrupted",
            recovery="check" if self._askable else "none",
            detail=detail,
            code=code,
            run_id=run_id,
        )

    # Any end

    def end(
        self,
        attempt: Sending,
        outcome: Delivered,
        *,
        error: AgentError | None = None,
        usage: AgentUsage | None = None,
        reason: str | None = None,
    ) -> None:
        """The run has an end: status, deliveries, and the patch that a backend never confirmed (AG-72)."""
        attempt.outcome = outcome
        if outcome in ("error", "interrupted", "aborted"):
            self.roll_back(attempt)
        attempt.state_before = None
        self._surface.end(attempt, outcome, error=error, reason=reason, usage=usage)

    def roll_back(self, attempt: Sending) -> None:
        """Takes the patch back that an attempt has sent, if the backend has not told a state since."""
        before = attempt.state_before
        if before is None or self._reducer.state_told:
            return
        attempt.state_before = None
        attempt.rolled_back = True
        self._reducer.set_state(dict(before))


__all__ = ["Listener"]
