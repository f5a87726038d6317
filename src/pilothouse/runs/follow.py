"""Following a run without gaps: replay from the journal, then live, healed after a lag (RC-63, RC-64)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple, Self

from ..errors import CursorAhead
from ..events import ContinuityLost, Delta, Lagged, OwnershipTold, RunAbandoned, RunEnded, StartRefused
from ..records import Ownership, Record, RecordPage, RunHead
from .ring import Item, Subscription, Taker, Waiter

if TYPE_CHECKING:
    from .published import PublishedRun

PAGE = 500

_ENDS = (RunEnded, RunAbandoned, StartRefused)


class Source(NamedTuple):
    """What a follower reads from: the journal, and the live run while it is here."""

    run_id: str
    head: Callable[[str], Awaitable[RunHead]]
    read: Callable[[str, int, int], Awaitable[RecordPage]]
    changed: Callable[[str, int], Awaitable[int]]
    live: Callable[[str], PublishedRun | None]
    subscribe: Callable[[PublishedRun], Subscription]
    ownership: Callable[[RunHead], Ownership]
    attend: Callable[[str], Awaitable[None]] | None = None


class Follower:
    """Facts of a run, strictly ascending, each once, from any cursor; deltas in between while they last.

    An async iterator and async context manager, no generator: leaving it anywhere closes it, and never stops the run.
    It ends after the terminal fact and, unless `through_unknown`, when the run is or becomes unknown.
    """

    __slots__ = (
        "_behind",
        "_checked",
        "_deltas",
        "_live",
        "_over",
        "_ready",
        "_recent",
        "_seen",
        "_source",
        "_subscription",
        "_through_unknown",
    )

    def __init__(
        self, source: Source, after: int, *, deltas: bool, through_unknown: bool, recent: bool = False
    ) -> None:
        if after < 0:
            raise ValueError(f"after must not be negative, got {after}")
        self._source = source
        self._seen = after
        self._deltas = deltas
        self._through_unknown = through_unknown
        self._recent = recent
        self._checked = False
        self._over = False
        self._ready: deque[Item] | None = None  # replayed from the journal, not given yet
        self._behind = True  # the journal may hold more than was read
        self._subscription: Subscription | None = None
        self._live: Subscription | None = None  # it, while nothing else is to be looked at before its deltas

    @property
    def last_seq(self) -> int:
        """The last fact that was given or is ready to be."""
        return self._seen

    def __aiter__(self) -> Self:
        """Iterates from where it is."""
        return self

    async def __anext__(self) -> Item:
        """The next fact or delta."""
        live = self._live
        if live is not None:  # nearly everything that comes is one delta more
            waiter = live.waiter()
            if waiter is not None:
                at = live.cursor
                try:
                    told = await waiter
                except asyncio.CancelledError:
                    live.forget(waiter)
                    raise
                if told is not None and self._live is live and live.cursor == at:
                    live.cursor = at + 1
                    return told
            if self._live is live and (told := live.delta_nowait()) is not None:
                return told
            self._live = None
        return await self._next()

    async def _next(self) -> Item:
        """The next item, whatever has to be done for it."""
        while True:
            if self._ready is not None:
                replayed = self._ready.popleft()
                if not self._ready:
                    self._ready = None  # an empty one keeps 0.6 kB
                return replayed
            if self._over:
                await self.aclose()
                raise StopAsyncIteration
            if self._behind:
                await self._replay()
                continue
            subscription = self._subscription
            if subscription is None:
                await self._advance()
                continue
            item = subscription.take_nowait()
            if item is None:
                waiter = subscription.waiter()
                if waiter is None:  # the live run is over: what came after it is in the journal
                    await self._unsubscribe()
                    self._behind = True
                    continue
                try:
                    await waiter
                except asyncio.CancelledError:
                    subscription.forget(waiter)
                    raise
            elif type(item) is Delta:
                if type(item.body) is Lagged:
                    self._behind = True
                elif self._deltas:
                    self._live = subscription
                if self._deltas:
                    return item
            elif item.seq == self._seen + 1:  # type: ignore[union-attr]
                self._take(item, last=self._last(item))  # type: ignore[arg-type]
                return item
            elif item.seq > self._seen:  # type: ignore[union-attr]
                self._behind = True

    def delta_nowait(self) -> Delta | None:
        """The next delta if one is there already and no fact stands before it. Never waits.

        For readers that take what is there in one go; whatever else there is comes by iteration.
        """
        if self._ready or self._behind or self._over or not self._deltas or self._subscription is None:
            return None
        return self._subscription.delta_nowait()

    def drain(self, taker: Taker) -> Delta | None:
        """Hands over the deltas that are there, as `delta_nowait` gives them, until one is refused: it is returned."""
        if self._ready or self._behind or self._over or not self._deltas or self._subscription is None:
            return None
        return self._subscription.drain(taker)

    def waiter(self) -> Waiter | None:
        """What is set when the next item comes; None if there is one, or something to read first: then iterate.

        For readers that wait very often: it saves the steps of an iteration. One that is not awaited to its end is given
        back with `forget`.
        """
        subscription = self._subscription
        if subscription is None or self._ready or self._behind or self._over:
            return None
        return subscription.waiter()

    def forget(self, waiter: Waiter) -> None:
        """Gives a waiter back."""
        if self._subscription is not None:
            self._subscription.forget(waiter)

    @property
    def idle(self) -> bool:
        """Whether everything that is known was given: the next item is still to happen."""
        if self._ready or self._behind or self._over:
            return False
        subscription = self._subscription
        if subscription is None:
            return True
        subscription.skip(self._seen)
        return subscription.idle

    def _take(self, record: Record, *, last: bool) -> None:
        """Notes that a fact is given, and whether the stream is over: a loss ends it only if nothing followed."""
        self._seen = record.seq
        kind = type(record.fact)
        if kind in _ENDS or (kind is ContinuityLost and last and not self._through_unknown):
            self._over = True

    def _last(self, record: Record) -> bool:
        """Whether a loss is all that is known of the run."""
        if (live := self._source.live(self._source.run_id)) is not None:
            return live.state.seq <= record.seq
        return self._subscription is None or self._subscription.idle

    async def _replay(self) -> None:
        """Subscribes, then reads what the journal has: the other order has a gap (RC-63)."""
        source = self._source
        if not self._checked:
            head = await source.head(source.run_id)
            if self._seen > head.head.seq:
                raise CursorAhead(source.run_id, self._seen, head.head.seq)
            self._checked = True
        if self._subscription is None and source.attend is not None:
            await source.attend(source.run_id)
        if self._subscription is None and (live := source.live(source.run_id)) is not None:
            self._subscription = source.subscribe(live)
            if self._recent:
                self._subscription.rewind()
        found = await source.read(source.run_id, self._seen, PAGE)
        page, self._behind = found.records, found.more
        if (live := source.live(source.run_id)) is not None:
            if self._subscription is None:  # it became live meanwhile: once more, subscribed
                self._behind = True
                return
            # A commit that its writer has not heard of yet is not given: who acts on a fact must meet a run that
            # knows it. The ring brings it.
            page = tuple([record for record in page if record.seq <= live.state.seq])
        ready: deque[Item] = deque()
        for record in page:
            self._take(record, last=record is page[-1] and not self._behind and self._last(record))
            ready.append(record)
            if self._over:
                break
        self._ready = ready or None

    async def _advance(self) -> None:
        """Nothing is live here: waits for the journal to grow, or finds that it will not."""
        source = self._source
        if source.attend is not None:
            await source.attend(source.run_id)
        head = await source.head(source.run_id)
        if head.head.seq > self._seen or source.live(source.run_id) is not None:
            self._behind = True
            return
        if not self._through_unknown and (ending := _resting_end(head, source.ownership(head))) is not None:
            if ending:
                self._ready = deque([Delta(source.run_id, 0, self._seen, OwnershipTold(ending))])
            self._over = True
            return
        await source.changed(source.run_id, self._seen)
        self._behind = True

    async def _unsubscribe(self) -> None:
        if self._subscription is not None:
            await self._subscription.aclose()
            self._subscription = None

    async def aclose(self) -> None:
        """Stops following. The run goes on."""
        self._over = True
        self._live = None
        self._ready = None
        await self._unsubscribe()

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()


def _resting_end(head: RunHead, ownership: Ownership) -> str | None:
    """Whether nothing more will come of a run that nobody drives: None, or what to tell ("" for nothing)."""
    if head.summary.state in ("terminal", "unknown"):
        return ""
    return ownership if ownership == "orphaned" else None
