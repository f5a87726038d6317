"""A ring that packs text gives every reader what a plain list would (RC-62, RC-63)."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from pilothouse.events import CallHeartbeat, Delta, Lagged, TextTold, TurnStarted
from pilothouse.records import Record
from pilothouse.runs.ring import KEEP, PACK, Item, Packed, Ring, Subscription


def record(seq: int) -> Record:
    return Record("r1", seq, 0, "runtime", 1, f"e{seq}", TurnStarted(seq), "", "", b"{}", None, None)


class Run:
    """Tells a ring what a live run tells it, and remembers all of it."""

    def __init__(self, rng: random.Random, ring: Ring) -> None:
        self.rng = rng
        self.ring = ring
        self.told: list[Item] = []
        self.seq = self.n = self.offset = 0
        self.message = 0

    def step(self) -> None:
        match self.rng.randrange(16):
            case 0:
                self.facts(self.rng.randrange(1, 4))
            case 1:
                self.other()
            case 2:
                self.message += 1
                self.offset = 0
                self.text(flows=False)
            case _:
                for _ in range(self.rng.randrange(1, 2 * PACK)):
                    self.text(flows=self.goes_on())

    def goes_on(self) -> bool:
        """Whether what was told last, facts aside, is of this text."""
        last = next((item for item in reversed(self.told) if isinstance(item, Delta)), None)
        return last is not None and getattr(last.body, "message_id", "") == f"m{self.message}"

    def facts(self, count: int) -> None:
        fresh = [record(self.seq + each + 1) for each in range(count)]
        self.seq += count
        self.told += fresh
        if self.rng.randrange(2):
            self.ring.extend(fresh)
        else:
            for each in fresh:
                self.ring.append(each, 10)

    def delta(self, delta: Delta) -> None:
        self.n += 1
        assert (delta.run_id, delta.n, delta.after_seq) == ("r1", self.n, self.seq)
        self.told.append(delta)

    def other(self) -> None:
        self.delta(self.ring.tell(CallHeartbeat("c1", 1), 200))

    def text(self, *, flows: bool) -> None:
        text = "x" * self.rng.randrange(1, 9)
        body = TextTold(f"m{self.message}", 0, text, self.offset)
        self.offset += len(text)
        self.delta((self.ring.flow if flows else self.ring.tell)(body, 200 + len(text)))


class Reader:
    """Reads in every way there is, and remembers what it was given, with one entry a piece of text."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.at = len(run.told)
        self.subscription = Subscription("r1", run.ring, run.seq, lambda _: None)
        self.takes = True

    def expect(self, item: Item) -> None:
        if isinstance(item, Delta) and isinstance(item.body, Lagged):
            lost = self.run.ring.first - self.at
            assert lost == item.body.facts + item.body.deltas > 0
            self.at = self.run.ring.first
            return
        assert item == self.run.told[self.at]
        self.at += 1

    def take(self, delta: Delta) -> bool:
        if self.takes or delta.n % 3:
            self.expect(delta)
            return True
        return False

    def take_text(self, first: Delta, text: str, count: int) -> bool:
        if not self.takes:
            return False
        pieces = self.run.told[self.at : self.at + count]
        assert first == pieces[0]
        assert text == "".join([piece.body.text for piece in pieces])  # type: ignore[union-attr]
        self.at += count
        return True

    def read(self, rng: random.Random) -> None:
        for _ in range(rng.choice([0, 1, 5, 60, 400])):
            match rng.randrange(8):
                case 0:
                    self.takes = bool(rng.randrange(2))
                    if (refused := self.subscription.drain(self)) is not None:
                        self.expect(refused)
                case 1 | 2 | 3:
                    if (delta := self.subscription.delta_nowait()) is not None:
                        self.expect(delta)
                case _:
                    if (item := self.subscription.take_nowait()) is not None:
                        self.expect(item)
            assert self.subscription.idle == (self.at == len(self.run.told))


def played(seed: int, limit: int, limit_bytes: int) -> Iterator[Run]:
    rng = random.Random(seed)
    run = Run(rng, Ring(limit, limit_bytes, "r1"))
    readers: list[Reader] = []
    for _ in range(120):
        if len(readers) < 6 and not rng.randrange(4):
            readers.append(Reader(run))
            if rng.randrange(2):
                readers[-1].subscription.rewind()
                readers[-1].at = run.ring.first
        run.step()
        yield run
        for reader in readers:
            reader.read(rng)
    for reader in readers:
        while (item := reader.subscription.take_nowait()) is not None:
            reader.expect(item)
        assert reader.at == len(run.told)


@pytest.mark.parametrize("limit", [1, 7, 40, 256])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_is_what_was_told(seed: int, limit: int) -> None:
    """RC-62: every item that is kept is equal to what was told, for readers of every pace; and no more are kept."""
    for run in played(seed, limit, 1 << 30):
        ring = run.ring
        assert ring.end == len(run.told)
        assert [ring.take(number) for number in range(ring.first, ring.end)] == run.told[ring.first :]
        assert ring.take(ring.end) is None
        assert ring.end - ring.first <= 2 * limit


@pytest.mark.parametrize("seed", range(8))
def test_a_ring_that_is_bounded_in_bytes_gives_what_it_keeps(seed: int) -> None:
    """RC-62: the same where bytes are what it has too little of."""
    for run in played(seed, 256, 20_000):
        ring = run.ring
        assert [ring.take(number) for number in range(ring.first, ring.end)] == run.told[ring.first :]
        assert 200 * (ring.end - ring.first) <= 25_000


def test_text_that_was_read_is_packed() -> None:
    """RC-72, RC-75: of text that flows only the newest pieces are kept as deltas, the others as their text."""
    run = Run(random.Random(1), Ring(256, 1 << 30, "r1"))
    run.text(flows=False)
    for _ in range(500):
        run.text(flows=True)
        assert len(run.ring.items) <= PACK + KEEP + 1
    kept = [part for part in run.ring._old if isinstance(part, Packed)]
    assert sum(map(len, kept)) + len(run.ring.items) + 1 >= run.ring.end - run.ring.first >= 256
    assert len(kept) <= 500 / PACK


def test_text_between_facts_is_packed() -> None:
    """RC-72, RC-75: so it is where facts stand between its pieces, as those that save what a slow model has said so far."""
    run = Run(random.Random(1), Ring(256, 1 << 30, "r1"))
    run.text(flows=False)
    for _ in range(60):
        for _ in range(20):
            run.text(flows=True)
            assert len(run.ring.items) < PACK + KEEP
        run.facts(1)
    ring = run.ring
    loose = [item for part in ring._old if not isinstance(part, Packed) for item in part]
    pieces = sum(map(len, ring._old)) + len(ring.items)
    assert [ring.take(number) for number in range(ring.first, ring.end)] == run.told[ring.first :]
    assert sum(isinstance(item, Delta) for item in loose) <= pieces / 20
