"""How the end of an entered call is recorded (LP-44, TL-11, EF-11). Pure.

Two questions decide: how the function ended (`How`), and whether it had been asked to (`asked`: why). What the table
cannot hold is in `_asked`: a repeatable effect is cancelled, or failed at a time limit; a non-idempotent one is unknown,
unless it proved otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Final

from msgspec import Struct

from ..core.calls import REPEATABLE, UNKNOWN_TEXT
from ..errors import OutcomeUnknown, ToolError, ToolStopped
from ..events import Effect
from ..messages import CallOutcome
from .tools import Tool


class How(Enum):
    """How a function ended."""

    RETURNED = "returned"
    STOPPED = "stopped"  # it says that it stopped before its effect
    UNKNOWN = "unknown"  # it says that its effect may have happened
    RAISED = "raised"  # anything else that it raised
    CANCELLED = "cancelled"  # it let itself be cancelled
    ABANDONED = "abandoned"  # it did not end in its grace, and was left


class Verdict(Struct, frozen=True):
    """What is recorded of a call that did not return."""

    outcome: CallOutcome
    text: str
    reason: str = ""
    error: str | None = None
    marks: tuple[str, ...] = ()


def how_of(error: BaseException) -> How:
    """The kind of end that an exception is."""
    if isinstance(error, OutcomeUnknown):
        return How.UNKNOWN
    if isinstance(error, ToolStopped):
        return How.STOPPED
    return How.CANCELLED if isinstance(error, asyncio.CancelledError) else How.RAISED


def judge_end(how: How, *, asked: str | None, effect: Effect, cancel_safe: bool, text: str = "") -> Verdict:
    """The outcome of a call that did not return a value.

    Args:
        how: how it ended.
        asked: why it was to end, None if nobody wanted it to.
        effect: its effect class.
        cancel_safe: whether it declared that a cancelled call has had no effect.
        text: what the model may read of what it raised.
    """
    if how is How.UNKNOWN:
        return Verdict("unknown", f"{text}\n{UNKNOWN_TEXT}" if text else UNKNOWN_TEXT, "outcome_unknown")
    if asked is None:
        if how is How.CANCELLED:  # a CancelledError born inside the tool is its error [160]
            return Verdict(
                "failed",
                "The tool was cancelled from inside: nobody had asked it to stop.",
                "cancelled_inside",
            )
        return Verdict("failed", text, error=text)
    marks = ("abandoned",) if how is How.ABANDONED else ()
    if how is How.STOPPED:
        return Verdict("cancelled", text or _CANCELLED.format(reason=asked), asked)
    if effect in REPEATABLE or (cancel_safe and how is not How.ABANDONED):
        if (own := _OVER.get(asked)) is not None:
            return Verdict("failed", f"{own} {text}".strip(), asked, asked, marks)
        return Verdict("cancelled", _CANCELLED.format(reason=asked), asked, None, marks)
    story = f"{UNKNOWN_TEXT} {text}".strip()
    return Verdict("unknown", story, asked, None, marks)


_CANCELLED: Final = "This call was stopped ({reason}) before it had a result."
_OVER: Final = {
    "timeout": "This call took longer than its time limit and was stopped.",
    "stuck": "This call was stuck and was stopped.",
}
"""Reasons for which a call that may be repeated has failed, rather than been cancelled."""


# What of an exception the model may read


def shown_text(tool: Tool, error: BaseException) -> str | None:
    """The exception's own words, if the model may read them; None if not (TL-11)."""
    leaves = _leaves(error)
    if not all(isinstance(leaf, (ToolError, *tool.expose_errors)) for leaf in leaves):
        return None
    return "\n".join([str(leaf) or type(leaf).__name__ for leaf in leaves])


def _leaves(error: BaseException) -> Sequence[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def hidden_text(tool: Tool, reference: str) -> str:
    """What stands for an exception that nobody but the log may read."""
    return f"{tool.name}: internal error in the tool, not in your arguments (reference {reference})."
