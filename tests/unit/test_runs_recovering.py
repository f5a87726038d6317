"""The ways out of unknown: replay, query, reasons, what must not be (RC-53 … RC-59)."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from pilothouse.commands import Answer, Cancel, Command, InputAnswer, Request
from pilothouse.errors import OwnedElsewhere, RecoveryMismatch, Unsupported
from pilothouse.events import (
    Cancelled,
    Completed,
    ContinuityRestored,
    Noted,
    OutputAdded,
    RunEnded,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Accept, Descriptor, Draft, RunSpec, StatusAnswer
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal, ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import COMMANDS, Ask, Hold, Leave, ScriptedReplay

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1", **fields) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),), **fields)


def level(recovery: str | None) -> Descriptor:
    return Descriptor(
        "foreign", commands=COMMANDS, requests=("input",), cancel="confirmed", recovery=recovery
    )  # type: ignore[arg-type]


def replaying(*script, memory=None) -> ScriptedRuntime:
    return ScriptedRuntime(*script, descriptor=level("replay"), memory=memory)


class Told:
    """A foreign agent that tells what a test gives it."""

    def __init__(self, items, *, status: str = "attached", silent: bool = False, confirm=None) -> None:
        self.items, self.status, self.silent, self._confirm = list(items), status, silent, confirm
        self.confirmed: list[int] = []
        self.closed = 0
        self.ran = 0

    def describe(self) -> Descriptor:
        return level("replay")

    async def run(self, start, port) -> None:
        self.ran += 1
        await port.record(*END[1:])

    def replay(self, start, prefix):
        return self

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closed += 1

    async def __aiter__(self):
        for item in self.items:
            if isinstance(item, Exception):
                raise item
            yield item
        if self.silent:
            await asyncio.get_running_loop().create_future()

    async def confirm(self, port) -> None:
        self.confirmed.append(port.state.seq)
        if self._confirm is not None:
            raise self._confirm
        await port.record(
            Draft(TurnStarted(1), event_id="step:0:0")
        )  # an old event again: an exact duplicate
        await port.record(Draft(TurnEnded(1), event_id="e:end"), RunEnded(Completed()))


async def lost(journal, *script, spec_: RunSpec | None = None) -> list[Draft]:
    """A run of a foreign agent that broke off; what the agent knows of it."""
    runtime = replaying(*script)
    async with RunController(runtime, journal=journal) as runs:
        await (await runs.start(spec_ or spec())).wait()
    return runtime.memory.get("r1", [])


LOST = (TurnStarted(1), Noted("test/a"), OutputAdded("o1", "out", 1), Leave())


async def test_an_agent_that_tells_the_same_again_is_attached_and_goes_on() -> None:
    """RC-55, RC-56: nothing rebuilt runs before the restore is durable; old events again are duplicates."""
    journal = MemoryJournal()
    memory = await lost(journal, *LOST)
    agent = Told(memory)
    async with RunController(agent, journal=journal) as runs:
        view = await runs.recover("r1")
        assert view.status in ("running", "completed")
        assert (await runs.run("r1").wait()).outcome == Completed()
        facts = await runs.events("r1")
        (restored,) = [item for item in facts if isinstance(item.fact, ContinuityRestored)]
        assert (restored.fact.method, restored.fact.replayed) == ("replay", 3)
        assert restored.fact.prefix_chain == facts[restored.seq - 2].chain
        assert agent.confirmed == [restored.seq]
        assert [item.fact.kind for item in facts].count("turn_started") == 1
        await runs.join("r1")
        assert agent.closed == 1
    assert (await journal.verify()).problems == ()


async def test_what_the_controller_can_prove_need_not_be_told_again() -> None:
    """RC-55: notes, answers and settled requests are left out; an open request is not."""
    journal = MemoryJournal()
    question = Request("q1", "input", prompt="?")
    runtime = replaying(TurnStarted(1), Noted("test/a"), Ask(question), Leave())
    async with RunController(runtime, journal=journal) as runs:
        run = await runs.start(spec())
        while not (await run.inspect()).requests:
            await asyncio.sleep(0)
        await run.answer("q1", InputAnswer("yes"))
        await run.wait()
    memory = runtime.memory["r1"]
    async with RunController(Told(memory[:1]), journal=journal) as runs:
        await runs.recover("r1")
        assert (await runs.run("r1").wait()).outcome == Completed()


async def test_an_open_request_must_be_told_again() -> None:
    """RC §3.3: `request_opened` must come again while it is pending."""
    journal = MemoryJournal()
    question = Request("q1", "input", prompt="?")
    runtime = replaying(TurnStarted(1), Ask(question))
    async with RunController(runtime, journal=journal) as runs:
        run = await runs.start(spec())
        while not (await run.inspect()).requests:
            await asyncio.sleep(0)
        (task,) = [t for t in asyncio.all_tasks() if t.get_name() == "pilothouse-run-r1"]
        task.cancel()
        await run.wait()
    memory = runtime.memory["r1"]
    async with RunController(Told(memory[:1]), journal=journal) as runs:
        with pytest.raises(RecoveryMismatch, match="step:1:0"):
            await runs.recover("r1")


def _changed(memory: list[Draft]) -> list[Draft]:
    return [*memory[:2], replace(memory[2], fact=OutputAdded("o1", "out", 2))]


@pytest.mark.parametrize(
    ("agent", "code"),
    [
        (lambda memory: Told(_changed(memory)), "prefix"),  # other content
        (lambda memory: Told([memory[2], memory[0]]), "prefix"),  # another order
        (lambda memory: Told(memory[:2]), "prefix"),  # an early end
        (lambda memory: Told([memory[0], Draft(Noted("x/y"), event_id="foreign")]), "prefix"),  # a foreign event
        (lambda memory: Told([memory[0], Draft(OutputAdded("o1", "out", 1))]), "prefix"),  # no event id
        (lambda memory: Told([memory[0], RuntimeError("gone")]), "prefix"),  # an error
        (lambda memory: Told(memory[:1], silent=True), "timeout"),  # silence
        (lambda memory: Told([], status="absent"), "absent"),  # it has forgotten the run
    ],
)  # fmt: skip
async def test_a_retelling_that_differs_changes_nothing(agent, code: str) -> None:
    """RC-55, RC-57: still unknown, nothing written, the agent let go, and it can be tried again."""
    journal = MemoryJournal()
    memory = await lost(journal, *LOST)
    clock = StepClock()
    runtime = agent(memory)
    async with RunController(runtime, journal=journal, clock=clock, timing=RunTiming(replay_item=2)) as runs:
        before = await journal.head("r1")
        recovering = asyncio.ensure_future(runs.recover("r1"))
        await clock.advance(1.9)
        if code == "timeout":
            assert not recovering.done()
        await clock.advance(0.2)
        with pytest.raises(RecoveryMismatch) as caught:
            await recovering
        assert caught.value.code == code
        after = await journal.head("r1")
        assert (after.head, after.owner) == (before.head, None)
        assert (runtime.closed, runtime.confirmed, runtime.ran) == (1, [], 0)
        assert (await runs.inspect("r1")).status == "unknown"
    async with RunController(Told(memory), journal=journal) as runs:
        await runs.recover("r1")
        assert (await runs.run("r1").wait()).outcome == Completed()


@pytest.mark.parametrize("status", ["absent", "attached"])
async def test_without_a_prefix_an_absent_run_begins_again_and_an_attached_one_goes_on(status: str) -> None:
    """RC-57: silence proves nothing."""
    journal = MemoryJournal()
    await lost(journal, Leave())
    agent = Told([], status=status)
    async with RunController(agent, journal=journal) as runs:
        await runs.recover("r1")
        assert (await runs.run("r1").wait()).outcome == Completed()
        assert (agent.ran, len(agent.confirmed)) == ((1, 0) if status == "absent" else (0, 1))


async def test_a_confirm_that_fails_is_a_new_loss_with_its_error() -> None:
    """RC-56: `recovery_failed`; and a further recovery can mend it."""
    journal = MemoryJournal()
    memory = await lost(journal, *LOST)
    async with RunController(Told(memory, confirm=RuntimeError("no seat")), journal=journal) as runs:
        await runs.recover("r1")
        outcome = (await runs.run("r1").wait()).outcome
        assert outcome == Unknown("recovery_failed", "RuntimeError: no seat")
    async with RunController(Told(memory), journal=journal) as runs:
        await runs.recover("r1")
        assert (await runs.run("r1").wait()).outcome == Completed()


async def test_a_scripted_agent_recovers_by_replay_at_every_append() -> None:
    """RC-55, §5.14: cut before and after each append; the agent outlives the process."""
    script = (TurnStarted(1), Noted("test/a"), OutputAdded("o1", "out", 1), END)
    for at in range(1, 6):
        for when in ("before", "after"):
            inner = MemoryJournal()
            journal = FaultyJournal(inner)
            cut = journal.crash(at=at, when=when)
            first = replaying(*script)
            dead = RunController(first, journal=journal)
            starting = asyncio.ensure_future(dead.start(spec(), until="accepted"))
            await cut.reached.wait()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            if await inner.head("r1") is None:
                assert (at, when) == (1, "before")
                continue
            await inner.release(dead._fleet.owner)
            again = replaying(*script, memory=first.memory)
            async with RunController(again, journal=inner) as runs:
                await runs.recover("r1")
                assert (await runs.run("r1").wait()).outcome == Completed()
                kinds = [item.fact.kind for item in await runs.events("r1")]
                assert kinds.count("output_added") == kinds.count("turn_started") == 1
            assert (await inner.verify()).problems == ()


async def test_a_run_lost_by_a_violation_wants_a_reason_that_is_kept() -> None:
    """RC-58: only with `Accept(violation=...)`."""
    runtime = ScriptedRuntime(TurnStarted(1), TurnStarted(7))
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.wait()
        with pytest.raises(RecoveryMismatch) as caught:
            await run.recover()
        assert caught.value.code == "violation"
        assert (await run.cancel("stop")).code == "unknown"  # nor by a command
        runtime.script = (TurnStarted(1), END)
        await run.recover(accept=Accept(violation="looked at it"))
        assert (await run.wait()).outcome == Completed()
        (restored,) = [f.fact for f in await run.events() if isinstance(f.fact, ContinuityRestored)]
        assert restored.accepted == ("violation: looked at it",)


async def test_recover_of_a_healthy_or_ended_run_writes_nothing() -> None:
    """RC-54."""
    hold = Hold()
    async with RunController(ScriptedRuntime(TurnStarted(1), hold, END)) as runs:
        run = await runs.start(spec())
        seq = (await run.inspect()).last_seq
        assert (await run.recover()).status == "running"
        assert (await run.inspect()).last_seq == seq
        hold.release()
        await run.wait()
        seq = (await run.inspect()).last_seq
        assert (await run.recover()).status == "completed"
        assert (await run.inspect()).last_seq == seq


@pytest.mark.parametrize("recovery", ["query", None])
async def test_levels_without_evidence_cannot_recover(recovery: str | None) -> None:
    """RC §3.10: `Unsupported("recovery")`; a command for such a run is refused as unknown, without a trace."""
    runtime = ScriptedRuntime(TurnStarted(1), Leave(), descriptor=level(recovery))
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.wait()
        with pytest.raises(Unsupported) as caught:
            await run.recover()
        assert caught.value.code == "recovery"
        seq = (await run.inspect()).last_seq
        assert (await run.cancel("stop")).code == "unknown"
        assert (await run.inspect()).last_seq == seq
        expected = ("check_status", "abandon") if recovery == "query" else ("abandon",)
        assert (await run.inspect()).unknown.ways == expected


def asked(answer: StatusAnswer) -> ScriptedRuntime:
    return ScriptedRuntime(TurnStarted(1), Leave(), descriptor=level("query"), answer=answer)


async def test_an_agent_that_is_asked_and_does_not_know_changes_nothing() -> None:
    """RC-59: not conclusive, nothing is written."""
    runtime = asked(StatusAnswer("running", "busy", (Draft(TurnEnded(1), event_id="e1"),)))
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.wait()
        seq = (await run.inspect()).last_seq
        assert (await run.check_status()).kind == "running"
        assert ((await run.inspect()).last_seq, (await run.inspect()).status) == (seq, "unknown")
        assert runtime.queries[0].status == "unknown"


async def test_an_agent_that_tells_the_end_settles_the_run_in_one_append() -> None:
    """RC-59: restore and what it told; one question at a time."""
    drafts = (Draft(TurnEnded(1), event_id="e1"), Draft(RunEnded(Completed()), event_id="e2"))
    runtime = asked(StatusAnswer("settled", drafts=drafts))
    journal = FaultyJournal(MemoryJournal())
    async with RunController(runtime, journal=journal) as runs:
        run = await runs.start(spec())
        await run.wait()
        appends = sum(call == "append" for call, _ in journal.calls)
        answers = await asyncio.gather(*[run.check_status() for _ in range(5)])
        assert {answer.kind for answer in answers} == {"settled"}
        assert len(runtime.queries) == 1
        assert sum(call == "append" for call, _ in journal.calls) == appends + 1
        assert (await run.wait()).outcome == Completed()
        kinds = [item.fact.kind for item in await run.events()]
        assert kinds[-3:] == ["continuity_restored", "turn_ended", "run_ended"]
        assert (await run.check_status()).kind == "settled"


async def test_an_agent_that_tells_what_cannot_be_is_not_believed() -> None:
    """RC-59: `RecoveryMismatch`, nothing written, still unknown; a later, legal answer is taken."""
    runtime = asked(StatusAnswer("settled", drafts=(Draft(TurnEnded(9)), Draft(RunEnded(Completed())))))
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.wait()
        seq = (await run.inspect()).last_seq
        with pytest.raises(RecoveryMismatch):
            await run.check_status()
        assert ((await run.inspect()).last_seq, (await run.inspect()).status) == (seq, "unknown")
        runtime.answer = StatusAnswer("settled", drafts=(Draft(TurnEnded(1)), Draft(RunEnded(Completed()))))
        await run.check_status()
        assert (await run.wait()).outcome == Completed()


async def test_an_answer_that_comes_too_late_is_dropped() -> None:
    """RC-59: if the head moved meanwhile."""
    drafts = (Draft(TurnEnded(1)), Draft(RunEnded(Completed())))

    class Slow:
        def __init__(self) -> None:
            self.inner = asked(StatusAnswer("settled", drafts=drafts))
            self.asked, self.go = asyncio.Event(), asyncio.Event()

        def describe(self):
            return self.inner.describe()

        async def run(self, start, port) -> None:
            await self.inner.run(start, port)

        async def query(self, start, view):
            self.asked.set()
            await self.go.wait()
            return await self.inner.query(start, view)

    runtime = Slow()
    async with RunController(runtime) as runs:
        run = await runs.start(spec())
        await run.wait()
        asking = asyncio.ensure_future(run.check_status())
        await runtime.asked.wait()
        await run.abandon("never mind", by="me")
        runtime.go.set()
        assert (await asking).kind == "settled"
        assert (await run.inspect()).outcome == Unknown("eof", "never mind", settled=True, by="me")


async def test_an_answer_received_before_a_crash_is_offered_again() -> None:
    """RC-38, RC-41: by a repeat of the command, by `recover`, on opening, or because another one comes; its effect is there once."""
    question = Request("q1", "input", prompt="?")
    command = Command("c1", "r1", Answer("q1", InputAnswer("yes")))
    for way in ("repeat", "recover", "open", "another", "by hand"):
        inner = MemoryJournal()
        journal = FaultyJournal(inner)
        script = (TurnStarted(1), Ask(question), END)
        dead = RunController(ScriptedRuntime(*script), journal=journal)
        run = await dead.start(spec())
        while not (await run.inspect()).requests:
            await asyncio.sleep(0)
        cut = journal.crash(at=1, when="after", on=("append",))
        answering = asyncio.ensure_future(dead.command(command))
        await cut.reached.wait()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        await inner.release(dead._fleet.owner)
        auto = {"open": "on_open", "by hand": "never"}.get(way, "on_command")
        async with RunController(ScriptedRuntime(*script), journal=inner, auto_recover=auto) as runs:
            if way == "repeat":
                assert (await runs.command_ack("r1", "c1")).state == "received"
                assert (await runs.command(command)).state == "applied"
            elif way == "another":  # the first one stands, and is under way
                other = await runs.command(Command("c2", "r1", Answer("q1", InputAnswer("no"))))
                assert (other.state, other.code) == ("rejected", "request_busy")
            elif way == "by hand":
                again = await runs.command(command)
                assert (again.state, again.duplicate) == ("received", True)
                assert runs.runtime.resumes == []
                await runs.recover("r1")
            elif way == "recover":
                await runs.recover("r1")
            assert (await runs.run("r1").wait()).outcome == Completed()
            assert (await runs.command_ack("r1", "c1")).state == "applied"
            resolved = [item.fact for item in await runs.events("r1") if item.fact.kind == "request_resolved"]
            assert [fact.resolution for fact in resolved] == [InputAnswer("yes")]


async def test_a_run_that_is_live_elsewhere_is_not_recovered() -> None:
    """RC-54, RC-49."""
    journal = MemoryJournal()
    hold = Hold()
    first = RunController(ScriptedRuntime(TurnStarted(1), hold, END), journal=journal)
    await first.start(spec())
    second = RunController(ScriptedRuntime(), journal=journal)
    with pytest.raises(OwnedElsewhere):
        await second.recover("r1")
    hold.release()
    assert (await first.run("r1").wait()).outcome == Completed()
    await first.aclose()
    await second.aclose()


def test_a_scripted_replay_says_whether_the_agent_knows_the_run() -> None:
    """RC-57: a run that it never had is absent."""
    assert ScriptedReplay(replaying(), _start("nothing")).status == "absent"


def _start(run_id: str):
    from pilothouse.records import Start

    return Start(spec(run_id), (), "", "b", "", 1, "")


async def test_a_stop_that_takes_a_lost_run_up_is_acknowledged_as_it_is_recorded() -> None:
    """RC-29, RC-53: also where the run is over and out of memory before its command is answered."""
    async with RunController(ScriptedRuntime(TurnStarted(1), Leave())) as runs:
        run = await runs.start(spec())
        assert isinstance((await run.wait()).outcome, Unknown)
        await runs.join("r1")
        command = Command("c1", "r1", Cancel("enough"))
        ack = await runs.command(command)
        assert (ack.state, ack.code) == ("applied", "")
        assert (await run.wait()).outcome == Cancelled("enough", "user")
        again = await runs.command(command)
        assert (again.state, again.code, again.duplicate) == ("applied", "", True)
