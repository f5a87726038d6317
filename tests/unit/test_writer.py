"""The group-committing thread, over a store that only notes what is asked of it (JR-6, JR-11, RC-14)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pilothouse.errors import JournalBusy, JournalFull, JournalUnavailable
from pilothouse.journal.writer import BATCH_BYTES, BATCH_JOBS, GroupWriter, TransactionLost


class NotingStore:
    """Commits wait at a gate, so that a test decides what arrives meanwhile."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.batch: list[Any] = []
        self.stored: list[Any] = []
        self.failing: dict[str, Exception] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.closed = threading.Event()

    def _do(self, step: str) -> None:
        self.notes.append(step)
        if step in self.failing:
            raise self.failing.pop(step)

    def open(self) -> None:
        self._do("open")

    def begin(self) -> None:
        self._do("begin")
        self.begun.set()
        self.gate.wait(20)

    def run(self, work: Callable[[], Any]) -> Any:
        result = work()
        self.batch.append(result)
        return result

    def commit(self) -> None:
        self._do("commit")
        self.stored += self.batch
        self.batch = []

    def rollback(self) -> None:
        self._do("rollback")
        self.batch = []

    def settle(self, *, idle: bool) -> None:
        self._do("settle idle" if idle else "settle")

    def close(self) -> None:
        self._do("close")
        self.closed.set()


def fails(error: Exception) -> Callable[[], Any]:
    def work() -> None:
        raise error

    return work


async def test_who_hands_over_is_told_in_the_pass_that_hears_of_it() -> None:
    """JR-11: with the result or the error; what fails there keeps nothing from the others of the batch."""
    loop = asyncio.get_running_loop()
    failures: list[object] = []
    loop.set_exception_handler(lambda _loop, context: failures.append(context["exception"]))
    store = NotingStore()
    writer = GroupWriter(store, "test")
    told: list[tuple[object, BaseException | None]] = []
    refused = ValueError("no")
    broken = RuntimeError("who was told fails")

    def fail(_result: object, _error: BaseException | None) -> None:
        raise broken

    store.gate.clear()
    first = writer.submit(lambda: 0)
    await asyncio.to_thread(store.begun.wait)
    writer.hand_over(lambda: 1, 0, lambda result, error: told.append((result, error)))
    writer.hand_over(lambda: 2, 0, fail)
    writer.hand_over(fails(refused), 0, lambda result, error: told.append((result, error)))
    last = writer.submit(lambda: 3)
    store.gate.set()
    assert (await first, await last) == (0, 3)
    assert told == [(1, None), (None, refused)]
    assert failures == [broken]
    assert store.stored == [0, 1, 2, 3]
    loop.set_exception_handler(None)
    await writer.aclose()
    with pytest.raises(JournalUnavailable, match="closed"):
        writer.hand_over(lambda: 4, 0, fail)


def test_who_stops_the_loop_keeps_nothing_from_the_others() -> None:
    """JR-6: a second interrupt in the middle of a batch: whoever ends the loop does not wait for ever."""
    store = NotingStore()
    told: list[object] = []

    def stop(_result: object, _error: BaseException | None) -> None:
        raise KeyboardInterrupt

    async def main(writer: GroupWriter) -> None:
        store.gate.clear()
        first = writer.submit(lambda: 0)
        await asyncio.to_thread(store.begun.wait)
        writer.hand_over(lambda: 1, 0, stop)
        writer.hand_over(lambda: 2, 0, lambda result, _error: told.append(result))
        store.gate.set()
        await first
        await asyncio.sleep(60)

    loop = asyncio.new_event_loop()
    writer = GroupWriter(store, "test")
    work = loop.create_task(main(writer))
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(work)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(work)
    assert told == [2]
    loop.run_until_complete(writer.aclose())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def test_what_arrives_meanwhile_is_committed_together() -> None:
    """JR-11: one transaction for all that waits; alone, one commits at once."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    assert await writer.submit(lambda: 0) == 0
    assert store.notes[:3] == ["open", "begin", "commit"]
    store.gate.clear()
    futures = [writer.submit(lambda number=number: number) for number in range(1, 6)]
    assert writer.waiting > 0
    store.gate.set()
    assert await asyncio.gather(*futures) == [1, 2, 3, 4, 5]
    assert store.stored == [0, 1, 2, 3, 4, 5]
    assert writer.commits <= 3
    await writer.aclose()


async def test_a_refused_piece_leaves_its_batch_mates_alone() -> None:
    """JR-11."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    futures = [writer.submit(lambda: "a"), writer.submit(fails(KeyError("x"))), writer.submit(lambda: "b")]
    store.gate.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert results[0::2] == ["a", "b"]
    assert isinstance(results[1], KeyError)
    assert store.stored == ["a", "b"]
    await writer.aclose()


