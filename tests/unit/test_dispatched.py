"""Runs that move between controllers over one journal: asked for here, driven there, seen and steered from anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from clocks import MachineClock
from pilothouse.commands import Answer, Command, InputAnswer, Request
from pilothouse.errors import InvalidSpec, OwnedElsewhere, RecordRefused, RecoveryMismatch, UsageError
from pilothouse.events import (
    Cancelled,
    Completed,
    ContinuityRestored,
    Delta,
    Noted,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
)
from pilothouse.journal import MemoryJournal, SQLiteJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Accept, Record, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import Board, ScriptedRuntime
from pilothouse.testing.runtimes import Ask, Hold, Leave, UntilStopped

END = (TurnEnded(1), RunEnded(Completed()))
TIMING = RunTiming(lease=2.0, stop_grace=0.2, kill_grace=0.2)


def spec(run_id: str = "r1", thread_id: str = "t", **more) -> RunSpec:
    return RunSpec(run_id, thread_id, (Message(f"{run_id}.0", "user", (Text("hi"),)),), **more)


class Cluster:
    """Controllers over one journal in memory; `web` nodes only ask, `worker`s drive."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self.journal = MemoryJournal()
        self.board = Board()
        self._stack = stack

    async def web(self, **more) -> RunController:
        runs = RunController(
            ScriptedRuntime(), journal=self.journal, dispatcher=self.board.dispatcher(), timing=TIMING, **more
        )
        return await self._stack.enter_async_context(runs)

    async def worker(
        self,
        *script,
        accept: Accept | None = None,
        timing: RunTiming = TIMING,
        config_digest: str = "",
        principal: int | None = None,
        clock: MachineClock | None = None,
    ) -> RunController:
        dispatcher = self.board.dispatcher()
        runtime = ScriptedRuntime(*script)
        runtime.config_digest = config_digest
        runs = RunController(runtime, journal=self.journal, dispatcher=dispatcher, timing=timing, clock=clock)
        await self._stack.enter_async_context(runs)
        runs.work(accept=accept, principal=principal)
        await dispatcher.start()
        runs.engine = dispatcher
        return runs


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(stack)


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_run_is_asked_for_here_and_driven_there(cluster: Cluster) -> None:
    """JR §6: registered by one, claimed by another; both see one history, without a loss in it."""
    web = await cluster.web()
    worker = await cluster.worker(TurnStarted(1), *END)
    run = await web.start(spec())
    result = await run.wait(timeout=20)
    assert result.outcome == Completed()
    assert (web.runtime.runs, worker.runtime.runs) == ([], ["r1"])
    kinds = [record.fact.kind for record in await web.events("r1")]
    assert kinds == ["run_accepted", "run_started", "turn_started", "turn_ended", "run_ended"]
    await until(lambda: cluster.board.outcomes == {"r1:1": "ended"})


async def test_a_process_may_ask_for_what_it_drives_itself(cluster: Cluster) -> None:
    """Web node and worker in one: what was shown of the run goes on, to its start, its deltas and its end."""

    async def talk(_start, port) -> None:
        port.tell(TextTold("m1", 0, "hello"))

    both = await cluster.worker(TurnStarted(1), talk, *END)
    asking = asyncio.ensure_future(both.start(spec()))
    await until(lambda: both._fleet.mirror("r1") is not None or "r1" in both._fleet.live or asking.done())
    seen = asyncio.ensure_future(_all(both, "r1"))
    run = await asyncio.wait_for(asking, 20)
    assert (await run.wait(timeout=20)).outcome == Completed()
    facts = [item.seq for item in await seen if isinstance(item, Record)]
    assert facts == list(range(1, len(facts) + 1))
    assert both._fleet.mirror("r1") is None


