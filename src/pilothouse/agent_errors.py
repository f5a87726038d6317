"""Errors of the `Agent` contract: what is shown on `agent.error`, and what its guards refuse with.

The guards are usage errors, raised during the call, before anything changed: no draft, message or batch is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .errors import PilothouseError, UsageError
from .projection import ErrorKind, Recovery


class AgentError(PilothouseError):
    """What went wrong with a run, as an interface shows it; the failure itself is `__cause__`.

    Attributes:
        kind: `interrupted` means that nobody knows how the run ended.
        retryable: whether `retry()` makes sense.
        status: HTTP status, where there was one.
        recovery: on `interrupted` only: what is safe to do.
        detail: with recovery `check` and `none`: a sentence that reads on from the message.
        retry_after: seconds that the backend asks to wait.
    """

    def __init__(
        self,
        message: str,
        kind: ErrorKind,
        *,
        retryable: bool = False,
        status: int | None = None,
        recovery: Recovery | None = None,
        detail: str | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        run_id: str | None = None,
    ) -> None:
        if (recovery is not None) != (kind == "interrupted"):
            raise ValueError("recovery belongs to an interrupted error, and to no other")
        if recovery is not None and retryable != (recovery == "retry"):
            raise ValueError("an interrupted error is retryable exactly with recovery 'retry'")
        if (recovery in ("check", "none")) != (detail is not None):
            raise ValueError("recovery 'check' and 'none' need a detail, anything else has none")
        self.kind: ErrorKind = kind
        self.retryable = retryable
        self.status = status
        self.recovery: Recovery | None = recovery
        self.detail = detail
        self.code = code or kind
        self.retry_after = retry_after
        self.run_id = run_id
        super().__init__(message)

    @property
    def message(self) -> str:
        """The text, without the detail."""
        return str(self.args[0])


class RequestPending(UsageError):
    """Requests are open: answer them first."""

    code = "requests_pending"

    def __init__(self, action: str, ids: Sequence[str], phase: str = "pending") -> None:
        self.action, self.ids, self.phase = action, tuple(ids), phase
        which = ", ".join(self.ids) or "none known"
        super().__init__(
            f"cannot {action} while requests are {phase} ({which}): submit(resume=…) answers them"
        )


class ResumeInvalid(UsageError):
    """Answers that do not fit the open batch; `problems` says of each id why."""

    code = "resume_invalid"

    def __init__(self, problems: Mapping[str, str]) -> None:
        self.problems = dict(problems)
        said = "\n".join(f"{name}: {why}" if name else why for name, why in self.problems.items())
        super().__init__(f"cannot resume: {said}")


class StaleInterrupt(UsageError):
    """The answer was given to another batch than the one that is open."""

    code = "stale_interrupt"

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"cannot resume batch {expected} because batch {actual} is the open one")


class RecoveryRequired(UsageError):
    """Repeating is not known to be safe."""

    code = "recovery_required"

    def __init__(self, action: str, why: str, ways: Sequence[str] = ()) -> None:
        self.action, self.why, self.ways = action, why, tuple(ways)
        then = f": use {' or '.join(self.ways)}" if self.ways else ""
        super().__init__(f"cannot {action} because {why}{then}")


class UnsupportedPart(UsageError):
    """The backend cannot take a part of this kind; the message did not appear."""

    code = "unsupported_part"

    def __init__(self, kind: str, agent: str) -> None:
        self.kind, self.agent = kind, agent
        super().__init__(f"cannot send a part of kind {kind} because {agent} does not take it")


class UnsupportedOption(UsageError):
    """The backend has no such thing."""

    code = "unsupported"

    def __init__(self, option: str, agent: str, why: str = "") -> None:
        self.option, self.agent = option, agent
        super().__init__(f"cannot use {option} with {agent}" + (f": {why}" if why else ""))


class StoreConflict(UsageError):
    """Somebody else wrote the record; `actual` is its revision."""

    code = "store_conflict"

    def __init__(self, key: str, expected: int, actual: int) -> None:
        self.key, self.expected, self.actual = key, expected, actual
        super().__init__(f"cannot save {key} at revision {expected} because it is at {actual}")


__all__ = [
    "AgentError",
    "RecoveryRequired",
    "RequestPending",
    "ResumeInvalid",
    "StaleInterrupt",
    "StoreConflict",
    "UnsupportedOption",
    "UnsupportedPart",
]
