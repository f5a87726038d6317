"""What is kept of threads for the next time is bounded, in number and in messages."""

from __future__ import annotations

from pilothouse.core.recent import MESSAGES, THREADS, Recent
from pilothouse.loop.trail import Trail, Trails
from pilothouse.messages import Message, Text


def test_the_oldest_go_first() -> None:
    """RC-72: what was put in again is new again."""
    kept: Recent[str] = Recent(most=2)
    kept.put("a", "1")
    kept.put("b", "2")
    kept.put("a", "3")
    kept.put("c", "4")
    assert [kept.get(key) for key in "abc"] == ["3", None, "4"]


def test_weight_is_a_limit_too() -> None:
    """RC-72: and follows what is taken out and replaced."""
    kept: Recent[str] = Recent(most=10, heaviest=10)
    kept.put("a", "1", 6)
    kept.put("b", "2", 4)
    assert (len(kept), kept.weight) == (2, 10)
    kept.put("b", "2", 5)
    assert (kept.get("a"), kept.get("b"), kept.weight) == (None, "2", 5)
    assert (kept.pop("b"), kept.pop("b"), kept.weight) == ("2", None, 0)


def test_what_is_too_heavy_alone_is_not_kept() -> None:
    """RC-72."""
    kept: Recent[str] = Recent(most=10, heaviest=10)
    kept.put("a", "1", 11)
    assert (kept.get("a"), kept.weight) == (None, 0)


def test_idle_threads_hold_a_bounded_number_of_messages() -> None:
    """RC-72: of many long threads only the last ones are carried; the others are looked at anew."""
    trails = Trails()
    each = MESSAGES // 10
    shared = [Message(f"m{number}", "user", (Text("hi"),)) for number in range(each)]
    for number in range(THREADS):
        trails.keep(f"t{number}", Trail(list(shared)))
    kept = [number for number in range(THREADS) if trails.take(f"t{number}", shared).messages is not shared]
    assert kept == [*range(THREADS - 10, THREADS)]
