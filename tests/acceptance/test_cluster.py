"""One acceptance suite over the single process, over DBOS and over Temporal: real processes, a real Postgres.

The single process is the same objects without a dispatcher; what it cannot have (another worker) is asked of the engines
alone. Whole, with 200 runs: `python tests/cluster_matrix.py`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest

from cluster_matrix import Trouble, matrix
from cluster_process import LEASE_S, WORDS
from clusterkit import ENGINES, Deployment, Seen, patiently, spec, until
from pilothouse.commands import Allow, Answer, Cancel, Command, Steer
from pilothouse.events import Cancelled, Completed, ContinuityRestored
from pilothouse.messages import Message, Text
from pilothouse.records import Record
from pilothouse.runs.controller import RunController
from postgres_server import PostgresServer

pytestmark = pytest.mark.timeout(180)

moving = pytest.mark.parametrize("place", ENGINES[1:], indirect=True)


@pytest.fixture(params=ENGINES)
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Deployment]:
    async with Deployment(request.param) as deployment:
        yield deployment


async def message_of(runs: RunController, run_id: str) -> list[tuple[str, str]]:
    return [
        (entry.message.id, entry.message.text)
        for entry in await runs.own_messages(run_id)
        if entry.message.role == "assistant"
    ]


async def test_a_run_is_accepted_here_driven_somewhere_and_followed_anywhere(place: Deployment) -> None:
    """Every follower of every node sees one gap-free order and the whole text; the tool ran once."""
    await place.work()
    one, two = await place.web(), await place.web()
    run = await one.start(spec("r1"), until="accepted")
    seen = [Seen(runs, "r1") for runs in (one, one, two)]
    assert (await run.wait(timeout=60)).outcome == Completed()
    facts = [record.seq for record in await two.events("r1")]
    messages = await message_of(two, "r1")
    for follower in seen:
        await follower.task
        assert follower.facts == facts == list(range(1, len(facts) + 1))
        for message_id, text in messages:
            assert text.startswith(follower.text(message_id))
    # From the beginning on live: what was told was seen, but for what came between two looks at the start.
    assert max(len(follower.text(messages[-1][0])) for follower in seen) >= len(messages[-1][1]) - WORDS
    assert await place.effects() == {"r1": 1}


async def test_equal_starts_on_two_nodes_are_one_run(place: Deployment) -> None:
    """RC-33: one registration, one drive."""
    await place.work(2)
    one, two = await place.web(), await place.web()
    runs = await asyncio.gather(*[node.start(spec("r1"), until="accepted") for node in (one, two, one, two)])
    assert sum(not run.reopened for run in runs) == 1
    for run in runs:
        assert (await run.wait(timeout=60)).outcome == Completed()
    assert await place.effects() == {"r1": 1}


async def test_a_stop_from_any_node_reaches_the_run(place: Deployment) -> None:
    """Promise 3: cancelled, not failed, at once, and seen so everywhere."""
    await place.work()
    one, two = await place.web(), await place.web()
    run = await one.start(spec("r1", "slow"))
    seen = Seen(one, "r1")
    await seen.begun.wait()
    ack = await two.command(Command("stop", "r1", Cancel("enough")))
    assert ack.state == "applied"
    assert (await run.wait(timeout=60)).outcome == Cancelled("enough")
    again = await one.command(Command("stop", "r1", Cancel("enough")))
    assert (again.state, again.duplicate) == ("applied", True)
    assert await place.effects() == {}


async def test_an_approval_from_any_node_runs_the_call_once(place: Deployment) -> None:
    """EF: the run rests without a worker meanwhile; ten answers from two nodes are one."""
    await place.work(2)
    one, two = await place.web(), await place.web()
    await one.start(spec("r1", "ask"))

    async def parked() -> bool:
        return (await two.inspect("r1")).ownership == "parked"

    await until(parked)
    request = (await two.inspect("r1")).requests[0]
    order = Command("yes", "r1", Answer(request.id, Allow()))
    acks = await asyncio.gather(*[node.command(order, timeout=30) for node in (one, two) * 5])
    assert {ack.state for ack in acks} <= {"accepted", "applied"}
    assert (await two.wait_for_terminal("r1", timeout=60)).outcome == Completed()
    assert await place.effects() == {"r1": 1}
    kinds = [record.fact.kind for record in await one.events("r1")]
    assert "continuity_lost" not in kinds
    assert kinds.count("command_received") == 1


async def test_steering_from_another_node_is_heard(place: Deployment) -> None:
    """RC-43: recorded by the holder, in the next turn of the run."""
    await place.work()
    one, two = await place.web(), await place.web()
    run = await one.start(spec("r1"))
    ack = await two.command(Command("s1", "r1", Steer(Message("said", "user", (Text("and a window"),)))))
    assert ack.state in ("accepted", "applied")
    await run.wait(timeout=60)
    said = [entry.message.id for entry in await two.own_messages("r1")]
    assert "said" in said
    assert (await two.command_ack("r1", "s1")).state == "applied"


async def test_a_reader_goes_on_at_another_node_from_its_cursor(place: Deployment) -> None:
    """RC-63 across nodes: no gap, nothing twice."""
    await place.work()
    one, two = await place.web(), await place.web()
    await one.start(spec("r1"), until="accepted")
    facts: list[int] = []
    async with one.stream("r1", deltas=False) as items:
        async for item in items:
            assert isinstance(item, Record)
            facts.append(item.seq)
            if len(facts) == 5:
                break
    async with two.stream("r1", facts[-1], deltas=False) as items:
        async for item in items:
            assert isinstance(item, Record)
            facts.append(item.seq)
    assert facts == list(range(1, len(facts) + 1))
    assert (await two.inspect("r1")).last_seq == facts[-1]


@moving
async def test_a_killed_worker_is_replaced(place: Deployment) -> None:
    """kill -9: taken over within the lease and two seconds (limit with slack), nothing twice, no gap for followers."""
    both = await place.work(2)
    web = await place.web()
    await web.start(spec("r1", "slow"))
    seen = Seen(web, "r1")
    await seen.begun.wait()
    fence = (await web.inspect("r1")).fence
    for worker in both:  # whichever has it
        worker.send(signal.SIGKILL)
    began = time.monotonic()
    await place.work()

    async def taken() -> bool:
        return (await web.inspect("r1")).fence > fence

    await until(taken)
    assert time.monotonic() - began < (LEASE_S + 2) * 10
    assert (await web.wait_for_terminal("r1", timeout=90, through_unknown=True)).outcome == Completed()
    await seen.task
    assert seen.facts == list(range(1, len(seen.facts) + 1))
    assert (await place.effects()).get("r1", 0) <= 1
    facts = [record.fact for record in await web.events("r1")]
    assert [fact.method for fact in facts if isinstance(fact, ContinuityRestored)] == ["journal"]


@moving
async def test_a_frozen_worker_that_wakes_is_fenced(place: Deployment) -> None:
    """SIGSTOP past its lease, another drives on; woken, it writes nothing more."""
    (first,) = await place.work()
    web = await place.web()
    await web.start(spec("r1", "slow"))
    seen = Seen(web, "r1")
    await seen.begun.wait()
    fence = (await web.inspect("r1")).fence
    first.send(signal.SIGSTOP)
    await place.work()

    async def taken() -> bool:
        return (await web.inspect("r1")).fence > fence

    await until(taken)
    first.send(signal.SIGCONT)
    assert (await web.wait_for_terminal("r1", timeout=90, through_unknown=True)).outcome == Completed()
    await seen.task
    records = await web.events("r1")
    assert seen.facts == [record.seq for record in records] == list(range(1, len(records) + 1))
    fences = [record.fence for record in records]
    assert fences == sorted(fences)
    assert (await place.effects()).get("r1", 0) <= 1


@moving
async def test_a_worker_that_is_told_to_stop_hands_its_runs_over(place: Deployment) -> None:
    """A rolling deploy: SIGTERM, and the run goes on at another worker; nobody who follows hears of a loss alone."""
    (first,) = await place.work()
    web = await place.web()
    await web.start(spec("r1", "slow"))
    seen = Seen(web, "r1")
    await seen.begun.wait()
    await place.work()
    first.send(signal.SIGTERM)
    assert await first.line() == ["gone"]
    assert await first.gone() == 0
    assert (await web.wait_for_terminal("r1", timeout=90)).outcome == Completed()
    await seen.task
    assert seen.facts == list(range(1, len(seen.facts) + 1))
    assert (await place.effects()).get("r1", 0) <= 1


@moving
async def test_runs_outlive_a_restart_of_the_database(place: Deployment) -> None:
    """Postgres is stopped hard under running work and comes back: nothing lost, nothing twice."""
    server = PostgresServer()
    try:
        async with Deployment(place.engine, server) as own:
            await own.work(2)
            web = await own.web()
            for number in range(6):
                await web.start(spec(f"r{number}", "slow"), until="accepted")
            seen = Seen(web, "r0")
            await seen.begun.wait()
            await asyncio.to_thread(server.stop, hard=True)
            await asyncio.to_thread(server.start)
            for number in range(6):
                waiting = partial(web.wait_for_terminal, f"r{number}", timeout=120, through_unknown=True)
                result = await patiently(waiting)
                assert result.outcome == Completed()
            assert all(count == 1 for count in (await own.effects()).values())
            assert (await web.journal.verify()).problems == ()
            await seen.task
            assert seen.facts == list(range(1, len(seen.facts) + 1))
    finally:
        server.remove()


@moving
async def test_a_sample_of_the_matrix(place: Deployment) -> None:
    """Runs with tools while workers are killed, frozen and replaced at random: contiguous, no effect twice, one order."""
    report = await matrix(place, runs=12, seed=9, troubles=(Trouble.KILL, Trouble.FREEZE), pause=(0.3, 0.8))
    assert report.problems == []
    assert report.completed == 12
