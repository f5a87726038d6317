"""What processes of one journal tell each other, in memory and in Postgres: commands, deltas, who lives, what is stranded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from pilothouse.cluster import Relay, Told, queue_of
from pilothouse.contracts import Journal
from pilothouse.errors import CommandConflict, RunNotFound
from pilothouse.journal import MemoryJournal, PostgresJournal
from pilothouse.records import Owner
from pilothouse.testing import SampleRun
from pilothouse.testing.journals import claim_by
from postgres_server import shared_dsn

Open = Callable[[], Journal]


@pytest.fixture(params=["memory", "postgres"])
async def journal(request: pytest.FixtureRequest) -> AsyncIterator[Journal]:
    if request.param == "memory":
        yield MemoryJournal()
        return
    async with PostgresJournal(shared_dsn(), schema=f"relay{uuid.uuid4().hex[:12]}") as opened:
        yield opened


@pytest.fixture
def relay(journal: Journal) -> Relay:
    assert journal.relay is not None
    return journal.relay


async def signalled(relay: Relay, signal: str, doing) -> None:
    """Somebody who listens is called when that is done."""
    heard = asyncio.Event()
    forget = relay.on_signal(signal, heard.set)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(20):
            while not heard.is_set():  # a listener may still be on its way to the server
                await doing()
                await asyncio.wait([asyncio.ensure_future(heard.wait())], timeout=0.2)
    finally:
        forget()


async def test_a_command_is_posted_once_and_answered_once(journal: Journal, relay: Relay) -> None:
    await SampleRun("r1").store(journal)
    assert await relay.post("r1", "c1", b"one") is None
    assert await relay.post("r1", "c1", b"one") is None
    with pytest.raises(CommandConflict):
        await relay.post("r1", "c1", b"another")
    with pytest.raises(RunNotFound):
        await relay.post("nobody", "c1", b"one")
    posted, _ = await relay.inbox(["r1", "nobody"])
    assert [(entry.run_id, entry.command_id, entry.body) for entry in posted] == [("r1", "c1", b"one")]
    waits = [asyncio.ensure_future(relay.answered("r1", "c1", timeout=20)) for _ in range(3)]
    await asyncio.sleep(0)
    await relay.answer("r1", "c1", b"yes")
    await relay.answer("r1", "c1", b"no")
    assert await asyncio.gather(*waits) == [b"yes"] * 3
    assert await relay.post("r1", "c1", b"one") == b"yes"
    assert await relay.inbox(["r1"]) == ([], frozenset())
    assert await relay.post("r1", "c2", b"two") is None
    assert await relay.answered("r1", "c2", timeout=0.01) is None


async def test_deltas_are_read_behind_a_place_in_order(relay: Relay) -> None:
    told = [Told("r1", 2, 7, b"c"), Told("r1", 1, 3, b"a"), Told("r1", 2, 4, b"b"), Told("r2", 1, 1, b"x")]
    await relay.tell(told[:2])
    await relay.tell(told[2:])
    assert [item.body for item in await relay.told({"r1": (0, 0), "r2": (0, 0)})] == [b"a", b"b", b"c", b"x"]
    assert [item.body for item in await relay.told({"r1": (1, 3)})] == [b"b", b"c"]
    assert await relay.told({"r1": (2, 7)}) == []
    await relay.tell(told)  # told again, after an answer that was lost: nothing is doubled
    assert len(await relay.told({"r1": (0, 0)})) in (3, 6)
    assert await relay.told({}) == []


async def test_it_is_known_who_follows(journal: Journal, relay: Relay) -> None:
    await SampleRun("r1").store(journal)
    await relay.follow("node", ["r1", "r2"], ttl_ms=60_000)
    assert await relay.inbox(["r1", "r3"]) == ([], frozenset({"r1"}))
    await relay.follow("node", ["r1"], ttl_ms=-1)
    assert await relay.inbox(["r1"]) == ([], frozenset())


async def test_those_who_wait_are_woken(journal: Journal, relay: Relay) -> None:
    await SampleRun("r1").store(journal)
    number = iter(range(1_000))
    await signalled(relay, "inbox", lambda: relay.post("r1", f"c{next(number)}", b"one"))
    await signalled(relay, "told", lambda: relay.tell([Told("r1", 1, next(number), b"a")]))


async def test_what_nobody_drives_is_stranded(journal: Journal, relay: Relay) -> None:
    """Not: driven, ended, lost on the record, at rest; at rest with a command it is."""
    runs = {
        name: SampleRun(name) for name in ("driven", "ended", "lost", "resting", "asked", "orphan", "queued")
    }
    for name, run in runs.items():
        if name != "queued":
            await run.store(journal)
    queued = runs["queued"]
    records = queued.accepted()
    made = await journal.create(queued.registration, records, summary=queued.summary(records), claim=None)
    assert (made.head.owner, made.head.owner_alive, made.head.fence) == (None, None, 1)
    await runs["ended"].end(journal)
    await runs["lost"].append(journal, runs["lost"].lost())
    for name in ("resting", "asked"):
        await runs[name].append(journal, runs[name].asking())
    for name in ("lost", "resting", "asked", "orphan"):
        await journal.release(claim_by().owner, name)
    await relay.post("asked", "c1", b"yes")
    binding, digest = queued.registration.binding, queued.registration.descriptor_digest
    found, more = await relay.stranded(binding, digest, after=0, limit=10)
    assert [ticket.run_id for ticket in found] == ["asked", "orphan", "queued"]
    assert more == 0
    assert {ticket.queue for ticket in found} == {queue_of(binding, digest)}
    one, more = await relay.stranded(binding, digest, after=0, limit=2)
    assert [ticket.run_id for ticket in one] == ["asked", "orphan"]
    rest, more = await relay.stranded(binding, digest, after=more, limit=2)
    assert ([ticket.run_id for ticket in rest], more) == (["queued"], 0)
    assert await relay.stranded(binding, "another contract", after=0, limit=10) == ([], 0)


async def test_a_run_without_a_claim_is_claimed_like_any(journal: Journal) -> None:
    """JR-1: nobody drives it yet; of those who claim it one gets it, with fence 2."""
    run = SampleRun("r1")
    records = run.accepted()
    await journal.create(run.registration, records, summary=run.summary(records), claim=None)
    again = await journal.create(run.registration, records, summary=run.summary(records), claim=None)
    assert again.existing
    head = await journal.claim("r1", claim_by())
    assert (head.fence, head.owner_alive) == (2, True)


async def test_shares_are_counted_over_living_owners(journal: Journal, relay: Relay) -> None:
    for name in ("a", "b", "c"):
        await SampleRun(name).store(journal)
    spec = SampleRun("a").registration.spec
    assert (await relay.load(spec.tenant, spec.thread_id))[0] == 3
    await journal.release(claim_by().owner, "b")
    assert (await relay.load(spec.tenant, spec.thread_id))[0] == 2
    assert await relay.load("somebody else", spec.thread_id) == (0, 0)


async def test_who_said_nothing_for_a_lease_is_dead(relay: Relay) -> None:
    await relay.heartbeat(Owner("alive"), 60_000)
    await relay.heartbeat(Owner("dead"), 0)
    assert await relay.dead(["alive", "dead", "never seen"]) == {"dead", "never seen"}
    await relay.heartbeat(Owner("dead"), 60_000)
    assert await relay.dead(["dead"]) == frozenset()
