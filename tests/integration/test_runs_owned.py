"""Ownership, recovery and rest over a real SQLite file: two controllers stand for two processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pilothouse.commands import Answer, Cancel, Command, InputAnswer, Request
from pilothouse.contracts import RunPort
from pilothouse.errors import (
    InvalidCommand,
    NotControllable,
    OwnedElsewhere,
    RecoveryMismatch,
    RunNotFound,
    Unsupported,
)
from pilothouse.events import (
    Cancelled,
    Completed,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RequestOpened,
    RequestResolved,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Accept, Descriptor, RunQuery, RunSpec, Start
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing.clock import StepClock


class Asking:
    """A runtime that asks one question and completes with its answer; `half` tells text first and hangs."""

    def __init__(self, *, hang: bool = False, recovery: str | None = "journal") -> None:
        self.hang = hang
        self.recovery = recovery
        self.resumed = 0
        self.told: set[str] = set()

    def describe(self) -> Descriptor:
        return Descriptor(
            "asking",
            commands=("cancel", "answer"),
            requests=("input",),
            cancel="confirmed",
            recovery=self.recovery,
        )  # type: ignore[arg-type]

    async def run(self, start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(1), ModelRequested(1, 1, "m1"))
        port.tell(TextTold("m1", 0, "half"))
        self.told.add(start.spec.run_id)
        if self.hang:
            await port.scope.wait()
            return
        await port.record(
            ModelAttemptEnded(1, 1, "answered"), RequestOpened(Request("q1", "input", prompt="Go on?"))
        )
        await self._go_on(port)

    async def resume(self, start: Start, port: RunPort) -> None:
        self.resumed += 1
        if port.scope.cancelled:
            return
        if port.state.requests:
            await self._go_on(port)
            return
        await port.record(ModelAttemptEnded(1, 1, "interrupted"))
        await self._finish(port, "resumed")

    async def _go_on(self, port: RunPort) -> None:
        await port.commands.wait("answer")
        pending = port.commands.take("answer")
        assert pending is not None
        body = pending.command.body
        from pilothouse.records import Draft

        await port.record(
            Draft(RequestResolved(body.request_id, body.resolution), causation=pending.command.id)
        )
        await self._finish(port, str(body.resolution.content))

    async def _finish(self, port: RunPort, text: str) -> None:
        await port.record(MessageAdded(Message("answer", "assistant", (Text(text),)), 1), TurnEnded(1))
        await port.record(RunEnded(Completed()))


def spec(run_id: str = "r1") -> RunSpec:
    return RunSpec(run_id, f"thread-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),))


@pytest.fixture
async def journal(tmp_path: Path):
    async with SQLiteJournal(tmp_path / "runs.db", durability="off") as opened:
        yield opened


async def asked(runs: RunController, run_id: str = "r1") -> None:
    """Waits until the run asks."""
    async with runs.stream(run_id) as items:
        async for item in items:
            if getattr(getattr(item, "fact", None), "kind", "") == "request_opened":
                return


async def told(runs: RunController, run_id: str = "r1") -> None:
    """Waits until the run has told its text."""
    runtime = runs.runtime
    while run_id not in runtime.told:
        await asyncio.sleep(0)


def crash(controller: RunController) -> None:
    """What a dead process leaves: tasks gone, nothing written, the lease still there."""
    for live in controller._fleet.live.values():
        live.over = True
        live.writer.close("dead")
        if live.task is not None:
            live.task.cancel()
    controller._fleet.agenda._closed = True
    controller._fleet.agenda._heap.clear()


async def test_a_run_owned_by_a_living_controller_is_readable_but_not_controllable(journal) -> None:
    """RC-48, RC-49: reading takes nothing over and changes no row; commands name the owner."""
    first, second = RunController(Asking(), journal=journal), RunController(Asking(), journal=journal)
    run = await first.start(spec())
    await asked(first)
    before = await journal.head("r1")
    assert (await second.inspect("r1")).ownership == "elsewhere"
    assert (await second.events("r1"))[-1].fact.kind == "request_opened"
    assert (await second.catalog_runs()).items[0].ownership == "elsewhere"
    assert await journal.head("r1") == before
    with pytest.raises(OwnedElsewhere):
        await second.cancel("r1", "mine now")
    with pytest.raises(OwnedElsewhere):
        await second.recover("r1")
    with pytest.raises(OwnedElsewhere):
        await second.abandon("r1", "no")
    assert (await run.answer("q1", InputAnswer("yes"))).state == "applied"
    assert (await second.wait_for_terminal("r1")).outcome == Completed()
    await first.aclose()
    await second.aclose()


async def test_a_follower_in_another_controller_sees_the_same_facts(journal) -> None:
    """RC-65: by `changed`, in order, each once, to the end."""
    first, second = RunController(Asking(), journal=journal), RunController(Asking(), journal=journal)
    await first.start(spec())
    await asked(first)

    async def follow() -> list[int]:
        return [item.seq async for item in second.stream("r1", deltas=False)]

    following = asyncio.ensure_future(follow())
    await first.run("r1").answer("q1", InputAnswer("yes"))
    seqs = await following
    assert seqs == list(range(1, len(seqs) + 1))
    assert seqs[-1] == (await first.inspect("r1")).last_seq
    await first.aclose()
    await second.aclose()


async def test_closing_records_what_was_lost_and_releases_what_was_at_rest(journal) -> None:
    """RC-52: text is flushed, the run in a model call is lost by a shutdown, the one that asks stays waiting."""
    first = RunController(Asking(), journal=journal)
    await first.start(spec("rest"))
    await asked(first, "rest")
    hanging = RunController(Asking(hang=True), journal=journal)
    await hanging.start(spec("hang"))
    await told(hanging, "hang")
    await first.aclose()
    await hanging.aclose()

    later = RunController(Asking(), journal=journal)
    resting = await later.inspect("rest")
    assert (resting.status, resting.ownership, len(resting.requests)) == ("waiting", "parked", 1)
    lost = await later.inspect("hang")
    assert (lost.status, lost.unknown.cause) == ("unknown", "shutdown")
    assert (await later.history("hang"))[-1].message.text == "half"
    await later.aclose()


async def test_a_run_at_rest_is_answered_in_a_fresh_process(journal) -> None:
    """RC-50, RC-51 [125]: listed with the same request, claimed by the answer, no loss in its facts."""
    first = RunController(Asking(), journal=journal)
    await first.start(spec())
    await asked(first)
    await first.aclose()
    runtime = Asking()
    async with RunController(runtime, journal=journal) as later:
        ack = await later.run("r1").answer("q1", InputAnswer("yes"))
        assert ack.state in ("accepted", "applied")
        assert (await later.run("r1").result()).outcome == Completed()
        kinds = [record.fact.kind for record in await later.events("r1")]
        assert "continuity_lost" not in kinds
        assert runtime.resumed == 1
        assert (await later.history("r1"))[-1].message.text == "yes"


async def test_a_takeover_fences_the_old_writer(journal) -> None:
    """RC-16, RC-49 [140]: correctness rests on the fence; the old writer's next append is refused by the store."""
    clock = StepClock()
    timing = RunTiming(lease=30)
    old = RunController(Asking(), journal=journal, clock=clock, timing=timing)
    await old.start(spec())
    await asked(old)
    await journal.release(old._fleet.owner)  # as if its lease had ended while it was frozen
    new = RunController(Asking(), journal=journal, clock=clock, timing=timing)
    await new.run("r1").answer("q1", InputAnswer("new"))
    assert (await new.run("r1").wait()).outcome == Completed()
    ack = await old.command(Command("late", "r1", Answer("q1", InputAnswer("old"))))
    assert ack.state == "rejected"
    assert (await new.history("r1"))[-1].message.text == "new"
    assert (await journal.verify()).problems == ()
    crash(old)
    await new.aclose()