async def test_equal_starts_on_two_nodes_are_one_run(cluster: Cluster) -> None:
    """RC-33 across nodes."""
    one, two = await cluster.web(), await cluster.web()
    worker = await cluster.worker(TurnStarted(1), *END)
    first, second = await asyncio.gather(one.start(spec()), two.start(spec()))
    assert sorted([first.reopened, second.reopened]) == [False, True]
    await first.wait(timeout=20)
    assert worker.runtime.runs == ["r1"]


async def test_what_only_the_driving_process_can_do_is_refused_by_its_name_elsewhere(
    cluster: Cluster,
) -> None:
    """RC-83: a pause that would hold nothing, and a note that could not be stored, are told; neither changes the run."""
    web = await cluster.web()
    hold = Hold()
    worker = await cluster.worker(TurnStarted(1), hold, *END)
    run = await web.start(spec())
    async with web.stream("r1") as items:
        await anext(aiter(items))
        with pytest.raises(OwnedElsewhere, match="cannot control run r1 because another process drives it"):
            run.pause()
        with pytest.raises(OwnedElsewhere, match="cannot control run r1 because"):
            await web.note("r1", Noted("test/note", None))
    worker.run("r1").pause()
    worker.run("r1").resume()
    hold.release()
    assert (await run.wait(timeout=20)).outcome == Completed()
    run.pause()  # an honest race: there is nothing to hold any more
    with pytest.raises(RecordRefused) as refused:
        await web.note("r1", Noted("test/note", None))
    assert refused.value.code == "ended"


async def test_while_nobody_works_a_run_is_queued(cluster: Cluster) -> None:
    """RC-50 with a dispatcher: not lost, not stopped, not ended for who follows; the first worker drives it."""
    web = await cluster.web()
    run = await web.start(spec(), until="accepted")
    view = await web.inspect("r1")
    assert (view.status, view.ownership) == ("accepted", "queued")
    assert (await web.catalog_runs()).items[0].ownership == "queued"
    async with web.stream("r1") as items:
        assert (await anext(items)).fact.kind == "run_accepted"
        following = asyncio.ensure_future(anext(items))
        await cluster.worker(TurnStarted(1), *END)
        assert (await following).fact.kind == "run_started"
    assert (await run.wait(timeout=20)).outcome == Completed()


async def test_deltas_reach_the_followers_of_another_node_in_order(cluster: Cluster) -> None:
    """Every follower of every node sees one gap-free order of facts, and each delta behind the fact it was told after."""
    one, two = await cluster.web(), await cluster.web()
    held = Hold()

    async def talk(_start, port) -> None:
        for number in range(50):
            port.tell(TextTold("m1", 0, f"{number} "))
            if number == 24:
                await port.record(Noted("test/middle"))
            await asyncio.sleep(0)

    await cluster.worker(TurnStarted(1), held, talk, *END)
    await one.start(spec(), until="accepted")

    async def seen(runs: RunController) -> list:
        async with runs.stream("r1") as items:
            return [item async for item in items]

    following = [asyncio.ensure_future(seen(runs)) for runs in (one, one, two)]
    await until(lambda: one._fleet.mirror("r1") is not None and one._fleet.mirror("r1").followers == 2)
    await until(lambda: two._fleet.mirror("r1") is not None and two._fleet.mirror("r1").followers == 1)
    await held.reached()
    held.release()
    for items in await asyncio.gather(*following):
        facts = [item.seq for item in items if isinstance(item, Record)]
        assert facts == list(range(1, len(facts) + 1))
        told = [item for item in items if isinstance(item, Delta) and isinstance(item.body, TextTold)]
        assert "".join(item.body.text for item in told).split() == [str(number) for number in range(50)]
        last = 0
        for item in items:
            if isinstance(item, Record):
                last = item.seq
            else:
                assert item.after_seq <= last


