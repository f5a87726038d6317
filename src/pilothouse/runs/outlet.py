"""Deltas of the runs driven here, for the processes that follow them: one batch under way, the next gathers behind it."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from ..cluster import Relay, Told
from ..errors import JournalError
from ..events import Delta, OwnershipTold
from ..records import Record
from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")

_encoder: Final = msgspec.json.Encoder()


class Outlet:
    """The taps that are open, and what waits to be sent.

    A tap costs its run an append to a list for each delta; encoding and sending are nobody's but the outlet's.
    """

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._taps: dict[str, _Tap] = {}
        self._waiting: dict[_Tap, list[Delta]] = {}
        self._sending: asyncio.Task[None] | None = None

    def open(self, live: LiveRun) -> None:
        """Sends a run's deltas from now on, those first that its ring still has."""
        known = self._taps.get(live.run_id)
        if known is not None and known.live is live:
            return
        tap = self._taps[live.run_id] = _Tap(self, live)
        live.observers.append(tap)
        ring = live.ring
        for number in range(ring.first, ring.end):
            if (item := ring.take(number)) is not None:
                tap(item)

    def keep(self, followed: frozenset[str]) -> None:
        """Closes the taps of runs that nobody follows any more, or that are over here."""
        for run_id, tap in list(self._taps.items()):
            if run_id not in followed or tap.live.over:
                del self._taps[run_id]
                if tap in tap.live.observers:
                    tap.live.observers.remove(tap)

    def add(self, tap: _Tap, delta: Delta) -> None:
        """Takes a delta to be sent."""
        waiting = self._waiting.get(tap)
        if waiting is None:
            self._waiting[tap] = [delta]
        else:
            waiting.append(delta)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send(), name="pilothouse-outlet")

    async def _send(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, {}
            told = [
                Told(tap.live.run_id, tap.live.writer.fence, deltas[-1].n, _encoder.encode(deltas))
                for tap, deltas in batch.items()
            ]
            try:
                await self._relay.tell(told)
            except JournalError as error:  # whoever follows has the text from the fragments
                logger.debug("deltas were not sent: %s", error)

    async def aclose(self) -> None:
        """Sends what waits."""
        self.keep(frozenset())
        if self._sending is not None:
            await asyncio.wait((self._sending,))


class _Tap:
    """Observes one run."""

    __slots__ = ("_outlet", "live")

    def __init__(self, outlet: Outlet, live: LiveRun) -> None:
        self._outlet = outlet
        self.live = live

    def __call__(self, item: Record | Delta) -> None:
        if type(item) is Delta and type(item.body) is not OwnershipTold:
            self._outlet.add(self, item)


__all__ = ["Outlet"]
