"""Errors travel: to other processes, into copies."""

from __future__ import annotations

import copy
import pickle

import pytest

from pilothouse import errors
from pilothouse.events import Failed

MADE = [
    errors.AgentBusy("send", "streaming", "r7"),
    errors.AgentClosed("send"),
    errors.MessageTooLong(100_001, 100_000),
    errors.ThreadConflict("t", "h"),
    errors.RunConflict("r7"),
    errors.SeqConflict("r7", 3, 4),
    errors.ReplyTimeout("r7", 3.0),
    errors.SendTimeout("no response within 3 s"),
    errors.ReplyFailed(Failed("provider"), "r7", "reply r7 failed"),
    errors.DuplicateTool("add", ("a", "b")),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("carry", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
def test_an_error_is_the_same_in_another_process(error: errors.PilothouseError, carry) -> None:
    """A worker's error is raised again in its parent with its text and its fields."""
    error.reply = object()  # type: ignore[attr-defined]
    arrived = carry(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == {name: value for name, value in vars(error).items() if name != "reply"}