async def test_a_command_from_any_node_reaches_the_run(cluster: Cluster) -> None:
    """RC-36 … RC-39 across nodes: recorded by the holder, answered to the sender, once; refusals come back too."""
    one, two = await cluster.web(), await cluster.web()
    worker = await cluster.worker(TurnStarted(1), Ask(Request("q", "input")), *END)
    await one.start(spec())
    await until(lambda: worker._fleet.live["r1"].state.requests)
    ack = await two.command(Command("c0", "r1", Answer("nothing", InputAnswer("x"))))
    assert (ack.state, ack.code) == ("rejected", "request_not_pending")
    order = Command("c1", "r1", Answer("q", InputAnswer("blue")))
    acks = await asyncio.gather(one.command(order), two.command(order), two.command(order))
    assert {ack.command_id for ack in acks} == {"c1"}
    assert all(ack.state in ("accepted", "applied") for ack in acks)
    assert (await two.wait_for_terminal("r1", timeout=20)).outcome == Completed()
    facts = [record.fact.kind for record in await two.events("r1")]
    assert facts.count("command_received") == 1


async def test_a_stop_reaches_a_run_wherever_it_is(cluster: Cluster) -> None:
    """Promise 3 across nodes: driven elsewhere, waiting for a worker, or at rest."""
    one, two = await cluster.web(), await cluster.web()
    queued = await one.start(spec("queued", "t1"), until="accepted")
    assert (await two.cancel("queued", "not wanted")).state == "applied"
    assert (await queued.wait(timeout=20)).outcome == Cancelled("not wanted")
    await cluster.worker(TurnStarted(1), UntilStopped(), Leave())
    driven = await one.start(spec("driven", "t2"))
    assert (await two.cancel("driven", "enough")).state == "applied"
    assert (await driven.wait(timeout=20)).outcome == Cancelled("enough")


async def test_a_run_at_rest_is_let_go_and_taken_up_by_its_answer(cluster: Cluster) -> None:
    """RC-51 with a dispatcher: no worker is held while a person thinks; the answer makes a new ticket."""
    web = await cluster.web()
    timing = RunTiming(lease=2.0, park_after=0.05)
    first = await cluster.worker(TurnStarted(1), Ask(Request("q", "input")), *END, timing=timing)
    await web.start(spec())
    await until(lambda: cluster.board.outcomes.get("r1:1") == "waiting")
    assert (await web.inspect("r1")).ownership == "parked"
    ack = await web.command(Command("c1", "r1", Answer("q", InputAnswer("blue"))), timeout=20)
    assert ack.state in ("accepted", "applied")
    assert (await web.wait_for_terminal("r1", timeout=20)).outcome == Completed()
    assert first.runtime.resumes == ["r1"]
    assert "continuity_lost" not in [record.fact.kind for record in await web.events("r1")]


async def test_another_worker_takes_over_from_a_dead_one(cluster: Cluster) -> None:
    """RC-49: the fence rises, the history has no gap, what the dead one still writes is refused; followers go on."""
    web = await cluster.web()
    clock = MachineClock()
    first = await cluster.worker(TurnStarted(1), UntilStopped(), Leave(), clock=clock)
    run = await web.start(spec())
    watching = asyncio.ensure_future(_all(web, "r1"))
    await until(lambda: first.stoppable("r1"))
    await cluster.worker(TurnStarted(1), *END)
    clock.freeze()  # it renews nothing any more
    first.engine.die()
    result = await run.wait(timeout=20)
    assert result.outcome == Completed()
    facts = [record.fact for record in await web.events("r1")]
    restored = [fact for fact in facts if isinstance(fact, ContinuityRestored)]
    assert [fact.method for fact in restored] == ["journal"]
    seen = [item.seq for item in await watching if isinstance(item, Record)]
    assert seen == list(range(1, len(facts) + 1))
    clock.thaw()


