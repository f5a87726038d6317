"""Claims, leases, fences, waking (RC-49, RC-50, JR-20)."""

from __future__ import annotations

import asyncio

from ...contracts import Journal
from ...errors import FenceConflict, OwnedElsewhere, RunNotFound
from ...records import RunQuery
from ..clock import START_MS
from ..sample_runs import LEASE_MS, SampleRun, claim_by
from .checking import Opens, check, raises


class OwnershipChecks(Opens):
    """What a store does with owners.

    A store that judges leases by its own clock sets `own_clock`; what only a told clock can show is then not asked.
    """

    own_clock = False

    @check
    async def test_a_living_owner_keeps_its_run(self, journal: Journal) -> None:
        """RC-49."""
        await SampleRun().store(journal)
        error = await raises(OwnedElsewhere, journal.claim("run-1", claim_by("owner-2")))
        assert error.owner == "owner-1"
        head = await journal.head("run-1")
        assert head is not None
        assert (head.owner, head.fence, head.owner_alive) == ("owner-1", 1, True)
        await raises(RunNotFound, journal.claim("ghost", claim_by()))

    @check
    async def test_a_claim_raises_the_fence(self, journal: Journal) -> None:
        """RC-49: of a released run, and by the owner itself."""
        run = SampleRun()
        await run.store(journal)
        head = await journal.claim("run-1", claim_by("owner-1"))
        assert (head.fence, head.owner) == (2, "owner-1")
        await journal.release(claim_by("owner-1").owner, "run-1")
        released = await journal.head("run-1")
        assert released is not None
        assert (released.owner, released.owner_alive, released.fence) == (None, None, 2)
        head = await journal.claim("run-1", claim_by("owner-2"))
        assert (head.fence, head.owner, head.owner_alive) == (3, "owner-2", True)
        assert head.registration == run.registration
        assert head.summary == run.summary()
        await raises(FenceConflict, run.append(journal, run.notes()))
        run.fence = 3
        await run.add(journal)

    @check
    async def test_an_end_gives_the_run_up(self, journal: Journal) -> None:
        """RC-49, JR-2: in the append of the end, so that no ended run is anybody's, whenever its owner dies."""
        run, other = SampleRun(), SampleRun("run-2")
        await run.store(journal)
        await other.store(journal)
        await run.append(journal, run.begun())
        await run.append(journal, run.ended())
        heads = [await journal.head(name) for name in ("run-1", "run-2")]
        assert [head and (head.owner, head.fence) for head in heads] == [(None, 1), ("owner-1", 1)]

    @check
    async def test_who_said_goodbye_can_come_back(self, journal: Journal) -> None:
        """RC-49: a goodbye of who owned nothing is about nothing that is claimed after it."""
        await SampleRun().store(journal)
        await journal.release(claim_by("owner-1").owner, "run-1")
        await journal.release(claim_by("owner-2").owner)
        await journal.claim("run-1", claim_by("owner-2"))
        await SampleRun("run-2").store(journal)
        await raises(OwnedElsewhere, journal.claim("run-1", claim_by("owner-1")))
        head = await journal.head("run-1")
        assert head is not None
        assert (head.owner, head.owner_alive) == ("owner-2", True)

    @check
    async def test_only_the_owner_can_release(self, journal: Journal) -> None:
        """RC-49: a fenced owner's goodbye changes nothing."""
        for number in range(3):
            await SampleRun(f"run-{number}").store(journal)
        await journal.release(claim_by("owner-2").owner)
        await journal.release(claim_by("owner-2").owner, "run-0")
        await journal.release(claim_by("owner-1").owner, "run-1")
        await journal.release(claim_by("owner-1").owner, "ghost")
        heads = [await journal.head(f"run-{number}") for number in range(3)]
        assert [head and head.owner for head in heads] == ["owner-1", None, "owner-1"]
        await journal.release(claim_by("owner-1").owner)
        heads = [await journal.head(f"run-{number}") for number in range(3)]
        assert [head and head.owner for head in heads] == [None, None, None]

    @check
    async def test_a_lease_ends(self, journal: Journal) -> None:
        """RC-49: then another may claim; before, not; a renewal moves the end for all runs of the owner."""
        if self.own_clock:
            return await self._a_lease_ends_by_the_stores_clock(journal)
        for number in range(2):
            await SampleRun(f"run-{number}").store(journal)
        late = START_MS + LEASE_MS
        await raises(OwnedElsewhere, journal.claim("run-0", claim_by("owner-2", now_ms=late - 1)))
        await journal.renew(claim_by("owner-1").owner, ttl_ms=LEASE_MS, now_ms=START_MS + 10_000)
        await raises(OwnedElsewhere, journal.claim("run-1", claim_by("owner-2", now_ms=late + 9_999)))
        head = await journal.claim("run-0", claim_by("owner-2", now_ms=late + 10_000))
        assert (head.fence, head.owner) == (2, "owner-2")
        other = await journal.head("run-1")
        assert other is not None
        assert (other.owner, other.owner_alive) == ("owner-1", False)
        return None

    async def _a_lease_ends_by_the_stores_clock(self, journal: Journal) -> None:
        await SampleRun("run-0").store(journal, claim=claim_by("owner-1", ttl_ms=300, now_ms=1))
        await raises(OwnedElsewhere, journal.claim("run-0", claim_by("owner-2", now_ms=START_MS * 2)))
        assert await journal.changed("run-0", 1, timeout=0.4) == 1  # real time passes
        head = await journal.claim("run-0", claim_by("owner-2", now_ms=1))
        assert (head.fence, head.owner) == (2, "owner-2")

    @check
    async def test_renewing_what_was_taken_over_brings_nothing_back(self, journal: Journal) -> None:
        """RC-49, RC-16: the old owner stays out."""
        run = SampleRun()
        await run.store(journal)
        await journal.release(claim_by("owner-1").owner, "run-1")
        await journal.claim("run-1", claim_by("owner-2"))
        await journal.renew(claim_by("owner-1").owner, ttl_ms=LEASE_MS, now_ms=START_MS)
        await raises(FenceConflict, run.append(journal, run.notes()))
        head = await journal.head("run-1")
        assert head is not None
        assert head.owner == "owner-2"

    @check
    async def test_of_many_claims_at_once_one_wins(self, journal: Journal) -> None:
        """RC-49."""
        run = SampleRun()
        await run.store(journal)
        await journal.release(claim_by("owner-1").owner)
        results = await asyncio.gather(
            *[journal.claim("run-1", claim_by(f"claimer-{number}")) for number in range(8)],
            return_exceptions=True,
        )
        assert sum(isinstance(result, OwnedElsewhere) for result in results) == 7
        head = await journal.head("run-1")
        assert head is not None
        assert head.fence == 2

    @check
    async def test_a_list_says_who_drives(self, journal: Journal) -> None:
        """RC-50: as far as a store can know."""
        ended, parked, lost, driven = (SampleRun(name) for name in ("ended", "parked", "lost", "driven"))
        for run in (ended, parked, lost, driven):
            await run.store(journal)
        await ended.end(journal)
        await parked.append(journal, parked.asking())
        await lost.append(journal, lost.lost())
        for run in (parked, lost):
            await journal.release(claim_by().owner, run.run_id)
        page = await journal.list(RunQuery())
        words = {entry.run_id: (entry.status, entry.ownership) for entry in page.items}
        assert words == {
            "ended": ("completed", "none"),
            "parked": ("waiting", "parked"),
            "lost": ("unknown", "none"),
            "driven": ("accepted", "elsewhere"),
        }

    @check
    async def test_changed_wakes_when_the_head_moves(self, journal: Journal) -> None:
        """JR-20, RC-65: at once if it has, when it does, or at its time limit."""
        run = SampleRun()
        await run.store(journal)
        assert await journal.changed("run-1", 0, timeout=10) == 1
        assert await journal.changed("run-1", 1, timeout=0.01) == 1
        waits = [asyncio.create_task(journal.changed("run-1", 1, timeout=10)) for _ in range(5)]
        await asyncio.sleep(0)
        await run.add(journal, 2)
        assert await asyncio.gather(*waits) == [3] * 5
        left = asyncio.create_task(journal.changed("run-1", 3, timeout=10))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        await run.add(journal)
        await raises(RunNotFound, journal.changed("ghost", 0, timeout=0.01))
