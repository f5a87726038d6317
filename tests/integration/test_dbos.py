"""DBOS as the dispatcher, over a real Postgres: tickets, shares, priorities, and what is said where it cannot be reached."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from pilothouse.cluster import Driven, Ticket
from pilothouse.dispatch.dbos import DBOSDispatcher
from pilothouse.dispatch.limits import DispatchLimits
from pilothouse.errors import ConfigError, DispatchUnavailable
from pilothouse.journal import PostgresJournal
from pilothouse.records import Owner
from postgres_server import shared_dsn

QUEUE = "default@0123abcd"
ME = Owner("me")


def ticket(run_id: str, **more) -> Ticket:
    return Ticket(run_id, QUEUE, **more)


class Engine:
    """A worker's dispatcher with a drive that notes what it was given, and does as it is told."""

    def __init__(self, journal: PostgresJournal, schema: str, limits: DispatchLimits | None = None) -> None:
        self.dispatcher = DBOSDispatcher(shared_dsn(), journal, schema=schema, limits=limits)
        self.given: list[Ticket] = []
        self.now = self.most = 0
        self.open = asyncio.Event()
        self.open.set()
        self.answers: dict[str, list[Driven]] = {}
        self.dispatcher.on_dispatch(QUEUE, self.drive)

    async def drive(self, given: Ticket) -> Driven:
        self.given.append(given)
        self.now += 1
        self.most = max(self.most, self.now)
        await self.open.wait()
        self.now -= 1
        answers = self.answers.get(given.run_id)
        return answers.pop(0) if answers else "ended"

    async def driven(self, count: int) -> list[str]:
        async with asyncio.timeout(60):
            while len(self.given) < count or self.now:
                await asyncio.sleep(0.02)
        return [item.run_id for item in self.given]


@pytest.fixture
async def place() -> AsyncIterator[tuple[PostgresJournal, str]]:
    name = f"d{uuid.uuid4().hex[:12]}"
    async with PostgresJournal(shared_dsn(), schema=name) as journal:
        yield journal, f"{name}_dbos"


async def test_a_ticket_is_one_task_whoever_asks_for_it(place) -> None:
    """The same ticket again, from another process, before and after it was driven: once. A new fence: again."""
    engine = Engine(*place)
    web = DBOSDispatcher(shared_dsn(), place[0], schema=place[1])
    await engine.dispatcher.start()
    try:
        await asyncio.gather(*[asker.enqueue(ticket("r1")) for asker in (web, web, engine.dispatcher)])
        assert await engine.driven(1) == ["r1"]
        await web.enqueue(ticket("r1"))
        await web.enqueue(ticket("r1", fence=2))
        await web.enqueue(ticket("r2", tenant="t", thread_id="x", priority=3))
        assert sorted(await engine.driven(3)) == ["r1", "r1", "r2"]
        assert engine.given[-1].run_id == "r2" or engine.given[-2].run_id == "r2"
        assert ticket("r2", tenant="t", thread_id="x", priority=3) in engine.given
        await engine.dispatcher.heartbeat(ME, 60_000)
    finally:
        await web.aclose()
        await engine.dispatcher.aclose()
    await engine.dispatcher.aclose()


async def test_what_has_its_share_comes_again(place) -> None:
    """Deferred: it holds no place meanwhile, and is asked for again by itself."""
    engine = Engine(*place)
    engine.answers = {"r1": ["deferred", "deferred", "ended"]}
    await engine.dispatcher.start()
    try:
        await engine.dispatcher.enqueue(ticket("r1"))
        await engine.driven(3)
        assert [item.round for item in engine.given] == [0, 1, 2]
    finally:
        await engine.dispatcher.aclose()


