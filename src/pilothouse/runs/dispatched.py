"""Runs that a dispatcher gives to this process: taken by their fence, driven until they end, rest, or must go on elsewhere.

What an engine promises is small: somebody calls `drive` again after a worker died. Everything that counts is decided by
the journal: whoever cannot claim a run does not drive it, whoever lost its fence cannot write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from ..cluster import Dispatcher, Driven, Posted, Relay, Ticket, queue_of
from ..commands import Ack, Cancel
from ..core.run import TAKEOVERS_TRIED
from ..errors import (
    DispatchUnavailable,
    JournalError,
    OwnedElsewhere,
    PilothouseError,
    RunNotFound,
)
from ..records import Accept, RunHead
from .fleet import Fleet
from .inbox import Inbox
from .live import LiveRun
from .ordering import Orders
from .posting import RECOVER, accept_of, command_of
from .recovering import Recovery

logger = logging.getLogger("pilothouse.runs")

LOOK_S: Final = 0.25
"""Seconds between two looks at a run that another process still owns, or while the journal is away."""

ROUND_S: Final = 30.0
"""A run that is still stranded after so long is asked for under a new ticket: the engine may have dropped the first."""

SWEPT: Final = 100
"""Stranded runs of one sweep."""


class Dispatched:
    """The worker's side of one fleet.

    Args:
        principal, thread: runs of one principal, of one thread, that are driven at once on all workers; None: any number.
            Two workers that look in the same moment may both go on.
        accept: the declared rule for runs that another configuration began (RC-58); its reasons go on their record.
    """

    def __init__(
        self,
        fleet: Fleet,
        recovery: Recovery,
        orders: Orders,
        relay: Relay,
        dispatcher: Dispatcher,
        accept: Accept,
        *,
        principal: int | None = None,
        thread: int | None = None,
    ) -> None:
        self._fleet = fleet
        self._recovery = recovery
        self._relay = relay
        self._dispatcher = dispatcher
        self._accept = accept
        self._principal = principal
        self._thread = thread
        self._inbox = Inbox(fleet, orders, relay)
        self._stranded: dict[tuple[str, int], float] = {}
        self._swept = 0

    def open(self) -> None:
        """Takes tickets from now on, once the dispatcher is started."""
        fleet = self._fleet
        self._inbox.open()
        self._dispatcher.on_dispatch(queue_of(fleet.binding, fleet.described.digest), self.drive)
        fleet.claims = True
        fleet.agenda.do(self._beat)
        fleet.agenda.after(fleet.timing.lease / 3, self._sweep)

    async def aclose(self) -> None:
        """Takes nothing from the inboxes any more."""
        await self._inbox.aclose()

    # Driving

    async def drive(self, ticket: Ticket) -> Driven:
        """Drives a run until it ends, is lost, rests, or is another's; an outage of the journal is waited out."""
        fleet = self._fleet
        patience = 1.25 * fleet.timing.lease  # a dead owner's lease is over by then
        held = False
        while not fleet.closed:
            try:
                done = await self._step(ticket.run_id, patience)
                held = held or ticket.run_id in fleet.live
            except RunNotFound:
                logger.warning("run %s is not in the journal", ticket.run_id)
                return "refused"
            except OwnedElsewhere:
                done = None
            except JournalError as error:
                logger.warning("run %s waits for the journal: %s", ticket.run_id, error)
                done = None
            if done is not None:
                return done
            if not fleet.live_here(ticket.run_id) and not fleet.closed:
                patience -= LOOK_S
                await fleet.clock.sleep(LOOK_S)
        if not held:  # the controller asks for those that it had; this one it never had
            with suppress(DispatchUnavailable):
                await self._dispatcher.enqueue(replace(ticket, round=ticket.round + 1))
        return "handed_over"

    async def _step(self, run_id: str, patience: float) -> Driven | None:
        """Looks where the run stands and does what is due; None to look again."""
        fleet = self._fleet
        await fleet.settled(run_id)
        if (live := fleet.live.get(run_id)) is not None and not live.over:
            return await self._until_over(live)
        head = await fleet.head(run_id)
        if head.summary.state == "terminal":
            return "ended"
        if (why := fleet.why_not(head.registration)) is not None:
            logger.warning("run %s cannot be driven here: %s", run_id, why)
            return "refused"
        if fleet.ownership(head) == "elsewhere":
            return "elsewhere" if patience <= 0 else None
        posted, _ = await self._relay.inbox([run_id])
        if not posted and head.summary.resting:
            return "waiting"
        if not posted and head.summary.loss_recorded:
            return "unknown"
        if not posted and head.summary.takeovers >= TAKEOVERS_TRIED:
            logger.error(
                "run %s was taken over %d times and got nowhere: it is left to a person",
                run_id,
                TAKEOVERS_TRIED,
            )
            return "refused"
        if not posted and await self._has_its_share(head):
            return "deferred"
        return await self._take(head, posted)

    async def _has_its_share(self, head: RunHead) -> bool:
        """Whether the run's principal or thread has as many driven runs as it may have."""
        if self._principal is None and self._thread is None:
            return False
        spec = head.registration.spec
        of_principal, of_thread = await self._relay.load(spec.tenant, spec.thread_id)
        return (self._principal is not None and of_principal >= self._principal) or (
            self._thread is not None and of_thread >= self._thread
        )

    async def _take(self, head: RunHead, posted: Sequence[Posted]) -> Driven | None:
        """Takes the run up, with the stop that waits for it if there is one: then no request to a model is made."""
        run_id = head.registration.spec.run_id
        asked = [entry for entry in posted if entry.command_id.startswith(RECOVER)]
        stops = [entry for entry in posted if entry not in asked and _is_stop(entry)]
        if stops:
            await self._inbox.take(stops[0])
        elif (failed := await self._recover(run_id, posted, asked)) is not None:
            return failed
        for entry in asked:
            await self._inbox.answer(entry, None)
        self._inbox.wake()
        live = self._fleet.live.get(run_id)
        return None if live is None else await self._until_over(live)

    async def _recover(self, run_id: str, posted: Sequence[Posted], asked: Sequence[Posted]) -> Driven | None:
        """None: it is driven. Else nothing of it was changed, and whoever asked for something hears why."""
        try:
            accept = accept_of(asked[0].body) if asked else self._accept
            await self._recovery.recover(run_id, accept=accept)
        except (OwnedElsewhere, JournalError):
            raise
        except PilothouseError as error:
            if self._fleet.closed:
                return "handed_over"
            logger.warning("run %s is not taken up: %s", run_id, error)
            for entry in posted:
                refused = Ack(entry.command_id, run_id, "rejected", code="recovery_failed")
                await self._inbox.answer(entry, error if entry in asked else refused)
            return "refused"
        except Exception:
            logger.exception("run %s could not be begun", run_id)
            return "unknown"
        return None

    async def _until_over(self, live: LiveRun) -> Driven | None:
        try:
            while not live.over:
                await live.wait_over()
                if not live.over:  # its journal is away
                    await self._fleet.clock.sleep(LOOK_S)
        except asyncio.CancelledError:  # the engine gives it to somebody else
            live.let_go()
            await self._fleet.settled(live.run_id)
            raise
        await self._fleet.settled(live.run_id)
        return None

    # What keeps it going

    async def _beat(self) -> None:
        fleet = self._fleet
        if fleet.closed:
            return
        fleet.agenda.after(fleet.timing.lease / 3, self._beat)
        ttl_ms = int(fleet.timing.lease * 1000)
        try:
            await self._dispatcher.heartbeat(fleet.owner, ttl_ms)
        except (JournalError, DispatchUnavailable) as error:
            logger.warning("a heartbeat was missed: %s", error)

    async def _sweep(self) -> None:
        """Asks for runs that nobody asked for: whoever registered them died before, or the engine was away."""
        fleet = self._fleet
        if fleet.closed:
            return
        fleet.agenda.after(fleet.timing.lease / 3, self._sweep)
        try:
            tickets, self._swept = await self._relay.stranded(
                fleet.binding, fleet.described.digest, after=self._swept, limit=SWEPT
            )
            now = fleet.clock.monotonic()
            seen = {(ticket.run_id, ticket.fence): now for ticket in tickets}
            for ticket in tickets:
                since = self._stranded.get((ticket.run_id, ticket.fence), now)
                seen[(ticket.run_id, ticket.fence)] = since
                await self._dispatcher.enqueue(replace(ticket, round=int((now - since) / ROUND_S)))
            self._stranded = seen
        except (JournalError, DispatchUnavailable) as error:
            logger.warning("stranded runs are looked for again later: %s", error)


def _is_stop(entry: Posted) -> bool:
    return isinstance(command_of(entry.body).body, Cancel)


__all__ = ["Dispatched"]