@pytest.mark.parametrize("way", ["recover", "abandon", "cancel"])
async def test_an_orphan_is_shown_unknown_and_left_by_evidence_or_decision(journal, way: str) -> None:
    """RC-50, RC-53, RC-54, RC-60: without a write; recover resumes, abandon settles, a cancel recovers first."""
    dead = RunController(Asking(hang=True), journal=journal)
    await dead.start(spec())
    await told(dead)
    crash(dead)
    await journal.release(dead._fleet.owner)
    head = await journal.head("r1")
    runtime = Asking()
    async with RunController(runtime, journal=journal) as runs:
        view = await runs.inspect("r1")
        assert (view.status, view.ownership, view.unknown.ways) == (
            "unknown",
            "orphaned",
            ("recover", "abandon"),
        )
        assert (await runs.wait_for_terminal("r1")).settled is False
        assert (await journal.head("r1")).head == head.head
        if way == "recover":
            await asyncio.gather(*[runs.recover("r1") for _ in range(5)])
            assert (await runs.run("r1").result()).outcome == Completed()
            assert runtime.resumed == 1
        elif way == "abandon":
            with pytest.raises(InvalidCommand):
                await runs.abandon("r1", "  ")
            view = await runs.abandon("r1", "not needed", by="me")
            assert view.outcome == Unknown("owner_lost", "not needed", settled=True, by="me")
            with pytest.raises(InvalidCommand):
                await runs.abandon("r1", "again")
        else:
            ack = await runs.command(Command("c1", "r1", Cancel("stop it")))
            assert ack.state == "applied"
            assert (await runs.run("r1").wait()).outcome == Cancelled("stop it")


