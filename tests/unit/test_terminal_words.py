"""What the terminal says: outcomes in words, and nothing that a model writes is obeyed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pilothouse.cli.chat import Printer, plain
from pilothouse.cli.explain import ended
from pilothouse.events import (
    CallFinished,
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    TextTold,
    Truncated,
    Unknown,
)
from pilothouse.messages import Text


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Completed(), "completed"),
        (Completed(empty=True), "completed, but the model said nothing"),
        (Truncated(), "truncated: the answer was cut by an output limit"),
        (Incomplete("limit", "turns"), "incomplete: limit turns"),
        (Cancelled("aborted"), "cancelled (user)"),
        (Cancelled("too long", "deadline"), "cancelled (deadline): too long"),
        (Failed("rate_limit", message="slow\ndown"), "failed: rate limit: slow down"),
        (Failed("bug"), "failed: bug"),
        (Unknown("owner_lost", "gone"), "unknown: owner_lost gone"),
        (Unknown("eof", settled=True), "unknown, abandoned: eof"),
    ],
)
def test_an_outcome_is_told_in_words(outcome, said: str) -> None:
    """No person has to read a repr."""
    assert ended(outcome) == said


def test_a_terminal_does_not_obey_what_a_model_writes() -> None:
    """An escape sequence is shown, not run; line breaks and tabs stay."""
    assert plain("a\x1b[2Jb\x07\r\n\tc\x9b") == "a␛[2Jb␇␍\n\tc�"


@pytest.mark.parametrize(
    "text", [r"a\[b]", r"\[/nothing]", "[bold]x[/]", "ends with \\", "a :smile: stays", "x" * 200]
)
def test_text_is_printed_as_it_was_written(text: str) -> None:
    """Neither markup nor emoji names nor the width of the terminal change it, in answers and in results."""
    out = io.StringIO()
    printer = Printer(Console(file=out, width=80, highlight=False, markup=False, emoji=False))
    printer.take(TextTold("m", index=0, text=text, offset=0))
    assert out.getvalue() == text
    printer.take(CallFinished("c", outcome="succeeded", content=(Text(text),)))
    assert out.getvalue() == f"{text} succeeded {text}\n"
