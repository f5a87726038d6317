"""The six states of a send: every input in every state, against the specification's table (AC-1 … AC-27)."""

from __future__ import annotations

import pytest

from pilothouse.core.lifecycle import TRANSITIONS, AgentState, Input, Refused, diagram, step

BUSY = {AgentState.SENDING, AgentState.STREAMING, AgentState.PAUSED}


@pytest.mark.parametrize("state", AgentState)
@pytest.mark.parametrize("entry", Input)
def test_each_cell_moves_stays_refuses_or_cannot_happen(state: AgentState, entry: Input) -> None:
    """AC-10: a miss is an error of the shell, a refusal a verdict, all else a state."""
    row = TRANSITIONS[state]
    if entry not in row:
        with pytest.raises(KeyError):
            step(state, entry)
    elif row[entry] is None:
        with pytest.raises(Refused):
            step(state, entry)
    else:
        assert step(state, entry) is row[entry]


def test_only_a_live_send_refuses_and_only_sends_and_replacements() -> None:
    """AC-11, AC-16: exactly the busy states refuse."""
    refused = {
        (state, entry) for state, row in TRANSITIONS.items() for entry, to in row.items() if to is None
    }
    assert refused == {(state, entry) for state in BUSY for entry in (Input.SEND, Input.SET_MESSAGES)}


def test_what_a_run_tells_cannot_happen_without_a_live_send() -> None:
    """AC-19 … AC-27: blank cells."""
    told = {Input.REFUSED, Input.HANDED_OVER, Input.NO_STREAM, Input.PIECE, Input.FINISHED, Input.BROKE}
    for state in set(AgentState) - BUSY:
        assert not told & set(TRANSITIONS[state])


def test_stops_lead_to_idle_from_every_live_state() -> None:
    """AC-14, AC-15, AC-17."""
    for state in BUSY:
        assert {step(state, entry) for entry in (Input.ABORT, Input.RESET, Input.SET_PROVIDER)} == {
            AgentState.IDLE
        }


def test_the_diagram_names_every_state() -> None:
    """The docs' picture comes from the table."""
    assert all(f" {state.value}" in diagram() for state in AgentState)
