"""Waking who waits for a run (JR-20, RC-65, RC-78)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from pilothouse.errors import JournalBusy, RunNotFound
from pilothouse.journal.watch import POLL_S, Watch


class NotingLook:
    """A store whose heads a test moves, as another process would."""

    def __init__(self) -> None:
        self.heads: dict[str, int] = {}
        self.version = self.seen = 0
        self.looks = self.asked = 0
        self.failing = 0
        self.closed = False

    def commit(self, run_id: str, seq: int) -> None:
        self.heads[run_id] = seq
        self.version += 1

    def changed(self) -> bool:
        self.looks += 1
        if self.failing:
            self.failing -= 1
            raise JournalBusy("busy")
        changed, self.seen = self.version != self.seen, self.version
        return changed

    def seqs(self, run_ids: Iterable[str]) -> Mapping[str, int]:
        self.asked += 1
        return {run_id: self.heads[run_id] for run_id in run_ids if run_id in self.heads}

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def look() -> NotingLook:
    return NotingLook()


async def at(seq: int) -> int:
    return seq


async def test_who_is_behind_does_not_wait(look: NotingLook) -> None:
    watch = Watch(lambda: look)
    assert await watch.wait("r", 3, lambda: at(5), 10) == 5
    assert look.looks == 0
    watch.close()


async def test_a_commit_of_this_process_wakes_at_once(look: NotingLook) -> None:
    """JR-20: without looking; others go on waiting."""
    watch = Watch(lambda: look)
    woken = [asyncio.create_task(watch.wait("r", after, lambda: at(1), 10)) for after in (1, 2, 3)]
    other = asyncio.create_task(watch.wait("other", 1, lambda: at(1), 10))
    await asyncio.sleep(0)
    watch.moved({"r": 3})
    assert await asyncio.gather(*woken[:2]) == [3, 3]
    assert not woken[2].done()
    assert not other.done()
    watch.moved({"r": 4, "other": 2})
    assert await asyncio.gather(woken[2], other) == [4, 2]
    watch.close()


async def test_a_commit_of_another_process_is_seen(look: NotingLook) -> None:
    """JR-20, RC-78: one look a poll for all who wait; heads are asked for only if something changed."""
    watch = Watch(lambda: look)
    waits = [asyncio.create_task(watch.wait(f"r{n}", 1, lambda: at(1), 30)) for n in range(50)]
    quiet = asyncio.create_task(watch.wait("quiet", 1, lambda: at(1), 4 * POLL_S))
    assert await quiet == 1
    assert 1 <= look.looks <= 5
    assert look.asked <= 2
    for number in range(50):
        look.commit(f"r{number}", 2)
    assert await asyncio.gather(*waits) == [2] * 50
    watch.close()
    assert look.closed


async def test_looking_goes_on_after_an_error(look: NotingLook) -> None:
    watch = Watch(lambda: look)
    look.failing = 2
    waiting = asyncio.create_task(watch.wait("r", 1, lambda: at(1), 30))
    await asyncio.sleep(0)
    look.commit("r", 2)
    assert await waiting == 2
    assert look.looks >= 3
    watch.close()


async def test_nobody_looks_when_nobody_waits(look: NotingLook) -> None:
    """RC-78: the thread ends, and comes back."""
    watch = Watch(lambda: look)
    for round_ in (1, 2):
        assert await watch.wait("r", 0, lambda: at(0), POLL_S * 1.5) == 0
        while watch._thread is not None:
            await asyncio.sleep(0.01)
        assert look.closed
        assert look.looks >= round_
    watch.close()


async def test_a_waiter_that_leaves_is_forgotten(look: NotingLook) -> None:
    watch = Watch(lambda: look)
    waiting = asyncio.create_task(watch.wait("r", 1, lambda: at(1), 30))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    async def nothing() -> int:
        raise RunNotFound("r")

    with pytest.raises(RunNotFound):
        await watch.wait("r", 1, nothing, 1)
    assert not watch._waiters
    watch.close()
