"""The runs of other processes that somebody looks at here: one mirror each, one reading of the relay for all."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from ..cluster import Relay
from ..core.run import Phase, RunState
from ..errors import JournalError
from ..events import Delta
from ..records import Registration
from .mirror import Mirror

if TYPE_CHECKING:
    from .fleet import Fleet

logger = logging.getLogger("pilothouse.runs")

FOLLOW_S: Final = 30.0
"""How long it holds that this process wants the deltas of a run; renewed every third."""

LOOK_S: Final = 1.0
"""Seconds between two looks for deltas that nobody announced."""

_decoder: Final = msgspec.json.Decoder(list[Delta])


class Hub:
    """Mirrors of one fleet."""

    def __init__(self, fleet: Fleet, relay: Relay) -> None:
        self._fleet = fleet
        self._relay = relay
        self._mirrors: dict[str, Mirror] = {}
        self._idle: set[str] = set()  # nobody looked at these when it was last seen to
        self._woken = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._keeping = False

    def of(self, run_id: str) -> Mirror | None:
        """The mirror of a run, if there is one that goes on."""
        return self._mirrors.get(run_id)

    async def attend(self, run_id: str) -> None:
        """Makes a mirror of a run that goes on elsewhere, unless there is one."""
        fleet = self._fleet
        if run_id in self._mirrors or fleet.live_here(run_id) or fleet.closed:
            return
        head = await fleet.head(run_id)
        if head.summary.state in ("terminal", "unknown") or fleet.ownership(head) not in (
            "elsewhere",
            "queued",
        ):
            return
        state = await fleet.refold(head.registration)
        if (
            run_id in self._mirrors
            or fleet.live_here(run_id)
            or state.phase in (Phase.TERMINAL, Phase.UNKNOWN)
        ):
            return
        self.open(head.registration, state)

    def open(self, registration: Registration, state: RunState) -> Mirror:
        """Shows a run from that state on."""
        fleet = self._fleet
        mirror = Mirror(
            registration,
            state,
            journal=fleet.journal,
            clock=fleet.clock,
            buffer=fleet.follower_buffer,
            buffer_bytes=fleet.limits.follower_bytes,
            on_over=self._over,
        )
        self._mirrors[mirror.run_id] = mirror
        mirror.begin()
        fleet.agenda.spawn(self._want([mirror.run_id]))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="pilothouse-hub")
        self._keep()
        return mirror

    def _over(self, mirror: Mirror) -> None:
        if self._mirrors.get(mirror.run_id) is mirror:
            del self._mirrors[mirror.run_id]
        self._idle.discard(mirror.run_id)

    async def _want(self, run_ids: list[str]) -> None:
        with suppress(JournalError):
            await self._relay.follow(self._fleet.owner.id, run_ids, ttl_ms=int(FOLLOW_S * 1000))

    def _keep(self) -> None:
        if not self._keeping:
            self._keeping = True
            self._fleet.agenda.after(FOLLOW_S / 3, self._kept)

    async def _kept(self) -> None:
        """Wants on what is looked at; what nobody looked at for a while is let go."""
        self._keeping = False
        for run_id in list(self._idle):
            if (mirror := self._mirrors.get(run_id)) is not None and not mirror.wanted:
                mirror.close()
        self._idle = {mirror.run_id for mirror in self._mirrors.values() if not mirror.wanted}
        if self._mirrors:
            self._keep()
            await self._want(list(self._mirrors))

    async def _read(self) -> None:
        forget = self._relay.on_signal("told", self._woken.set)
        try:
            while self._mirrors:
                self._woken.clear()
                try:
                    for told in await self._relay.told({m.run_id: m.place for m in self._mirrors.values()}):
                        if (mirror := self._mirrors.get(told.run_id)) is not None:
                            mirror.take(_decoder.decode(told.body), (told.fence, told.n))
                except JournalError as error:
                    logger.debug("deltas are looked for again later: %s", error)
                except msgspec.DecodeError:  # another version's: the facts say it too
                    logger.warning("deltas could not be read", exc_info=True)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._woken.wait()
        finally:
            forget()

    async def aclose(self) -> None:
        """Shows nothing more."""
        for mirror in list(self._mirrors.values()):
            mirror.close()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait((self._reading,))


__all__ = ["Hub"]
