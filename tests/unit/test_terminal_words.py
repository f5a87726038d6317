"""What the terminal says: outcomes in words, and nothing that a model writes is obeyed."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pilothouse.cli.explain import ended
from pilothouse.cli.screen import Screen, plain
from pilothouse.events import (
    Cancelled,
    Completed,
    Failed,
    Incomplete,
    Truncated,
    Unknown,
)
from pilothouse.projection import AgentMessage, AgentToolCall, MessageDelivery


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
    screen = Screen(Console(file=out, width=80, highlight=False, markup=False, emoji=False))
    streaming = MessageDelivery("g", "streaming")
    for length in range(1, len(text) + 1):
        screen.messages([AgentMessage("m", "assistant", streaming, text[:length])])
    screen.messages([AgentMessage("m", "assistant", streaming, text)])
    assert out.getvalue() == text
    screen.calls([AgentToolCall("c", "look", status="complete", result=text, ledger="succeeded")])
    assert out.getvalue() == f"{text}\n⚙ look … succeeded {text}\n"


def test_the_result_of_each_call_says_whose_it_is() -> None:
    """Calls that run at once end in any order, and text may come between: a line names one call and its own result."""
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80, highlight=False, markup=False, emoji=False))
    calls = {name: AgentToolCall(name, name, status="running") for name in ("one", "two", "three")}

    def over(name: str) -> None:
        calls[name] = AgentToolCall(name, name, status="complete", result=f"of {name}", ledger="succeeded")
        screen.calls(list(calls.values()))

    screen.calls(list(calls.values()))
    over("one")
    over("three")
    screen.messages([AgentMessage("m", "assistant", MessageDelivery("g", "streaming"), "Meanwhile.\n")])
    over("two")
    assert out.getvalue() == (
        "\n⚙ one …\n⚙ two …\n⚙ three …\n⚙ one succeeded of one\n⚙ three succeeded of three\n"
        "Meanwhile.\n⚙ two succeeded of two\n"
    )


def test_what_was_there_is_not_printed_and_a_correction_is() -> None:
    """A screen shows what is new; reasoning ends with a line of its own; a rewrite is shown whole."""
    out = io.StringIO()
    screen = Screen(Console(file=out, width=80, highlight=False, markup=False, emoji=False))
    old = AgentMessage("old", "assistant", MessageDelivery("old", "complete", "success"), "before")
    screen.skip([old], [])
    streaming = MessageDelivery("g", "streaming")
    screen.messages([old, AgentMessage("m", "assistant", streaming, "", reasoning="hm")])
    screen.messages([old, AgentMessage("m", "assistant", streaming, "one", reasoning="hm")])
    screen.messages([old, AgentMessage("m", "assistant", streaming, "two", reasoning="hm")])
    assert out.getvalue() == "hm\none\ntwo"
