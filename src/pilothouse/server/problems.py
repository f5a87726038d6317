"""Refusals as problem documents (RFC 9457), one row an exception (SV-170).

The row of an exception is that of its nearest base class in `ROWS`; a test walks the tree of `errors.py` and finds one
for each. `code` is the exception's own where the row gives none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import uuid4

import msgspec
from starlette.responses import Response

from .. import errors
from ..messages import JSON
from .auth import Unauthenticated

logger = logging.getLogger("pilothouse.server")

MEDIA_TYPE: Final = "application/problem+json"


class Problem(Exception):
    """A refusal with its status, code and members."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        **members: JSON,
    ) -> None:
        self.status, self.code, self.detail = status, code, detail
        self.headers = dict(headers or {})
        self.members = members
        super().__init__(f"{status} {code}: {detail}")


def not_found() -> Problem:
    """The same for what does not exist and for what is somebody else's (SV-12)."""
    return Problem(404, "not_found", "there is no such thing")


def invalid(*found: tuple[str, str]) -> Problem:
    """Input that cannot be: where, and why."""
    listed = [{"path": path, "message": message} for path, message in found]
    detail = "; ".join(f"{path}: {message}" if path else message for path, message in found)
    return Problem(422, "invalid_input", detail, errors=listed)


class Row(NamedTuple):
    """How an exception is answered; `code` None takes its own."""

    status: int
    code: str | None = None


ROWS: Final[Mapping[type[BaseException], Row]] = MappingProxyType(
    {
        Unauthenticated: Row(401),
        errors.PilothouseError: Row(500, "internal"),
        # usage
        errors.UsageError: Row(422),
        errors.ConfigError: Row(500, "internal"),
        errors.AgentBusy: Row(409),
        errors.AgentClosed: Row(503, "draining"),
        errors.NotOpened: Row(500, "internal"),
        errors.InvalidSpec: Row(422),
        errors.InvalidCommand: Row(422),
        errors.Unsupported: Row(422),
        errors.CursorAhead: Row(409),
        errors.RunConflict: Row(409),
        errors.ThreadConflict: Row(409),
        errors.CommandConflict: Row(409),
        errors.DuplicateConflict: Row(409),
        errors.RunNotFound: Row(404),
        errors.CommandNotFound: Row(404),
        errors.ArtifactNotFound: Row(404),
        errors.NotControllable: Row(409),
        errors.OwnedElsewhere: Row(409),
        errors.SendAbandoned: Row(503, "draining"),
        # runs
        errors.RunError: Row(500, "internal"),
        errors.StartRefused: Row(409),
        errors.StartUnknown: Row(503),
        errors.ReplyCancelled: Row(409, "stopped"),
        errors.RecoveryMismatch: Row(409, "recovery_mismatch"),
        errors.RecoveryRefused: Row(409, "recovery_refused"),
        # journal
        errors.JournalError: Row(503, "journal_unavailable"),
        errors.JournalCorrupt: Row(500, "internal"),
        errors.JournalVersion: Row(500, "internal"),
        errors.ThreadMoved: Row(409),
    }
)

_CASES: Final[Mapping[str, Row]] = MappingProxyType(
    {
        "thread_busy": Row(409),
        "too_many_runs": Row(503, "overloaded"),
        "not_unknown": Row(409),
        "closed": Row(503, "draining"),
    }
)
"""Codes of `Unsupported`, `InvalidCommand` and the like that have a row of their own."""

_MEMBERS: Final[Mapping[type[BaseException], Mapping[str, str]]] = MappingProxyType(
    {
        errors.OwnedElsewhere: {"owner": "owner"},
        errors.CursorAhead: {"last_seq": "last_seq"},
    }
)
"""Fields of an exception that its problem tells. Ids are told by the routes, as the client knows them."""


def row_of(error: BaseException) -> Row:
    """The row of an exception; 500 for one that is not ours."""
    case = _CASES.get(getattr(error, "code", "")) if isinstance(error, errors.UsageError) else None
    if case is not None:
        return case
    for kind in type(error).__mro__:
        if (row := ROWS.get(kind)) is not None:
            return row
    return Row(500, "internal")


def problem_of(error: BaseException) -> Problem:
    """The problem of an exception. What is our fault is logged and named by an incident id only."""
    if isinstance(error, Problem):
        return error
    status, code = row_of(error)
    if status == 404:
        return not_found()
    if status == 500:
        incident = uuid4().hex[:12]
        logger.error("incident %s", incident, exc_info=error)
        return Problem(500, "internal", "something went wrong on our side", incident=incident)
    members: dict[str, Any] = {}
    for kind, fields in _MEMBERS.items():
        if isinstance(error, kind):
            members |= {name: getattr(error, field) for name, field in fields.items()}
    headers = {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        headers["Retry-After"] = "1"
    if status == 503:
        logger.warning("refused with 503: %s: %s", type(error).__name__, error)
    return Problem(
        status, code or str(getattr(error, "code", "bad_request")), str(error), headers=headers, **members
    )


def document(problem: Problem, instance: str) -> Response:
    """The answer."""
    try:
        title = HTTPStatus(problem.status).phrase
    except ValueError:
        title = "Refused"
    body = {
        "type": f"urn:pilothouse:problem:{problem.code}",
        "title": title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": instance,
        "code": problem.code,
        **problem.members,
    }
    data = msgspec.json.encode(body)
    return Response(data, problem.status, problem.headers, MEDIA_TYPE)


__all__ = ["ROWS", "Problem", "Row", "document", "invalid", "not_found", "problem_of", "row_of"]