async def test_a_worker_that_closes_hands_its_runs_over(cluster: Cluster) -> None:
    """A rolling deploy: the run goes on elsewhere at once, not after a lease; followers notice nothing but the facts."""
    web = await cluster.web()
    old = await cluster.worker(TurnStarted(1), UntilStopped(), Leave(), timing=RunTiming(lease=60))
    run = await web.start(spec())
    await until(lambda: "r1" in old._fleet.live)
    await cluster.worker(TurnStarted(1), *END)
    await old.engine.drain()
    await old.aclose(timeout=2)
    result = await run.wait(timeout=20)
    assert result.outcome == Completed()
    assert cluster.board.outcomes["r1:1"] == "handed_over"


async def test_a_run_that_nobody_was_asked_to_drive_is_found(cluster: Cluster) -> None:
    """The engine was away when the run was registered: nothing is lost, the sweep of a worker asks for it."""
    web = await cluster.web()
    cluster.board.away = True
    run = await web.start(spec(), until="accepted")
    cluster.board.away = False
    await cluster.worker(TurnStarted(1), *END)
    assert (await run.wait(timeout=20)).outcome == Completed()


async def test_a_principal_that_has_its_share_waits_without_a_place(cluster: Cluster) -> None:
    """Shares are counted over all workers; the runs of others go on, and a command for a run is never kept waiting."""
    web = await cluster.web()
    await cluster.worker(TurnStarted(1), UntilStopped(), Leave(), principal=1)
    await web.start(spec("a1", "t1", tenant="ada"))
    second = await web.start(spec("a2", "t2", tenant="ada"), until="accepted")
    await web.start(spec("b1", "t3", tenant="bob"))
    await until(lambda: cluster.board.outcomes.get("a2:1") == "deferred")
    assert (await web.inspect("a2")).ownership == "queued"
    assert (await web.cancel("a2", "not needed")).state == "applied"
    assert (await second.wait(timeout=20)).outcome == Cancelled("not needed")
    for run_id in ("a1", "b1"):
        await web.cancel(run_id, "enough")


async def test_a_poison_run_is_left_to_a_person(cluster: Cluster) -> None:
    """RC-53: taken over three times without a fact of its runtime, then parked with a reason; abandon still works."""
    web = await cluster.web()

    async def poison(_start, _port) -> None:
        raise SystemError("boom")

    workers = [await cluster.worker(TurnStarted(1), poison)]
    run = await web.start(spec())
    result = await run.wait(timeout=20)
    assert result.view.status == "unknown"
    assert not result.settled
    assert (await web.abandon("r1", "it never works")).status == "unknown"
    assert workers[0].runtime.runs == ["r1"]


async def test_another_configuration_takes_over_by_the_declared_rule(cluster: Cluster) -> None:
    """RC-58 in a rolling deploy: without a rule the run waits for a worker of its own; with one the reason is recorded."""
    web = await cluster.web()
    held = spec(config_digest="old")
    run = await web.start(held, until="accepted")
    strict = await cluster.worker(TurnStarted(1), *END, config_digest="new")
    await until(lambda: cluster.board.outcomes.get("r1:1") == "refused")
    assert strict.runtime.runs == []
    with pytest.raises(RecoveryMismatch):
        await web.recover("r1")
    assert (await web.recover("r1", accept=Accept(config_change="deploy 42"))).ownership in (
        "elsewhere",
        "none",
    )
    assert (await run.wait(timeout=20)).outcome == Completed()


async def _all(runs: RunController, run_id: str) -> list:
    async with runs.stream(run_id) as items:
        return [item async for item in items]


async def test_what_is_missing_is_said(tmp_path: Path) -> None:
    """Bad input: a dispatcher over a journal of one machine, work without a dispatcher."""
    async with RunController(ScriptedRuntime()) as runs:
        with pytest.raises(UsageError, match="without a dispatcher"):
            runs.work()
    async with SQLiteJournal(tmp_path / "one.db") as journal:
        with pytest.raises(InvalidSpec, match="PostgresJournal"):
            RunController(ScriptedRuntime(), journal=journal, dispatcher=Board().dispatcher())