async def test_places_are_bounded_and_priorities_go_first(place) -> None:
    """One place: what waits is taken by priority, smaller first, whoever came earlier."""
    engine = Engine(*place, limits=DispatchLimits(worker=1))
    await engine.dispatcher.start()
    try:
        engine.open.clear()
        await engine.dispatcher.enqueue(ticket("first"))
        async with asyncio.timeout(60):
            while not engine.given:
                await asyncio.sleep(0.02)
        for name, priority in (("later", 5), ("normal", 0), ("urgent", -5)):
            await engine.dispatcher.enqueue(ticket(name, priority=priority))
        engine.open.set()
        assert await engine.driven(4) == ["first", "urgent", "normal", "later"]
        assert engine.most == 1
    finally:
        await engine.dispatcher.aclose()


async def test_a_principal_has_its_share_of_all_workers(place) -> None:
    """Two of one principal at once, while another's go on beside them."""
    engine = Engine(*place, limits=DispatchLimits(principal=2))
    await engine.dispatcher.start()
    try:
        engine.open.clear()
        for number in range(5):
            await engine.dispatcher.enqueue(ticket(f"a{number}", tenant="ada"))
        await engine.dispatcher.enqueue(ticket("b", tenant="bob"))
        async with asyncio.timeout(60):
            while len(engine.given) < 3:
                await asyncio.sleep(0.02)
        assert sorted(item.tenant for item in engine.given) == ["ada", "ada", "bob"]
        engine.open.set()
        await engine.driven(6)
    finally:
        await engine.dispatcher.aclose()


async def test_after_a_drain_nothing_more_is_driven_here(place) -> None:
    """What was taken a moment before goes back for others."""
    engine = Engine(*place)
    await engine.dispatcher.start()
    try:
        await engine.dispatcher.drain()
        await engine.dispatcher.enqueue(ticket("r1"))
        engine.dispatcher._drained = False  # stands for another worker: DBOS has one a process
        assert await engine.driven(1) == ["r1"]
    finally:
        await engine.dispatcher.aclose()


async def test_two_who_look_for_the_dead_put_a_ticket_back_once(place) -> None:
    """Two reapers in the same moment; the one that was taken for dead is alive, and cannot end what is another's now."""
    engine = Engine(*place)
    await engine.dispatcher.start()
    others = [DBOSDispatcher(shared_dsn(), place[0], schema=place[1]) for _ in range(2)]
    try:
        engine.open.clear()
        await engine.dispatcher.enqueue(ticket("r1"))
        async with asyncio.timeout(60):
            while not engine.given:
                await asyncio.sleep(0.02)
        assert place[0].relay is not None
        await place[0].relay.heartbeat(engine.dispatcher._me, 0)  # its lease is over
        for other in others:
            other.on_dispatch(QUEUE, engine.drive)
        await asyncio.gather(*[other._reap() for other in others])
        await place[0].relay.heartbeat(engine.dispatcher._me, 60_000)
        async with asyncio.timeout(60):
            while len(engine.given) < 2:
                await asyncio.sleep(0.02)
        await asyncio.gather(*[other._reap() for other in others])
        engine.open.set()
        await engine.dispatcher.enqueue(ticket("r2"))
        assert await engine.driven(3) == ["r1", "r1", "r2"]
    finally:
        for other in others:
            await other.aclose()
        await engine.dispatcher.aclose()


async def test_what_is_missing_is_said(place) -> None:
    """Bad input: a web node before the first worker, a database that is away, two workers in one process, limits of none."""
    web = DBOSDispatcher(shared_dsn(), place[0], schema=place[1])
    with pytest.raises(DispatchUnavailable, match="made by the first worker"):
        await web.enqueue(ticket("r1"))
    await web.aclose()
    away = DBOSDispatcher("postgresql://nobody@127.0.0.1:1/none", place[0], schema=place[1])
    with pytest.raises(DispatchUnavailable, match="check that the database runs"):
        await away.enqueue(ticket("r1"))
    await away.aclose()
    engine, second = Engine(*place), Engine(*place)
    await engine.dispatcher.start()
    try:
        with pytest.raises(ConfigError, match="each worker a process"):
            await second.dispatcher.start()
    finally:
        await engine.dispatcher.aclose()
    for wrong in ({"worker": 0}, {"principal": 0}, {"rate": (0, 1.0)}):
        with pytest.raises(ConfigError, match="limit"):
            DispatchLimits(**wrong)
