"""The one table of endings (RC-86, RC-87, TC-56)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import pytest

from pilothouse.commands import Request
from pilothouse.core.delivery import ENDINGS, Case, case_of, case_of_refusal, case_of_wait, reason_of, words
from pilothouse.core.run import Phase, status_of
from pilothouse.errors import AgentBusy, JournalUnavailable, ReplyTimeout, SendAbandoned, SendRefused
from pilothouse.events import Cancelled, Completed, Failed, Incomplete, Outcome, Truncated, Unknown

ROWS = [
    # outcome, status, ending, state, result, delivery, reason, agent, frame
    (Completed(), "completed", "completed", "complete", "message", "success", None, "idle", "success"),
    (Completed(empty=True), "completed", "completed", "complete", "message", "success", None, "idle", "success"),
    (Truncated(), "truncated", "truncated", "complete", "message", "success", "truncated", "idle", "noted_success"),
    (Incomplete("limit", "deadline"), "incomplete", "timed_out", "complete", "ReplyIncomplete", "success",
     "deadline", "idle", "noted_success"),
    (Incomplete("limit", "turns"), "incomplete", "incomplete", "complete", "ReplyIncomplete", "success", "limit",
     "idle", "noted_success"),
    (Incomplete("content_filter"), "incomplete", "incomplete", "complete", "ReplyIncomplete", "success",
     "content_filter", "idle", "noted_success"),
    (Cancelled("stop"), "cancelled", "cancelled", "idle", "ReplyCancelled", "aborted", None, "idle", "cancelled"),
    (Cancelled("superseded"), "cancelled", "cancelled", "idle", "ReplyCancelled", "interrupted", "superseded",
     "running", "cancelled"),
    (Failed("send_timeout"), "failed", "timed_out", "error", "ReplyFailed", "error", None, "error", "error"),
    (Failed("idle_timeout"), "failed", "timed_out", "error", "ReplyFailed", "error", None, "error", "error"),
    (Failed("stalled"), "failed", "timed_out", "error", "ReplyFailed", "error", None, "error", "error"),
    (Failed("auth"), "failed", "failed", "error", "ReplyFailed", "error", None, "error", "error"),
    (Failed("start_refused"), "failed", "failed", "error", "ReplyFailed", "error", None, "error", "error"),
    (Unknown("eof"), "unknown", "unknown", "error", "ReplyFailed", "interrupted", None, "error", "outcome_unknown"),
    (Unknown("eof", settled=True), "unknown", "unknown", "error", "ReplyFailed", "interrupted", "abandoned", "idle",
     "abandoned"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: repr(row[0]))
def test_each_outcome_has_its_row(row: tuple) -> None:
    """RC-86: every word for an end is computed from the outcome alone."""
    outcome, status, ending, state, result, delivery, reason, agent, frame = row
    found = words(outcome)
    assert (found.status, found.ending, found.state, found.result) == (status, ending, state, result)
    assert (found.delivery, reason_of(outcome), found.agent, found.frame) == (delivery, reason, agent, frame)
    assert status_of(Phase.TERMINAL, outcome) == status


def test_every_outcome_and_every_case_is_in_the_table() -> None:
    assert set(ENDINGS) == set(Case)
    assert {type(row[0]) for row in ROWS} == set(get_args(Outcome))


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (SendRefused(None, "no"), "rejected"),
        (AgentBusy("send", "streaming"), "rejected"),
        (SendAbandoned(SimpleNamespace(id="r1")), "abandoned"),
        (ReplyTimeout("r1", 1.0), "timed_out"),
        (JournalUnavailable("away"), "failed"),
    ],
)
def test_a_refused_send_has_no_status(error: Exception, ending: str) -> None:
    """RC-86: before the commit there is no run, so nothing has a status."""
    row = ENDINGS[case_of_refusal(error)]
    assert (row.ending, row.status, row.frame) == (ending, None, "problem")


def test_what_a_run_waits_for_decides_its_frame() -> None:
    external, approval = Request("1", "external"), Request("2", "approval")
    assert ENDINGS[case_of_wait((external, approval))].frame == "interrupt"
    assert ENDINGS[case_of_wait((external,))].frame == "pending_calls"
    assert case_of(Completed()) is Case.COMPLETED
