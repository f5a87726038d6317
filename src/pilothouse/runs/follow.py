"""Following a run without gaps: replay from the journal, then live, healed after a lag (RC-63, RC-64)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Self

from ..errors import CursorAhead
from ..events import ContinuityLost, Delta, Lagged, OwnershipTold, RunAbandoned, RunEnded, StartRefused
from ..records import Record, RunHead
from .ring import Item, Subscription

if TYPE_CHECKING:
    from .live import LiveRun

PAGE = 500

_ENDS = (RunEnded, RunAbandoned, StartRefused)


class Source:
    """What a follower reads from: the journal, and the live run while it is here."""

    def __init__(
        self,
        run_id: str,
        *,
        head: Callable[[str], Awaitable[RunHead]],
        read: Callable[[str, int, int], Awaitable[list[Record]]],
        changed: Callable[[str, int], Awaitable[int]],
        live: Callable[[str], LiveRun | None],
        subscribe: Callable[[LiveRun], Subscription],
    ) -> None:
        self.run_id = run_id
        self.head = head
        self.read = read
        self.changed = changed
        self.live = live
        self.subscribe = subscribe


class Follower:
    """Facts of a run, strictly ascending, each once, from any cursor; deltas in between while they last.

    An async iterator and async context manager, no generator: leaving it anywhere closes it, and never stops the run.
    It ends after the terminal fact and, unless `through_unknown`, when the run is or becomes unknown.
    """

    def __init__(self, source: Source, after: int, *, deltas: bool, through_unknown: bool) -> None:
        if after < 0:
            raise ValueError(f"after must not be negative, got {after}")
        self._source = source
        self._seen = after
        self._deltas = deltas
        self._through_unknown = through_unknown
        self._subscription: Subscription | None = None
        self._items: AsyncIterator[Item] | None = None

    @property
    def last_seq(self) -> int:
        """The last fact that was given."""
        return self._seen

    def __aiter__(self) -> Self:
        """Iterates from where it is."""
        return self

    async def __anext__(self) -> Item:
        """The next fact or delta."""
        if self._items is None:
            self._items = self._follow()
        return await anext(self._items)

    async def aclose(self) -> None:
        """Stops following. The run goes on."""
        if self._subscription is not None:
            await self._subscription.aclose()
        if self._items is not None:
            await self._items.aclose()  # type: ignore[attr-defined]

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes."""
        await self.aclose()

    async def _follow(self) -> AsyncIterator[Item]:
        source = self._source
        head = await source.head(source.run_id)
        if self._seen > head.head.seq:
            raise CursorAhead(source.run_id, self._seen, head.head.seq)
        while True:
            live = source.live(source.run_id)
            if live is not None:  # subscribe first, then replay: the other order has a gap (RC-63)
                self._subscription = source.subscribe(live)
            async for record in self._replay():
                yield record
                if self._is_end(record):
                    return
            if live is not None and self._subscription is not None:
                async for item in self._live(self._subscription):
                    yield item
                    if type(item) is Record and self._is_end(item):
                        return
                continue  # the live run is over: whatever came after it is in the journal
            head = await source.head(source.run_id)
            if head.head.seq > self._seen or source.live(source.run_id) is not None:
                continue
            if not self._through_unknown and (ending := self._resting_end(head)) is not None:
                if ending:
                    yield Delta(source.run_id, 0, self._seen, OwnershipTold(ending))
                return
            await source.changed(source.run_id, self._seen)

    def _resting_end(self, head: RunHead) -> str | None:
        """Whether nothing more will come of a run that nobody drives: None, or what to tell ("" for nothing)."""
        if head.summary.state in ("terminal", "unknown"):
            return ""
        if head.owner is None or head.owner_alive is False:
            return None if head.summary.resting else "orphaned"
        return None

    async def _replay(self) -> AsyncIterator[Record]:
        while True:
            page = await self._source.read(self._source.run_id, self._seen, PAGE)
            for record in page:
                self._seen = record.seq
                yield record
            if len(page) < PAGE:
                return

    async def _live(self, subscription: Subscription) -> AsyncIterator[Item]:
        async for item in subscription:
            if type(item) is Record:
                if item.seq > self._seen + 1:
                    async for record in self._replay():
                        yield record
                if item.seq == self._seen + 1:
                    self._seen = item.seq
                    yield item
            elif type(item.body) is Lagged:
                if self._deltas:
                    yield item
                async for record in self._replay():
                    yield record
            elif self._deltas:
                yield item

    def _is_end(self, record: Record) -> bool:
        if isinstance(record.fact, _ENDS):
            return True
        return isinstance(record.fact, ContinuityLost) and not self._through_unknown and self._last(record)

    def _last(self, record: Record) -> bool:
        """A loss ends a stream only if nothing is known to have followed it."""
        live = self._source.live(self._source.run_id)
        return live is None or live.state.seq <= record.seq
