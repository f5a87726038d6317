"""The inboxes of the runs that are driven here: what other processes ask of them, and which deltas they want."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

import msgspec

from ..cluster import Posted, Relay
from ..errors import JournalError, OwnedElsewhere, PilothouseError
from .fleet import Fleet
from .ordering import Orders
from .outlet import Outlet
from .posting import RECOVER, answer_of, command_of

logger = logging.getLogger("pilothouse.runs")

LOOK_S: Final = 1.0
"""Seconds between two looks while anything is driven here, in case a wake-up was lost."""


class Inbox:
    """Takes what is posted for the runs of one fleet, one entry once."""

    def __init__(self, fleet: Fleet, orders: Orders, relay: Relay) -> None:
        self._fleet = fleet
        self._orders = orders
        self._relay = relay
        self._outlet = Outlet(relay)
        self._woken = asyncio.Event()
        self._handling: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begins to look; idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve(), name="pilothouse-inbox")

    def wake(self) -> None:
        """There may be something: a run was taken, or somebody said so."""
        self._woken.set()

    async def _serve(self) -> None:
        forget = self._relay.on_signal("inbox", self._woken.set)
        try:
            while True:
                self._woken.clear()
                try:
                    await self._look()
                except JournalError as error:
                    logger.debug("inboxes are looked at again later: %s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if self._fleet.live else None):
                        await self._woken.wait()
        finally:
            forget()

    async def _look(self) -> None:
        fleet = self._fleet
        run_ids = [run_id for run_id, live in fleet.live.items() if not live.over]
        if not run_ids:
            self._outlet.keep(frozenset())
            return
        posted, followed = await self._relay.inbox(run_ids)
        for run_id in followed:
            if (live := fleet.live.get(run_id)) is not None and not live.over:
                self._outlet.open(live)
        self._outlet.keep(followed)
        for entry in posted:
            self.take(entry)

    def take(self, posted: Posted) -> asyncio.Task[None]:
        """Handles an entry, unless that is under way."""
        key = (posted.run_id, posted.command_id)
        task = self._handling.get(key)
        if task is None:
            task = self._handling[key] = asyncio.get_running_loop().create_task(self._handle(posted))
            task.add_done_callback(lambda _: self._handling.pop(key, None))
        return task

    async def _handle(self, posted: Posted) -> None:
        if posted.command_id.startswith(RECOVER):  # it is driven: there is nothing to recover
            await self.answer(posted, None)
            return
        try:
            result = await self._orders.command(command_of(posted.body), None, driving=True)
        except OwnedElsewhere:  # whoever has it now finds this in its inbox
            return
        except PilothouseError as error:
            if isinstance(error, JournalError) and error.retryable:
                return  # looked at again, once the journal answers
            await self.answer(posted, error)
        except msgspec.DecodeError as error:
            logger.warning("run %s: an entry of its inbox cannot be read: %s", posted.run_id, error)
        else:
            await self.answer(posted, msgspec.structs.replace(result, duplicate=False))

    async def answer(self, posted: Posted, result: object) -> None:
        """Says what came of an entry; where that cannot be said now it is asked for again."""
        with suppress(JournalError):
            await self._relay.answer(posted.run_id, posted.command_id, answer_of(result))  # type: ignore[arg-type]

    async def aclose(self) -> None:
        """Takes nothing more; what is under way is answered."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        if self._handling:
            await asyncio.wait(list(self._handling.values()), timeout=1.0)
        await self._outlet.aclose()


__all__ = ["Inbox"]
