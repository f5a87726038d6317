"""Signals: batches that are not torn, order, isolation, computed values, watchers (AG-2 … AG-8)."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.agent_contracts import Signal
from pilothouse.agents.signals import Cell, Events, Hub, computed, watch


def test_one_cause_is_one_batch() -> None:
    """AG-5: whoever reads another signal in a callback sees the same batch."""
    hub = Hub()
    left, right = Cell(hub, 0), Cell(hub, 0)
    seen: list[tuple[int, int]] = []
    left.subscribe(lambda _: seen.append((left(), right())))
    right.subscribe(lambda _: seen.append((left(), right())))
    with hub.batch():
        left.set(1)
        assert (left(), seen) == (1, [])  # read at once, told later
        with hub.batch():
            right.set(1)
        assert seen == []
    assert seen == [(1, 1), (1, 1)]


def test_no_change_no_notification() -> None:
    """AG-3."""
    hub = Hub()
    item = object()
    cell: Cell[tuple[object, ...]] = Cell(hub, (item,))
    seen: list[object] = []
    cell.subscribe(seen.append)
    cell.set((item,))
    assert seen == []
    cell.set((object(),))
    assert len(seen) == 1


def test_what_a_callback_changes_is_told_after_the_batch_in_progress() -> None:
    """AG-7: in order, for every subscriber; no recursion, no lost update."""
    hub = Hub()
    cell = Cell(hub, 0)
    first: list[int] = []
    second: list[int] = []
    depth = 0
    deepest = 0

    def count(value: int) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        first.append(value)
        if value < 3:
            cell.set(value + 1)
        depth -= 1

    cell.subscribe(count)
    cell.subscribe(second.append)
    cell.set(1)
    assert first == second == [1, 2, 3]
    assert deepest == 1


def test_a_subscriber_that_raises_is_alone_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """AG-6: logged with its name."""
    hub = Hub()
    cell = Cell(hub, 0, "status")
    seen: list[int] = []

    def broken(_: int) -> None:
        raise RuntimeError("mine")

    cell.subscribe(broken)
    cell.subscribe(seen.append)
    with caplog.at_level(logging.ERROR):
        cell.set(1)
    assert seen == [1]
    assert cell() == 1
    assert "broken" in caplog.text
    assert "status" in caplog.text


def test_leaving_while_being_told() -> None:
    """AG-4: a subscriber that was removed is not called any more, in the same batch either."""
    hub = Hub()
    cell = Cell(hub, 0)
    seen: list[int] = []
    leaves: list = []
    cell.subscribe(lambda _: leaves[0]())
    leaves.append(cell.subscribe(seen.append))
    cell.set(1)
    assert seen == []


def test_computed_values_follow_what_they_read() -> None:
    """§2: dependencies change with what is read; equal results are not told; nothing stays subscribed."""
    hub = Hub()
    which, a, b = Cell(hub, "a"), Cell(hub, 1), Cell(hub, 10)
    picked = computed(lambda: a() if which() == "a" else b())
    assert picked() == 1
    seen: list[int] = []
    leave = picked.subscribe(seen.append)
    b.set(20)
    assert seen == []
    a.set(2)
    which.set("b")
    a.set(3)
    assert seen == [2, 20]
    with hub.batch():
        which.set("a")
        b.set(3)
    assert seen == [2, 20, 3]
    leave()
    assert not any(cell._subscribers for cell in (which, a, b))
    assert picked.get() == 3


def test_a_computed_of_computed_values_is_not_torn() -> None:
    """AG-5: a diamond is computed from one batch only."""
    hub = Hub()
    n = Cell(hub, 1)
    double, square = computed(lambda: n() * 2), computed(lambda: n() ** 2)
    both = computed(lambda: (double(), square()))
    seen: list[tuple[int, int]] = []
    both.subscribe(seen.append)
    n.set(3)
    assert seen == [(6, 9)]


async def test_watching_gives_the_latest() -> None:
    """§2: never a backlog."""
    hub = Hub()
    cell = Cell(hub, 0)
    watching = watch(cell)
    assert await anext(watching) == 0
    for number in range(1, 6):
        cell.set(number)
    assert await anext(watching) == 5
    late = asyncio.ensure_future(anext(watching))
    await asyncio.sleep(0)
    assert not late.done()
    cell.set(6)
    assert await late == 6
    await watching.aclose()
    assert not cell._subscribers


async def test_events_drop_the_oldest_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    """§2 EventSource: a bounded buffer; events come behind the changes of their batch."""
    hub = Hub()
    cell = Cell(hub, 0)
    events: Events[int] = Events(hub, buffer=2)
    order: list[object] = []
    cell.subscribe(lambda value: order.append(("cell", value)))
    events.subscribe(lambda event: order.append(("event", event)))
    reading = aiter(events)
    with hub.batch():
        events.emit(0)
        cell.set(1)
    assert order == [("cell", 1), ("event", 0)]
    with caplog.at_level(logging.WARNING):
        for number in range(1, 5):
            events.emit(number)
    assert [await anext(reading), await anext(reading)] == [3, 4]
    assert caplog.text.count("slower") == 1
    await reading.aclose()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4), max_size=12)
)
def test_random_batches_are_seen_whole(batches: list[list[tuple[int, int]]]) -> None:
    """AG-5: at every notification the cells are those of the end of a batch."""
    hub = Hub()
    cells = [Cell(hub, 0) for _ in range(4)]
    ends = {(0, 0, 0, 0)}
    torn: list[tuple[int, ...]] = []

    def look(_: int) -> None:
        now = tuple(cell() for cell in cells)
        if now not in ends:
            torn.append(now)

    for cell in cells:
        cell.subscribe(look)
    values = [0, 0, 0, 0]
    for batch in batches:
        for which, value in batch:
            values[which] = value
        ends.add(tuple(values))
        with hub.batch():
            for which, value in batch:
                cells[which].set(value)
    assert torn == []


def test_cells_are_signals() -> None:
    """The protocol holds for what the library gives."""
    assert isinstance(Cell(Hub(), 1), Signal)
    assert isinstance(computed(lambda: 1), Signal)