async def test_another_contract_or_configuration_is_not_taken_over_silently(journal) -> None:
    """RC-58, RC-66, RC-85: readable, not controllable; abandon still works; a changed configuration wants a reason."""
    dead = RunController(Asking(hang=True), journal=journal)
    await dead.start(spec())
    await told(dead)
    crash(dead)
    await journal.release(dead._fleet.owner)
    async with RunController(Asking(recovery=None), journal=journal) as other:
        assert not await other.can_control_run("r1")
        assert not (await other.catalog_runs()).items[0].can_control
        assert (await other.initial_input("r1"))[0].text == "hi"
        for call in (other.cancel("r1", "x"), other.recover("r1"), other.check_status("r1")):
            with pytest.raises(NotControllable):
                await call
        assert (await other.abandon("r1", "left by an upgrade")).status == "unknown"
        with pytest.raises(RunNotFound):
            await other.inspect("nothing")
        assert not await other.has_run("nothing")
    async with RunController(Asking(hang=True, recovery=None), journal=journal) as plain:
        run = await plain.start(spec("r2"))
        await run.cancel("enough")
        await run.wait()
        with pytest.raises(Unsupported):
            await plain.check_status("r2")

    class Configured(Asking):
        config_digest = "new"

    started = RunController(Asking(hang=True), journal=journal)
    from msgspec.structs import replace

    await started.start(replace(spec("r3"), config_digest="old"))
    await told(started, "r3")
    crash(started)
    await journal.release(started._fleet.owner)
    async with RunController(Configured(), journal=journal) as runs:
        with pytest.raises(RecoveryMismatch, match="config_change"):
            await runs.recover("r3")
        await runs.recover("r3", accept=Accept(config_change="the new prompt is better"))
        assert (await runs.run("r3").result()).outcome == Completed()
        restored = [f.fact for f in await runs.events("r3") if f.fact.kind == "continuity_restored"]
        assert restored[0].accepted == ("config_change: the new prompt is better",)


async def test_lost_runs_are_recovered_on_opening_where_asked_for(journal) -> None:
    """RC-53: on_open takes them up; after three takeovers without a fact of the runtime nobody tries by himself."""
    dead = RunController(Asking(hang=True), journal=journal)
    for name in ("a", "b"):
        await dead.start(spec(name))
        await told(dead, name)
    crash(dead)
    await journal.release(dead._fleet.owner)
    async with RunController(Asking(), journal=journal, auto_recover="on_open") as runs:
        assert (await runs.run("a").result()).outcome == Completed()
        assert (await runs.run("b").result()).outcome == Completed()
        page = await runs.catalog_runs(RunQuery(statuses=("completed",)))
        assert {entry.run_id for entry in page.items} == {"a", "b"}


async def test_ended_runs_leave_memory(journal) -> None:
    """RC-73: after `keep_finished` nothing of them is alive here, and they are still readable."""
    clock = StepClock()
    async with RunController(
        Asking(), journal=journal, clock=clock, timing=RunTiming(keep_finished=60)
    ) as runs:
        run = await runs.start(spec())
        await asked(runs)
        await run.answer("q1", InputAnswer("yes"))
        await run.wait()
        assert "r1" in runs._fleet.live
        await clock.advance(61)
        assert "r1" not in runs._fleet.live
        assert (await run.inspect()).status == "completed"
