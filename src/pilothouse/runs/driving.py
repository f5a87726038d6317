"""A runtime at work, seen through to its end: what its leaving means for the run (RC §3.8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final

from ..cancel import is_closing
from ..core.batch import Written
from ..core.run import HOST
from ..errors import ProtocolViolation, RecordRefused, StartRefused
from ..events import Cancelled, Incomplete, LossCause, ModelAttemptEnded, RunEnded
from ..events import StartRefused as StartRefusedFact
from ..records import Draft, Record

if TYPE_CHECKING:
    from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")

_RESULTS: Final = frozenset(
    ("call_finished", "call_observed", "model_attempt_ended", "message_added", "partial_saved", "noted")
)

_BROKEN: Final = {
    "eof": "the model's response ended without saying that it was complete",
    "reset": "the connection to the model broke in the middle of its response",
}
"""What a person reads of a model attempt whose end nobody knows, by its `why`."""


async def see_through(live: LiveRun, work: Awaitable[None], failing: LossCause) -> None:
    """Awaits the runtime and records what its leaving means (RC §3.8)."""
    cause: LossCause = "eof"
    reason = ""
    refusal: StartRefused | None = None
    cancelled: asyncio.CancelledError | None = None
    task = asyncio.current_task()
    try:
        await work
    except StartRefused as error:
        if live.state.started:
            cause, reason = "error", f"StartRefused after the start: {error}"
        else:
            refusal = live.refusal = error
    except asyncio.CancelledError as error:
        cancelled = error
        cause, reason = "cancelled_outside", "the run's task was cancelled"
    except (RecordRefused, ProtocolViolation) as error:
        cause, reason = "error", f"{type(error).__name__}: {error}"
    except (KeyboardInterrupt, SystemExit):
        raise  # the process ends: nothing more can be recorded here
    except BaseException as error:
        if is_closing(error, task):
            raise
        # A new attachment that told nothing yet: what failed is the recovery.
        cause = failing if live.state.takeovers else "error"
        reason = f"{type(error).__name__}: {error}"
        if not live.over:
            logger.exception("the runtime of run %s failed", live.run_id)
    if live.over or live.zombie:
        if cancelled is not None and not live.over:
            raise cancelled
        return
    if refusal is not None:
        code, retryable = refusal.code, refusal.retryable
        await live.settle((Draft(StartRefusedFact(code, str(refusal), retryable)), HOST))
    elif live.scope.cancelled and not live.closing and _confirms(live):
        await live.settle((Draft(RunEnded(_stopped(live))), HOST))
    elif live.closing and live.moves:
        live.release()
    else:
        if live.closing:
            cause, reason = "shutdown", "the controller was closed"
        await live.lose(cause, reason or _left_open(live))
    if cancelled is not None and not live.scope.cancelled:
        raise cancelled


def _left_open(live: LiveRun) -> str:
    """Why a runtime left without an end, as far as the run's last fact tells."""
    ring = live.ring
    last = ring.take(ring.end - 1) if ring.end > ring.first else None
    fact = last.fact if isinstance(last, Record) else None
    why = fact.why if isinstance(fact, ModelAttemptEnded) and fact.end == "interrupted" else ""
    return _BROKEN.get(why, "the runtime returned without an end")


def _confirms(live: LiveRun) -> bool:
    """Whether the end of an in-process runtime after our stop is the evidence of the stop (RC-40)."""
    return live.confirms and live.state.stop is not None


def _stopped(live: LiveRun) -> Cancelled | Incomplete:
    stop = live.state.stop
    assert stop is not None
    if stop.source == "deadline":
        return Incomplete("limit", "deadline")
    return Cancelled(stop.reason, stop.source)


def closing_refusal(drafts: Sequence[Written]) -> str:
    """While the controller closes, results are still taken, new work and ends are not (RC-52)."""
    for draft, _ in drafts:
        if draft.fact.kind not in _RESULTS:
            return f"{draft.fact.kind} while the controller closes"
    return ""
