"""Lists of runs, read from the journal itself: there is no second index of who owns what (RC-67)."""

from __future__ import annotations

from msgspec.structs import replace

from ..core.run import TAKEOVERS_TRIED
from ..errors import InvalidSpec
from ..records import Page, RunEntry, RunQuery, RunStateName
from .fleet import Fleet

__all__ = ["catalog", "lost_runs"]


async def catalog(fleet: Fleet, query: RunQuery, cursor: str | None, limit: int) -> Page[RunEntry]:
    """One page, newest first, with what this controller can say of each."""
    if not 1 <= limit <= 500:
        raise InvalidSpec(f"limit must be 1 to 500, got {limit}")
    page = await fleet.journal.list(query, cursor=cursor, limit=limit)
    return Page(tuple([_seen(fleet, entry) for entry in page.items]), page.cursor)


def _seen(fleet: Fleet, entry: RunEntry) -> RunEntry:
    mine = entry.binding == fleet.binding and entry.descriptor_digest == fleet.described.digest
    live = fleet.live.get(entry.run_id)
    ownership = "here" if live is not None and not live.over else entry.ownership
    if ownership == "parked" and mine and fleet.described.descriptor.recovery != "journal":
        ownership = "orphaned"
    if (
        ownership == "orphaned"
        and mine
        and fleet.dispatcher is not None
        and entry.state != "unknown"
        and entry.takeovers < TAKEOVERS_TRIED
    ):
        ownership = "queued"
    status = entry.status
    if ownership == "orphaned" and entry.state != "terminal":
        status = "unknown"
    return replace(entry, can_control=mine, ownership=ownership, status=status)


async def lost_runs(fleet: Fleet) -> list[str]:
    """Runs of this binding that nobody drives and that a recovery can be tried for; oldest first."""
    found: list[str] = []
    cursor: str | None = None
    states: tuple[RunStateName, ...] = ("accepted", "running", "waiting", "stopping", "unknown")
    while True:
        page = await catalog(fleet, RunQuery(binding=fleet.binding, states=states), cursor, 500)
        for entry in page.items:
            if entry.can_control and entry.ownership not in ("here", "elsewhere", "parked"):
                head = await fleet.journal.head(entry.run_id)
                if head is not None and head.summary.takeovers < TAKEOVERS_TRIED:
                    found.append(entry.run_id)
        cursor = page.cursor
        if cursor is None:
            return found[::-1]
