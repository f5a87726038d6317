"""How large a request will be, and whether it fits."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.core.window import (
    MESSAGE_TOKENS,
    MIN_OUTPUT,
    Meter,
    message_tokens,
    output_budget,
    prefix_tokens,
    window_of,
)
from pilothouse.messages import (
    ArtifactRef,
    Image,
    Message,
    Model,
    Reasoning,
    Structured,
    Text,
    ToolCall,
    ToolSpec,
    Usage,
)

MODEL = Model("m", "p", 1000, 100)


def message(*parts: Any, message_id: str = "1", role: Any = "user") -> Message:
    return Message(message_id, role, parts)


def said(tokens: int, message_id: str) -> Message:
    return message(Text("x" * 4 * tokens), message_id=message_id)


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([Text("x" * 5)], 2),
        ([Image("image/png", data=b"x" * 9999)], 1200),
        ([Reasoning("x" * 8)], 2),
        ([Reasoning("", {"a": "x" * 30})], 10),
        ([ToolCall("c", "tool", {"a": 1}, '{"a":1}')], 3),
        ([ToolCall("c", "tool", {"a": 1})], 3),
        ([ArtifactRef("d", 10_000, "text/plain", "x" * 8)], 2),
        ([Structured({"a": "x" * 100})], 0),
        ([], 0),
    ],
)
def test_each_part_has_its_size(parts: list[Any], tokens: int) -> None:
    """LP-12: a quarter token a character, media flat."""
    assert message_tokens(message(*parts)) == MESSAGE_TOKENS + tokens


def test_without_an_anchor_everything_counts() -> None:
    """LP-12: system prompt and tool schemas too."""
    meter = Meter()
    tools = [ToolSpec("tool", "does", {"type": "object"})]
    messages = [said(10, "1"), said(20, "2")]
    estimate = meter.estimate(messages, MODEL, "x" * 40, tools)
    assert estimate == 30 + 2 * MESSAGE_TOKENS + prefix_tokens("x" * 40, tools)
    assert prefix_tokens("x" * 40, []) == 10


def test_a_growing_list_is_measured_once_and_another_one_anew() -> None:
    messages = [said(10, "1")]
    meter = Meter()
    assert meter.estimate(messages, MODEL, None, ()) == 14
    messages.append(said(5, "2"))
    assert meter.estimate(messages, MODEL, None, ()) == 23
    assert meter.estimate([said(1, "9")], MODEL, None, ()) == 5
    messages.clear()
    assert meter.estimate(messages, MODEL, None, ()) == 0


def test_what_the_provider_counted_is_the_anchor_for_its_own_model() -> None:
    """LP-12: of this model, since the last compaction."""
    meter = Meter()
    answer = message(Text("x"), message_id="a", role="assistant")
    messages = [said(10, "1"), answer]
    meter.accept(answer, MODEL, Usage(input=500, output=7))
    assert meter.estimate(messages, MODEL, "x" * 400, ()) == 507
    messages.append(said(3, "2"))
    assert meter.estimate(messages, MODEL, "x" * 400, ()) == 514
    assert meter.estimate(messages, Model("other"), None, ()) == 14 + 5 + 7
    meter.forget()
    assert meter.estimate(messages, MODEL, None, ()) == 14 + 5 + 7


def test_an_anchor_whose_message_is_gone_is_none() -> None:
    meter = Meter()
    meter.accept(message(Text("x"), message_id="a"), MODEL, Usage(input=500, output=7))
    assert meter.estimate([said(10, "1")], MODEL, None, ()) == 14


@pytest.mark.parametrize("usage", [None, Usage(output=3), Usage(input=3, estimated=True)])
def test_figures_that_say_too_little_are_no_anchor(usage: Any) -> None:
    """PV-8: estimates are marked."""
    meter = Meter()
    meter.accept(message(Text("x"), message_id="a"), MODEL, usage)
    assert meter.anchor is None


def test_the_owners_cap_replaces_the_window_lower_or_higher() -> None:
    """§2.2"""
    assert [window_of(MODEL, cap) for cap in (None, 500, 2000)] == [1000, 500, 2000]
    assert window_of(Model("m"), None) == 0


@pytest.mark.parametrize(
    ("shared", "wanted", "estimate", "budget"),
    [
        (False, None, 9_000, None),
        (False, 500, 99_000, 500),
        (True, 4_000, 5_000, 4_000),
        (True, 6_000, 5_000, 5_000),
        (True, None, 5_000, 5_000),
        (True, None, 9_990, MIN_OUTPUT),
        (True, 500, 9_990, 500),
    ],
)
def test_a_shared_window_lowers_the_output_budget(
    shared: bool, wanted: int | None, estimate: int, budget: int | None
) -> None:
    """LP-12: to what is left, not below 1,024 [105]."""
    model = Model("m", "p", 10_000, 8_000, shared_window=shared)
    assert output_budget(model, wanted, estimate, 10_000) == budget


def test_a_shared_window_of_unknown_size_lowers_nothing() -> None:
    assert output_budget(Model("m", "p", 0, 8_000, shared_window=True), 5, 9, 0) == 5
