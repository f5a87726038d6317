"""What a live run publishes, kept once, and the cursors that read it (RC-62, RC-63).

One ring a run, bounded in items and bytes; a follower is a cursor, not a queue. The run never waits for a follower: one
that fell out of the ring is told that it lagged and, in a `Follower`, heals from the journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Self

from ..events import Delta, Lagged
from ..records import Record

Item = Record | Delta
_body = attrgetter("body")

RECORD_BYTES = 200
"""What a record takes besides its body, about."""

Observer = Callable[[Item], None]


class Ring:
    """The last items of one run. `first` is the number of the oldest kept, `end` of the next to come."""

    __slots__ = ("_bytes", "_items", "_limit", "_limit_bytes", "_trim_at", "_waiters", "closed", "first")

    def __init__(self, limit: int, limit_bytes: int) -> None:
        self._items: list[Item] = []
        self._limit = limit
        self._trim_at = 2 * limit
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self.first = 0
        self.closed = False

    @property
    def end(self) -> int:
        """The number that the next item will have."""
        return self.first + len(self._items)

    def append(self, item: Item, size: int) -> None:
        """Publishes an item of about `size` bytes and wakes who waits."""
        items = self._items
        items.append(item)
        self._bytes += size
        # Trimmed in halves, so that the cost of an item does not depend on how many are kept.
        if len(items) >= self._trim_at or self._bytes > self._limit_bytes:
            self._trim()
        if self._waiters:
            self.wake()

    def extend(self, records: Sequence[Record]) -> None:
        """Publishes the records of one append: the same as one by one, for a third of it."""
        self._items += records
        self._bytes += sum(map(len, map(_body, records))) + RECORD_BYTES * len(records)
        if len(self._items) >= self._trim_at or self._bytes > self._limit_bytes:
            self._trim()
        if self._waiters:
            self.wake()

    def _trim(self) -> None:
        items = self._items
        drop = max(len(items) - self._limit, 1)
        if self._bytes > self._limit_bytes:
            drop = max(drop, len(items) // 2)
        drop = min(drop, len(items))
        kept = len(items) - drop
        self._bytes = self._bytes * kept // len(items)
        del items[:drop]
        self.first += drop

    def take(self, number: int) -> Item | None:
        """The item with that number; None if it has not come. It must not be dropped."""
        at = number - self.first
        items = self._items
        return items[at] if at < len(items) else None

    def wake(self) -> None:
        """Wakes all who wait."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def close(self) -> None:
        """Nothing more will come."""
        self.closed = True
        self.wake()

    def clear(self) -> None:
        """Drops what is kept: nobody reads here any more."""
        self.first += len(self._items)
        self._items = []
        self._bytes = 0

    def waiter(self, number: int) -> asyncio.Future[None] | None:
        """What is set when something is published; None if item `number` is there, or never will be.

        Who does not wait for it to the end gives it back with `forget`.
        """
        if number < self.first + len(self._items) or self.closed:
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Nobody waits there any more."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    async def wait(self, number: int) -> bool:
        """Waits until item `number` is there; False if it never will be."""
        while (waiter := self.waiter(number)) is not None:
            try:
                await waiter
            except asyncio.CancelledError:
                self.forget(waiter)
                raise
        return number < self.first + len(self._items)


class Subscription:
    """What is published from now on. An async iterator and async context manager.

    A reader that falls out of the ring gets one `Lagged` delta, then the oldest kept item.
    """

    __slots__ = ("_closed", "_cursor", "_last_seq", "_on_close", "_ring", "_run_id")

    def __init__(
        self, run_id: str, ring: Ring, last_seq: int, on_close: Callable[[Subscription], None]
    ) -> None:
        self._run_id = run_id
        self._ring = ring
        self._cursor = ring.end
        self._last_seq = last_seq
        self._on_close = on_close
        self._closed = False

    @property
    def last_seq(self) -> int:
        """The last fact that this reader has seen or knows to be skipped."""
        return self._last_seq

    def take_nowait(self) -> Item | None:
        """The next item if it is there. Never waits."""
        ring, cursor = self._ring, self._cursor
        if cursor < ring.first:
            lost = ring.first - cursor
            self._cursor = ring.first
            return self._lagged(lost)
        items = ring._items  # noqa: SLF001 - the ring and its cursors are one thing
        at = cursor - ring.first
        if at >= len(items):
            return None
        item = items[at]
        self._cursor = cursor + 1
        if type(item) is Record:
            self._last_seq = item.seq
        return item

    def rewind(self) -> None:
        """Goes back to the oldest item that is kept."""
        self._cursor = self._ring.first

    def skip(self, seq: int) -> None:
        """Passes over facts up to `seq` that stand next: who went back has them from the journal."""
        ring = self._ring
        while self._cursor >= ring.first and type(item := ring.take(self._cursor)) is Record:
            if item.seq > seq:
                return
            self._cursor += 1
            self._last_seq = max(self._last_seq, item.seq)

    @property
    def idle(self) -> bool:
        """Whether the next item is still to come."""
        return self._cursor >= self._ring.end

    def delta_nowait(self) -> Delta | None:
        """The next item if it is there and a delta. Never waits."""
        ring = self._ring  # as `Ring.take`, without the call: this is asked for each delta and each reader
        at = self._cursor - ring.first
        items = ring._items  # noqa: SLF001
        if not 0 <= at < len(items):
            return None
        item = items[at]
        if type(item) is not Delta:
            return None
        self._cursor += 1
        return item

    def drain(self, take: Callable[[Delta], bool]) -> Delta | None:
        """Hands the deltas that stand next to `take`, until it refuses one: that is returned, and passed over."""
        ring = self._ring
        items = ring._items  # noqa: SLF001
        at = self._cursor - ring.first
        if at < 0:
            return None
        refused: Delta | None = None
        end = len(items)
        while at < end and refused is None:
            item = items[at]
            if type(item) is not Delta:
                break
            at += 1
            if not take(item):
                refused = item
        self._cursor = ring.first + at
        return refused

    def waiter(self) -> asyncio.Future[None] | None:
        """What to wait for; None if an item is there, or none will come. One that is not awaited goes to `forget`."""
        ring = self._ring  # as `Ring.waiter`, without the call
        if self._cursor < ring.first + len(ring._items) or ring.closed or self._closed:  # noqa: SLF001
            return None
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ring._waiters.append(waiter)  # noqa: SLF001
        return waiter

    def forget(self, waiter: asyncio.Future[None]) -> None:
        """Gives a waiter back."""
        self._ring.forget(waiter)

    async def wait(self) -> bool:
        """Waits until there is an item; False if none will come any more."""
        return not self._closed and await self._ring.wait(self._cursor)

    def _lagged(self, lost: int) -> Delta:
        kept = self._ring.take(self._cursor)
        last = (
            kept.seq - 1
            if type(kept) is Record
            else kept.after_seq
            if type(kept) is Delta
            else self._last_seq
        )
        facts = max(last - self._last_seq, 0)
        self._last_seq = max(last, self._last_seq)
        return Delta(self._run_id, 0, last, Lagged(facts, lost - facts, last))

    def __aiter__(self) -> Self:
        """Iterates from where it is."""
        return self

    async def __anext__(self) -> Item:
        """The next item; stops when the run is over or the subscription closed."""
        while not self._closed:
            item = self.take_nowait()
            if item is not None:
                return item
            if not await self.wait():
                break
        await self.aclose()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stops following. The run goes on."""
        if not self._closed:
            self._closed = True
            self._on_close(self)

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()
