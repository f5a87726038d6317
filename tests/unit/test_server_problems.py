"""Refusals as problem documents (SV-170, RFC 9457)."""

from __future__ import annotations

import inspect
import json

import pytest

from pilothouse import errors
from pilothouse.events import Cancelled, Failed
from pilothouse.server.auth import Unauthenticated
from pilothouse.server.problems import ROWS, Problem, document, invalid, problem_of, row_of

TREE = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.PilothouseError) and not kind.__name__.startswith("_")
]


@pytest.mark.parametrize("kind", TREE, ids=lambda kind: kind.__name__)
def test_every_exception_of_the_tree_has_exactly_one_row(kind: type) -> None:
    """SV-170: that of its nearest base."""
    nearest = next(base for base in kind.__mro__ if base in ROWS)
    error = kind.__new__(kind)
    Exception.__init__(error, "text")
    row = row_of(error)
    assert row == ROWS[nearest] or getattr(kind, "code", "") in ("closed", "thread_busy")
    assert 400 <= row.status < 600


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unauthenticated("who?"), 401, "unauthenticated"),
        (errors.RunNotFound("r"), 404, "not_found"),
        (errors.RunConflict("r"), 409, "run_conflict"),
        (errors.ThreadConflict("t", "r"), 409, "thread_conflict"),
        (errors.CommandConflict("r", "c"), 409, "command_conflict"),
        (errors.AgentBusy("send", "streaming"), 409, "thread_busy"),
        (errors.Unsupported("live", "thread_busy"), 409, "thread_busy"),
        (errors.Unsupported("full", "too_many_runs"), 503, "overloaded"),
        (errors.Unsupported("no", "media_type"), 422, "media_type"),
        (errors.OwnedElsewhere("r", "other"), 409, "owned_elsewhere"),
        (errors.NotControllable("r", "binding"), 409, "not_controllable"),
        (errors.RecoveryMismatch("prefix"), 409, "recovery_mismatch"),
        (errors.RecoveryRefused("still_running"), 409, "recovery_refused"),
        (errors.InvalidSpec("no", "parent_not_found"), 422, "parent_not_found"),
        (errors.InvalidCommand("no"), 422, "invalid_command"),
        (errors.InvalidCommand("healthy", "not_unknown"), 409, "not_unknown"),
        (errors.InvalidTarget("no"), 422, "invalid_target"),
        (errors.NothingToDo("no"), 422, "nothing_to_do"),
        (errors.MessageTooLong(2, 1), 422, "message_too_long"),
        (errors.SendRefused(None, "no"), 422, "send_refused"),
        (errors.AgentClosed("send"), 503, "draining"),
        (errors.JournalUnavailable("away"), 503, "journal_unavailable"),
        (errors.JournalFull("full"), 503, "journal_unavailable"),
        (errors.ReplyCancelled(Cancelled("x"), "r"), 409, "stopped"),
        (errors.ReplyFailed(Failed("x"), "r"), 500, "internal"),
        (errors.JournalCorrupt("r", 1), 500, "internal"),
        (RuntimeError("secret"), 500, "internal"),
    ],
    ids=repr,
)
def test_rows(error: Exception, status: int, code: str) -> None:
    """Server page §7, the table of codes."""
    problem = problem_of(error)
    assert (problem.status, problem.code) == (status, code)
    if status == 401:
        assert problem.headers["WWW-Authenticate"] == "Bearer"
    if status in (429, 503):
        assert "Retry-After" in problem.headers


def test_what_is_our_fault_says_nothing_but_an_incident() -> None:
    """SV §7: 500 has an id, no text."""
    problem = problem_of(RuntimeError("password is hunter2"))
    assert "hunter2" not in json.dumps([problem.detail, problem.members])
    assert len(problem.members["incident"]) == 12


def test_the_document() -> None:
    """RFC 9457: type, title, status, detail, instance, and the members of the case."""
    response = document(Problem(409, "thread_busy", "busy", run_id="r1"), "/agui")
    assert response.media_type == "application/problem+json"
    assert json.loads(response.body) == {
        "type": "urn:pilothouse:problem:thread_busy",
        "title": "Conflict",
        "status": 409,
        "detail": "busy",
        "instance": "/agui",
        "code": "thread_busy",
        "run_id": "r1",
    }


def test_invalid_input_lists_every_fault() -> None:
    problem = invalid(("a", "must be b"), ("", "odd"))
    assert problem.members["errors"] == [
        {"path": "a", "message": "must be b"},
        {"path": "", "message": "odd"},
    ]
    assert problem.detail == "a: must be b; odd"
