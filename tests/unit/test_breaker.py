"""Breakers against models that loop, as pure state machines."""

from __future__ import annotations

from typing import Any

import pytest

from pilothouse.core.breaker import Breakers, RepetitionBreaker, ToolMisuseBreaker, key_of
from pilothouse.errors import ConfigError
from pilothouse.messages import Text

A, B, C = key_of("a", {"n": 1}), key_of("b", {}), key_of("c", {})


def misuse(**options: Any) -> Breakers:
    return Breakers(ToolMisuseBreaker(**options), None)


def repetition(**options: Any) -> Breakers:
    return Breakers(None, RepetitionBreaker(**options))


def same(text: str = "x") -> tuple[Text, ...]:
    return (Text(text),)


def test_a_key_does_not_depend_on_the_order_of_arguments() -> None:
    """LP-39"""
    assert key_of("t", {"a": 1, "b": [1, {"x": 1, "y": 2}]}) == key_of(
        "t", {"b": [1, {"y": 2, "x": 1}], "a": 1}
    )
    assert key_of("t", {"a": 1}) != key_of("t", {"a": True})
    assert key_of("t", {"a": "\ud800"}) == key_of("t", {"a": "\ud800"})


def test_equal_rejections_arm_one_note_and_eight_of_them_are_two_refusals() -> None:
    """LP-39, §7.10: note at 3, refused from 6 on."""
    breakers = misuse()
    notes, refusals = [], 0
    for _ in range(8):
        if (refused := breakers.refusal(A)) is not None:
            breakers.refused(refused[0])
            refusals += 1
            continue
        if (trip := breakers.rejected(A, "n must be text", "a: does a")) is not None:
            notes.append(trip)
    assert (len(notes), refusals, breakers.stops) == (1, 2, False)
    assert notes[0].data == {"guard": "misuse", "action": "note", "tool": "a", "count": 3}
    assert "a: does a" in notes[0].text
    which, text = breakers.refusal(A) or ("", "")
    breakers.refused(which)
    assert breakers.stops
    assert "6 times" in text
    assert "n must be text" in text


def test_another_error_text_begins_anew_and_other_calls_do_not_count() -> None:
    """LP-39"""
    breakers = misuse()
    for text in ("x", "x", "y", "y", "x"):
        assert breakers.rejected(A, text, "") is None
        breakers.rejected(B, "other", "")
    assert breakers.rejected(A, "x", "") is None


def test_a_success_clears_counts_of_its_tool_and_no_refusal() -> None:
    """LP-39: a call that is refused stays refused for the rest of the run."""
    breakers = misuse()
    for _ in range(5):
        breakers.rejected(A, "x", "")
    breakers.finished(key_of("a", {"n": 2}), "succeeded", same())
    assert breakers.rejected(A, "x", "") is None
    for _ in range(5):
        breakers.rejected(A, "x", "")
    assert breakers.refusal(A) is not None
    breakers.finished(key_of("a", {"n": 2}), "succeeded", same())
    assert breakers.refusal(A) is not None
    breakers.finished(B, "failed", same())
    assert breakers.refusal(B) is None


def test_a_long_contract_is_cut() -> None:
    """§3.9: at most 240 characters of it."""
    breakers = misuse(note_after=2)
    breakers.rejected(A, "x", "c" * 1000)
    trip = breakers.rejected(A, "x", "c" * 1000)
    assert trip is not None
    assert trip.text.count("c" * 240) == 1
    assert "c" * 241 not in trip.text


@pytest.mark.parametrize("cycle", [[A], [A, B], [A, B, C]])
def test_the_same_calls_with_the_same_outcome_are_noted_and_then_refused(cycle: list[Any]) -> None:
    """§3.9, [155]: in full cycles of up to max_period calls, successes too."""
    breakers = repetition()
    notes = []
    for turn in range(5 * len(cycle)):
        key = cycle[turn % len(cycle)]
        assert breakers.refusal(key) is None
        if (trip := breakers.finished(key, "succeeded", same())) is not None:
            notes.append((turn, trip.data["count"]))
    assert notes == [(3 * len(cycle) - 1, 3)]
    assert breakers.refusal(cycle[0]) is not None
    assert breakers.refusal(key_of("else", {})) is None


