"""Random trees of send, edit, regenerate and retry: the right history for readers and for runtimes (RC-68, RC-82)."""

from __future__ import annotations

from pathlib import Path

from oracles.threads import grow, grow_many
from pilothouse.journal.sqlite import SQLiteJournal


async def test_each_run_of_a_random_tree_has_its_path() -> None:
    """RC-68, RC-82: nothing twice, nothing of another branch; a child's history never changes.

    More of them: `python -m tests.oracles.threads --trees 2000`.
    """
    assert await grow_many(100) > 3_000


async def test_the_same_from_a_file(tmp_path: Path) -> None:
    """What was encoded and read back gives the same paths."""
    for seed in range(3):
        async with SQLiteJournal(tmp_path / f"{seed}.db", durability="off") as journal:
            assert await grow(seed, journal=journal) > 30
