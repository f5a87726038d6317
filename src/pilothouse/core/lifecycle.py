"""The six states of a conversation's send, as a table (agent-controller §3.1, §3.2; seed 000).

`TRANSITIONS[state][input]` is where the state goes; the same state means that nothing changes, `None` that the input is
refused there (busy), and an absent cell that it cannot happen for the live send: what comes from a dead send is dropped
before it gets here. Nothing else changes the state of a conversation.
"""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Final


class AgentState(StrEnum):
    """What a conversation is doing."""

    IDLE = "idle"  # no send in progress
    SENDING = "sending"  # accepted; no stream has been handed over yet
    STREAMING = "streaming"  # handed over: reading, running tools, or waiting for an answer
    PAUSED = "paused"  # as streaming, but pieces are buffered, not applied
    COMPLETE = "complete"  # the last send came to a declared end
    ERROR = "error"  # the last send failed, or nobody knows how it ended


class Input(Enum):
    """What can happen to a send. The text is what a diagram says."""

    SEND = "send, retry, regenerate"
    PAUSE = "pause"
    RESUME = "resume"
    ABORT = "abort, aclose"
    RESET = "reset"
    SET_MESSAGES = "set_messages"
    SET_PROVIDER = "set_provider"
    UPDATE_OPTIONS = "update_options"
    REFUSED = "ends before commit"
    HANDED_OVER = "stream handed over"
    HANDED_OVER_PAUSED = "stream handed over, pause remembered"
    NO_STREAM = "no stream: provider raises, send_timeout"
    PIECE = "piece of text"
    RESPONSE_ENDED = "response finished, tools to run"
    FINISHED = "declared end"
    BROKE = "stream raises or ends undeclared, idle timeout"


_I, _S, _T, _P, _C, _E = AgentState


def _row(*cells: AgentState | str | None) -> dict[AgentState, AgentState | None]:
    """One input over all states: a state, "=" to stay, "!" for refused, None where it cannot happen."""
    found: dict[AgentState, AgentState | None] = {}
    for state, cell in zip(AgentState, cells, strict=True):
        if cell == "=":
            found[state] = state
        elif cell == "!":
            found[state] = None
        elif isinstance(cell, AgentState):
            found[state] = cell
    return found


_BY_INPUT: Final[dict[Input, dict[AgentState, AgentState | None]]] = {
    #                               idle  sending  streaming  paused  complete  error
    Input.SEND: _row(_S, "!", "!", "!", _S, _S),
    Input.PAUSE: _row("=", "=", _P, "=", "=", "="),
    Input.RESUME: _row("=", "=", "=", _T, "=", "="),
    Input.ABORT: _row("=", _I, _I, _I, "=", _I),
    Input.RESET: _row("=", _I, _I, _I, _I, _I),
    Input.SET_MESSAGES: _row("=", "!", "!", "!", "=", "="),
    Input.SET_PROVIDER: _row("=", _I, _I, _I, "=", _I),
    Input.UPDATE_OPTIONS: _row("=", "=", "=", "=", "=", "="),
    Input.REFUSED: _row(None, _I, None, None, None, None),
    Input.HANDED_OVER: _row(None, _T, "=", "=", None, None),
    Input.HANDED_OVER_PAUSED: _row(None, _P, "=", "=", None, None),
    Input.NO_STREAM: _row(None, _E, _E, _E, None, None),
    Input.PIECE: _row(None, None, "=", "=", None, None),
    Input.RESPONSE_ENDED: _row(None, None, "=", "=", None, None),
    Input.FINISHED: _row(None, _C, _C, _C, None, None),
    Input.BROKE: _row(None, None, _E, _E, None, None),
}

TRANSITIONS: Final[dict[AgentState, dict[Input, AgentState | None]]] = {
    state: {entry: row[state] for entry, row in _BY_INPUT.items() if state in row} for state in AgentState
}


class Refused(Exception):
    """The input is refused in this state."""


def step(state: AgentState, entry: Input) -> AgentState:
    """The state after an input.

    Raises:
        Refused: a send is in progress.
        KeyError: this input cannot happen in this state: a fault of the shell.
    """
    to = TRANSITIONS[state][entry]
    if to is None:
        raise Refused
    return to


def diagram() -> str:
    """The table as a Mermaid state diagram; the docs hold it and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    for state, row in TRANSITIONS.items():
        moves: dict[AgentState, list[str]] = {}
        for entry, to in row.items():
            if to is not None and to is not state:
                moves.setdefault(to, []).append(entry.value)
        lines += [f"    {state.value} --> {to.value}: {'; '.join(names)}" for to, names in moves.items()]
    return "\n".join(lines) + "\n"