def test_a_changed_result_is_progress() -> None:
    """§3.9: polling is no loop."""
    breakers = repetition()
    for turn in range(20):
        assert breakers.refusal(A) is None
        assert breakers.finished(A, "succeeded", same(str(turn))) is None


def test_a_longer_cycle_than_the_period_is_none() -> None:
    breakers = repetition(max_period=2)
    for turn in range(30):
        assert breakers.finished([A, B, C][turn % 3], "succeeded", same()) is None


def _batches(breakers: Breakers, *cycle: list[Any]) -> tuple[int, list[int], int]:
    """Plays batches in turn until the run is to end: calls that ran, batches with a note, batches played."""
    ran, noted, turn = 0, [], 0
    while not breakers.stops and turn < 100:
        batch = cycle[turn % len(cycle)]
        passed = []
        for key in batch:
            if (refused := breakers.refusal(key)) is not None:
                breakers.refused(refused[0])
            else:
                passed.append(key)
        trips = [breakers.finished(key, "succeeded", same()) for key in passed]
        if any([*trips, breakers.batch_over(len(passed))]):
            noted.append(turn)
        ran += len(passed)
        turn += 1
    return ran, noted, turn


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8, 40])
def test_a_batch_that_repeats_as_a_whole_is_one_step_of_a_loop(size: int) -> None:
    """§3.9, [155]: of any size, each of its calls runs five times, and a refused batch counts once."""
    batch = [key_of("a", {"n": number}) for number in range(size)]
    assert _batches(repetition(), batch) == (5 * size, [2], 8)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 1, 1), (4, 1), (2, 5, 1)])
def test_batches_may_take_turns(sizes: tuple[int, ...]) -> None:
    """§3.9: up to max_period of them; what runs is five full cycles, whatever is refused on the way."""
    cycle = [[key_of(f"t{at}", {"n": n}) for n in range(size)] for at, size in enumerate(sizes)]
    ran, noted, turns = _batches(repetition(), *cycle)
    assert (ran, noted, turns) == (5 * sum(sizes), [3 * len(sizes) - 1], 7 * len(sizes) + 1)


@pytest.mark.parametrize("batch", [[A, A, B, B], [A, B, B], [A, B, A, B, C, C]])
def test_a_batch_whose_end_repeats_itself_is_still_one_step(batch: list[Any]) -> None:
    """§3.9: what repeats most often counts."""
    assert _batches(repetition(), batch) == (5 * len(batch), [2], 8)


def test_a_batch_with_one_changed_result_is_progress() -> None:
    """§3.9"""
    breakers = repetition()
    for turn in range(20):
        for number in range(6):
            key = key_of("a", {"n": number})
            assert breakers.refusal(key) is None
            text = str(turn) if number == 4 else "x"
            assert breakers.finished(key, "succeeded", same(text)) is None
        assert breakers.batch_over(6) is None


def test_doing_something_else_ends_a_cycle() -> None:
    breakers = repetition()
    for _ in range(5):
        breakers.finished(A, "succeeded", same())
    breakers.finished(B, "succeeded", same())
    assert breakers.refusal(A) is None


def test_without_breakers_nothing_is_kept() -> None:
    """LP-39: None."""
    breakers = Breakers(None, None)
    for _ in range(20):
        assert breakers.rejected(A, "x", "") is None
        assert breakers.finished(A, "failed", same()) is None
        assert breakers.refusal(A) is None
    assert not breakers.on
    assert not breakers.stops


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (ToolMisuseBreaker, {"note_after": 1}),
        (ToolMisuseBreaker, {"note_after": 3, "refuse_after": 3}),
        (ToolMisuseBreaker, {"stop_after_refusals": 0}),
        (RepetitionBreaker, {"note_after": 1}),
        (RepetitionBreaker, {"refuse_after": 2}),
        (RepetitionBreaker, {"max_period": 0}),
    ],
)
def test_thresholds_that_cannot_work_are_refused(kind: Any, wrong: dict[str, int]) -> None:
    """§6: refuse ≤ note."""
    with pytest.raises(ConfigError):
        kind(**wrong)
