"""What a live run publishes, kept once, and the cursors that read it (RC-62, RC-63).

One ring a run, bounded in items and bytes; a follower is a cursor, not a queue. The run never waits for a follower: one
that fell out of the ring is told that it lagged and, in a `Follower`, heals from the journal.

The newest items lie there as they were told. Of text that flows, what is older is kept as its pieces alone, an eighth of
the bytes: who reads there, because it came late or is slow, is given equal deltas again.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, Protocol, Self

from ..events import Delta, DeltaBody, Lagged, TextTold
from ..records import Record

Item = Record | Delta
_body = attrgetter("body")

RECORD_BYTES = 200
"""What a record takes besides its body, about."""

PACK: Final = 48
"""So many items become old at once …"""

KEEP: Final = 8
"""… and so many are left as they are: a reader that keeps up finds what it reads there."""

WORTH: Final = 4
"""So many pieces of one text in a row are fewer bytes packed than not."""

Observer = Callable[[Item], None]

Waiter = asyncio.Future[Delta | None]
"""Set when something is published: to the next item, where that is a piece of text."""


class Packed:
    """Pieces of one text that were told one after the other, with no fact between them."""

    __slots__ = ("first", "texts")

    def __init__(self, deltas: Sequence[Delta]) -> None:
        self.first = deltas[0]
        self.texts = tuple([delta.body.text for delta in deltas])  # type: ignore[union-attr]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: int) -> Delta:
        """The delta as it was told."""
        first, body = self.first, self.first.body
        assert type(body) is TextTold
        offset = body.offset + sum(map(len, self.texts[:at]))
        told = TextTold(body.message_id, body.index, self.texts[at], offset)
        return Delta(first.run_id, first.n + at, first.after_seq, told)


class Taker(Protocol):
    """Takes deltas that stand next to each other; False for what it does not take, of which nothing was taken."""

    def take(self, delta: Delta, /) -> bool:
        """One."""
        ...

    def take_text(self, first: Delta, text: str, count: int, /) -> bool:
        """So many pieces of one text, beginning with `first`, of which `text` is what all of them say."""
        ...


class Ring:
    """The last items of one run.

    Attributes:
        first: the number of the oldest that is kept.
        start: the number of the oldest that is kept as it is, in `items`.
        told: how many deltas were numbered here.
        seq: of the last fact that was published.
    """

    __slots__ = (
        "_bytes",
        "_flowed",
        "_flows_from",
        "_limit",
        "_limit_bytes",
        "_look_at",
        "_old",
        "_old_from",
        "_run_id",
        "_waiters",
        "closed",
        "first",
        "items",
        "seq",
        "start",
        "told",
    )

    def __init__(self, limit: int, limit_bytes: int, run_id: str = "", seq: int = 0) -> None:
        self._run_id = run_id
        self.seq = seq
        self.told = 0
        self.items: list[Item] = []
        self._old: list[Packed | list[Item]] = []  # what was there before `items`, …
        self._old_from: list[int] = []  # … and the number with which each begins
        self._limit = limit
        self._limit_bytes = limit_bytes
        self._look_at = min(PACK + KEEP, 2 * limit)
        self._bytes = 0
        self._flows_from = 0  # from this number on there is nothing but pieces of one text …
        self._flowed: list[tuple[int, int]] = []  # … and between these, in `items`
        self._waiters: list[Waiter] = []
        self.first = 0
        self.start = 0
        self.closed = False

    @property
    def end(self) -> int:
        """The number that the next item will have."""
        return self.start + len(self.items)

    def append(self, item: Item, size: int) -> None:
        """Publishes an item of about `size` bytes and wakes who waits."""
        items = self.items
        end = self.start + len(items)
        if end - self._flows_from >= WORTH:
            self._flowed.append((self._flows_from, end))
        items.append(item)
        if type(item) is Record:
            self.seq = item.seq
        self._flows_from = end + 1
        self._bytes += size
        if len(items) >= self._look_at or self._bytes > self._limit_bytes:
            self._look()
        if self._waiters:
            self.wake()

    def tell(self, body: DeltaBody, size: int) -> Delta:
        """Publishes a delta and returns it."""
        self.told += 1
        delta = Delta(self._run_id, self.told, self.seq, body)
        self.append(delta, size)
        return delta

    def flow(self, body: TextTold, size: int) -> Delta:
        """As `tell`, for a piece of text that goes on with the item before it, if that was one. In one frame."""
        self.told = told = self.told + 1
        delta = Delta(self._run_id, told, self.seq, body)
        items = self.items
        items.append(delta)
        self._bytes += size
        if len(items) >= self._look_at or self._bytes > self._limit_bytes:
            self._look()
        if self._waiters:  # all of them wait for this one; as `wake`
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(delta)
            self._waiters.clear()
        return delta

    def extend(self, records: Sequence[Record]) -> None:
        """Publishes the records of one append: the same as one by one, for a third of it."""
        items, count = self.items, len(records)
        end = self.start + len(items)
        if end - self._flows_from >= WORTH:
            self._flowed.append((self._flows_from, end))
        items += records
        self.seq = records[-1].seq
        self._flows_from = end + count
        self._bytes += sum(map(len, map(_body, records))) + RECORD_BYTES * count
        if len(items) >= self._look_at or self._bytes > self._limit_bytes:
            self._look()
        if self._waiters:
            self.wake()

    def _look(self) -> None:
        """Packs text, and drops the oldest items when they are too many: what an item costs does not grow with them."""
        count = len(self.items)
        if count >= PACK + KEEP:
            self._pack(count - KEEP)
            count = KEEP
        kept = self.start + count - self.first
        if kept >= 2 * self._limit or self._bytes > self._limit_bytes:
            self._trim()
            self._look()
            return
        self._look_at = min(PACK + KEEP, count + 2 * self._limit - kept)

    def _pack(self, count: int) -> None:
        """Makes the first `count` items old: what flows as its text, what stands between as it is."""
        items, start = self.items, self.start
        at, end = start, start + count
        for stretch in (*self._flowed, (self._flows_from, end)):
            begin, over = max(stretch[0], at), min(stretch[1], end)
            if over - begin < WORTH:
                continue
            if at < begin:
                self._old.append(items[at - start : begin - start])
                self._old_from.append(at)
            self._old.append(Packed(items[begin - start : over - start]))  # type: ignore[arg-type]
            self._old_from.append(begin)
            at = over
        if at < end:
            self._old.append(items[at - start : count])
            self._old_from.append(at)
        if self._flowed:
            self._flowed = [stretch for stretch in self._flowed if stretch[1] > end]
        del items[:count]
        self.start = end

    def _trim(self) -> None:
        """Drops about half, so that the cost of an item does not depend on how many are kept."""
        count = self.end - self.first
        drop = max(count - self._limit, 1)
        if self._bytes > self._limit_bytes:
            drop = max(drop, count // 2)
        drop = min(drop, count)
        self._bytes = self._bytes * (count - drop) // count
        self.first += drop
        if self.first >= self.start:
            del self.items[: self.first - self.start]
            self.start = self.first
            self._flowed = [flowed for flowed in self._flowed if flowed[1] > self.first]
            self._old, self._old_from = [], []
        else:
            gone = bisect_right(self._old_from, self.first) - 1
            del self._old[:gone], self._old_from[:gone]

    def take(self, number: int) -> Item | None:
        """The item with that number; None if it has not come. It must not be dropped."""
        at = number - self.start
        if at >= 0:
            return self.items[at] if at < len(self.items) else None
        part, at = self.old(number)
        return part[at]

    def old(self, number: int) -> tuple[Packed | list[Item], int]:
        """Where an old item is, and at which place there."""
        found = bisect_right(self._old_from, number) - 1
        return self._old[found], number - self._old_from[found]

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
        self.first = self.start = self.end
        self.items, self._flowed = [], []
        self._old, self._old_from = [], []
        self._bytes = 0

    def waiter(self, number: int) -> Waiter | None:
        """What is set when item `number` is published; None if it is there, or never will be.

        Who does not wait for it to the end gives it back with `forget`.
        """
        if number < self.start + len(self.items) or self.closed:
            return None
        waiter: Waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def forget(self, waiter: Waiter) -> None:
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
        return number < self.end


class Subscription:
    """What is published from now on. An async iterator and async context manager.

    A reader that falls out of the ring gets one `Lagged` delta, then the oldest kept item.

    Attributes:
        cursor: the number of the next item; to be moved on by who was given that item by a waiter.
    """

    __slots__ = ("_closed", "_last_seq", "_on_close", "_ring", "_run_id", "cursor")

    def __init__(
        self, run_id: str, ring: Ring, last_seq: int, on_close: Callable[[Subscription], None]
    ) -> None:
        self._run_id = run_id
        self._ring = ring
        self.cursor = ring.end
        self._last_seq = last_seq
        self._on_close = on_close
        self._closed = False

    @property
    def last_seq(self) -> int:
        """The last fact that this reader has seen or knows to be skipped."""
        return self._last_seq

    def take_nowait(self) -> Item | None:
        """The next item if it is there. Never waits."""
        ring, cursor = self._ring, self.cursor
        if cursor < ring.first:
            lost = ring.first - cursor
            self.cursor = ring.first
            return self._lagged(lost)
        item = ring.take(cursor)
        if item is None:
            return None
        self.cursor = cursor + 1
        if type(item) is Record:
            self._last_seq = item.seq
        return item

    def rewind(self) -> None:
        """Goes back to the oldest item that is kept."""
        self.cursor = self._ring.first

    def skip(self, seq: int) -> None:
        """Passes over facts up to `seq` that stand next: who went back has them from the journal."""
        ring = self._ring
        while self.cursor >= ring.first and type(item := ring.take(self.cursor)) is Record:
            if item.seq > seq:
                return
            self.cursor += 1
            self._last_seq = max(self._last_seq, item.seq)

    @property
    def idle(self) -> bool:
        """Whether the next item is still to come."""
        return self.cursor >= self._ring.end

    def delta_nowait(self) -> Delta | None:
        """The next item if it is there and a delta. Never waits."""
        ring, cursor = self._ring, self.cursor
        # As `Ring.take`, without the call: this is asked for each delta and each reader.
        at = cursor - ring.start
        items = ring.items
        if at < 0:
            item = None if cursor < ring.first else ring.take(cursor)
        else:
            item = items[at] if at < len(items) else None
        if type(item) is not Delta:
            return None
        self.cursor = cursor + 1
        return item

    def drain(self, taker: Taker) -> Delta | None:
        """Hands over the deltas that stand next, until one is refused: that is returned, and passed over."""
        ring = self._ring
        while ring.first <= self.cursor < ring.start:
            part, at = ring.old(self.cursor)
            if type(part) is Packed:
                texts = part.texts[at:]
                if taker.take_text(part[at], "".join(texts), len(texts)):
                    self.cursor += len(texts)
                    continue
            item = part[at]
            if type(item) is not Delta:
                return None
            self.cursor += 1
            if not taker.take(item):
                return item
        if self.cursor < ring.first:
            return None
        take, items, at = taker.take, ring.items, self.cursor - ring.start
        refused: Delta | None = None
        end = len(items)
        while at < end and refused is None:
            item = items[at]
            if type(item) is not Delta:
                break
            at += 1
            if not take(item):
                refused = item
        self.cursor = ring.start + at
        return refused

    def waiter(self) -> Waiter | None:
        """What to wait for; None if an item is there, or none will come. One that is not awaited goes to `forget`."""
        ring = self._ring  # as `Ring.waiter`, without the call
        if self.cursor < ring.start + len(ring.items) or ring.closed or self._closed:
            return None
        waiter: Waiter = asyncio.get_running_loop().create_future()
        ring._waiters.append(waiter)  # noqa: SLF001
        return waiter

    def forget(self, waiter: Waiter) -> None:
        """Gives a waiter back."""
        self._ring.forget(waiter)

    async def wait(self) -> bool:
        """Waits until there is an item; False if none will come any more."""
        return not self._closed and await self._ring.wait(self.cursor)

    def _lagged(self, lost: int) -> Delta:
        kept = self._ring.take(self.cursor)
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