@pytest.mark.parametrize("step", ["open", "begin", "commit"])
async def test_if_the_transaction_fails_none_of_it_is_confirmed(step: str) -> None:
    """JR-11: and the next batch is tried anew."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.failing[step] = JournalBusy("busy")
    store.gate.clear()
    futures = [writer.submit(lambda: 1), writer.submit(lambda: 2)]
    store.gate.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert JournalBusy in {type(result) for result in results}
    assert [type(result) for result in results if not isinstance(result, JournalBusy)] == [int] * len(
        store.stored
    )
    assert await writer.submit(lambda: 3) == 3
    assert store.stored[-1] == 3
    await writer.aclose()


async def test_a_broken_transaction_found_by_a_piece_fails_all_of_them() -> None:
    """JR-11: none is confirmed on a transaction that is gone."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    futures = [writer.submit(lambda: 1)]
    await asyncio.to_thread(store.begun.wait, 20)
    futures += [writer.submit(fails(TransactionLost(JournalFull("full")))), writer.submit(lambda: 2)]
    store.gate.set()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [JournalFull] * 3
    assert store.stored == []
    assert "rollback" in store.notes
    await writer.aclose()


async def test_a_fault_of_ours_reaches_the_waiters_and_the_thread_goes_on() -> None:
    """JR-6: nobody waits for ever."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.failing["commit"] = ZeroDivisionError("a fault")
    with pytest.raises(ZeroDivisionError):
        await writer.submit(lambda: 1)
    assert await writer.submit(lambda: 2) == 2
    await writer.aclose()


async def test_a_cancelled_waiter_changes_nothing() -> None:
    """RC-14."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    futures = [writer.submit(lambda number=number: number) for number in range(3)]
    futures[1].cancel()
    store.gate.set()
    assert await futures[2] == 2
    assert store.stored == [0, 1, 2]
    await writer.aclose()


async def test_closing_writes_what_was_handed_over_and_takes_no_more() -> None:
    """JR-6: idempotent, also at the same time."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    futures = [writer.submit(lambda number=number: number) for number in range(50)]
    closing = [asyncio.create_task(writer.aclose()) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(JournalUnavailable, match="closed") as caught:
        writer.submit(lambda: "late")
    assert not caught.value.retryable
    store.gate.set()
    await asyncio.gather(*closing)
    assert await asyncio.gather(*futures) == list(range(50))
    assert store.notes[-1] == "close"
    assert store.notes.count("close") == 1
    await writer.aclose()


async def test_a_failing_batch_does_not_lose_the_stop() -> None:
    """JR-6: closing ends though the disk is away."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    first = writer.submit(lambda: 1)
    await asyncio.to_thread(store.begun.wait, 20)
    store.failing["commit"] = JournalBusy("busy")
    closing = asyncio.create_task(writer.aclose())
    await asyncio.sleep(0)
    store.gate.set()
    with pytest.raises(JournalBusy):
        await first
    await closing
    assert store.closed.is_set()


async def test_a_writer_that_was_never_used_closes_at_once() -> None:
    store = NotingStore()
    await GroupWriter(store, "test").aclose()
    assert store.notes == []


@pytest.mark.parametrize(("count", "size"), [(BATCH_JOBS + 50, 0), (5, BATCH_BYTES)])
async def test_batches_are_bounded(count: int, size: int) -> None:
    """JR-15: in pieces and in bytes; everything is written all the same."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()
    futures = [writer.submit(lambda number=number: number, size) for number in range(count)]
    store.gate.set()
    assert await asyncio.gather(*futures) == list(range(count))
    assert writer.commits == (5 if size else 2)
    await writer.aclose()


def test_loops_that_end_do_not_matter() -> None:
    """JR-6: each loop gets its own results; a loop that was closed gets none, and harms nobody."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    store.gate.clear()

    async def leave() -> None:
        writer.submit(lambda: "left")

    asyncio.run(leave())

    async def stay() -> str:
        future = writer.submit(lambda: "stayed")
        store.gate.set()
        return await future

    assert asyncio.run(stay()) == "stayed"
    assert store.stored == ["left", "stayed"]
    asyncio.run(writer.aclose())


async def test_a_loop_is_woken_once_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """JR-11: however many of its futures are done."""
    store = NotingStore()
    writer = GroupWriter(store, "test")
    loop = asyncio.get_running_loop()
    wakes = 0
    wake = loop.call_soon_threadsafe

    def count(*arguments: Any) -> Any:
        nonlocal wakes
        wakes += 1
        return wake(*arguments)

    store.gate.clear()
    futures = [writer.submit(lambda number=number: number) for number in range(100)]
    monkeypatch.setattr(loop, "call_soon_threadsafe", count)
    store.gate.set()
    await asyncio.gather(*futures)
    monkeypatch.undo()
    assert wakes == writer.commits <= 2
    await writer.aclose()
