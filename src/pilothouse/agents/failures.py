"""How a run that failed, or of which nobody knows the end, is shown on `error` of a local agent (AG-64, AG-183)."""

from __future__ import annotations

from ..agent_errors import AgentError
from ..core.classify import of_kind
from ..events import Failed


def failed(run_id: str, outcome: Failed) -> AgentError:
    """A run that said why."""
    after = None if outcome.retry_after_ms is None else outcome.retry_after_ms / 1000
    error = of_kind(
        outcome.kind,
        outcome.message or outcome.kind,
        code=outcome.code,
        retryable=outcome.retryable,
        retry_after=after,
    )
    error.run_id = run_id
    return error


def unknown(run_id: str, cause: str, *, repeatable: bool) -> AgentError:
    """A run that was lost; `repeatable`: the journal proves that no effect is uncertain."""
    message = f"nobody knows how run {run_id} ended" + (f" ({cause})" if cause else "")
    code = "outcome_unknown"
    if repeatable:
        return AgentError(message, "interrupted", retryable=True, recovery="retry", code=code, run_id=run_id)
    detail = "ask what became of it with check_status(); recover it, or abandon it, on the run controller"
    return AgentError(message, "interrupted", recovery="check", detail=detail, code=code, run_id=run_id)


def unreadable(run_id: str, cause: BaseException) -> AgentError:
    """A run that cannot be followed."""
    error = AgentError(
        f"run {run_id} cannot be followed: {cause}",
        "interrupted",
        recovery="check",
        detail="the run may go on: ask with check_status()",
        run_id=run_id,
    )
    error.__cause__ = cause
    return error


__all__ = ["failed", "unknown", "unreadable"]
