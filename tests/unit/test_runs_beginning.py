"""Starts over a journal that takes its time, fails or is cut off: one run, one drive, nobody left hanging."""

from __future__ import annotations

import asyncio

import pytest

from pilothouse.commands import Cancel, Command, InputAnswer, Request
from pilothouse.contracts import Journal
from pilothouse.core.canonical import digest, digest_of
from pilothouse.errors import JournalUnavailable, RunConflict, Unsupported, UsageError
from pilothouse.events import Cancelled, Completed, Noted, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import MemoryJournal
from pilothouse.messages import Message, Text
from pilothouse.records import Descriptor, Parent, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunTiming
from pilothouse.testing import FaultyJournal, ScriptedRuntime, StepClock
from pilothouse.testing.runtimes import COMMANDS, Ask, Hold, Leave, UntilStopped

END = (TurnEnded(1), RunEnded(Completed()))


def spec(run_id: str = "r1", thread_id: str = "t", **more) -> RunSpec:
    return RunSpec(run_id, thread_id, (Message(f"{run_id}.0", "user", (Text("hi"),)),), **more)


def descriptor(**more) -> Descriptor:
    return Descriptor(
        "scripted",
        commands=COMMANDS,
        requests=("input",),
        cancel="confirmed",
        **{"recovery": "journal", "thread_reuse": "sequential"} | more,
    )


async def passes(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_command_for_a_run_that_is_being_registered_waits_for_it() -> None:
    """RC-14, RC-39, RC-50: committed and not heard of yet, the run is ours: not lost, not recovered, driven once."""
    journal = FaultyJournal(MemoryJournal())
    runtime = ScriptedRuntime(TurnStarted(1), UntilStopped(), Leave())
    async with RunController(runtime, journal=journal) as runs:
        slow = journal.hang(when="after", on=("create",))
        starting = asyncio.ensure_future(runs.start(spec()))
        await slow.reached.wait()
        view = await runs.inspect("r1")
        assert (view.status, view.ownership) == ("accepted", "here")
        stopping = asyncio.ensure_future(runs.command(Command("c1", "r1", Cancel("too late"))))
        recovering = asyncio.ensure_future(runs.recover("r1"))
        subscribing = asyncio.ensure_future(runs.subscribe("r1"))
        await passes()
        assert not stopping.done()
        slow.release()
        await starting
        assert (await stopping).state == "applied"
        await recovering
        assert [item async for item in await subscribing]
        assert (await runs.run("r1").wait()).outcome == Cancelled("too late")
        assert (runtime.runs, runtime.resumes) == (["r1"], [])
        assert (await journal.head("r1")).fence == 1


async def test_a_registration_whose_caller_left_is_driven_all_the_same() -> None:
    """RC-14, RC-33: acting hangs on the commit, not on who asked; a repeat finds the run."""
    journal = FaultyJournal(MemoryJournal())
    runtime = ScriptedRuntime()
    async with RunController(runtime, journal=journal) as runs:
        slow = journal.hang(when="after", on=("create",))
        starting = asyncio.ensure_future(runs.start(spec()))
        await slow.reached.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        slow.release()
        run = await runs.start(spec())
        assert run.reopened
        assert (await run.wait()).outcome == Completed()
        assert runtime.runs == ["r1"]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_start_whose_commit_is_uncertain_can_be_repeated(when: str) -> None:
    """RC-15, RC-32, JR-23: stored or not, the repeat drives the run, once."""
    journal = FaultyJournal(MemoryJournal())
    runtime = ScriptedRuntime()
    async with RunController(runtime, journal=journal) as runs:
        journal.fail(when=when, on=("create",))
        with pytest.raises(JournalUnavailable):
            await runs.start(spec())
        assert runtime.runs == []
        run = await runs.start(spec())
        assert run.reopened == (when == "after")
        assert (await run.wait()).outcome == Completed()
        assert (await runs.start(spec())).reopened
        assert runtime.runs == ["r1"]
        kinds = [record.fact.kind for record in await run.events()]
        assert (kinds[:2], kinds[-1]) == (["run_accepted", "run_started"], "run_ended")


async def test_a_run_that_cannot_be_begun_is_lost_and_nobody_waits_for_it() -> None:
    """RC-46, RC-64: registered, and what stands in front of it cannot be read."""
    journal = FaultyJournal(MemoryJournal())
    async with RunController(ScriptedRuntime(), journal=journal) as runs:
        await (await runs.start(spec("r1"))).wait()
        slow = journal.hang(when="after", on=("create",))
        starting = asyncio.ensure_future(runs.start(spec("r2", parent=Parent("r1"))))
        await slow.reached.wait()
        runs._fleet.paths._kept.clear()  # as if many threads had been looked at meanwhile
        journal.fail(on=("head",))
        slow.release()
        with pytest.raises(JournalUnavailable):
            await starting
        result = await runs.run("r2").wait()
        assert (result.outcome.cause, result.settled) == ("error", False)
        await runs.recover("r2")
        assert (await runs.run("r2").wait()).outcome == Completed()


async def test_closing_waits_for_a_start_that_is_under_way() -> None:
    """RC-52: what becomes live while the controller closes is closed with the rest; a hung registration is left."""
    inner = MemoryJournal()
    for released in (True, False):
        clock, journal = StepClock(), FaultyJournal(inner)
        runs = RunController(ScriptedRuntime(TurnStarted(1), Hold()), journal=journal, clock=clock)
        slow = journal.hang(when="after", on=("create",))
        run_id = f"r-{released}"
        starting = asyncio.ensure_future(runs.start(spec(run_id, run_id)))
        await slow.reached.wait()
        closing = asyncio.ensure_future(runs.aclose())
        await passes()
        if released:
            slow.release()
            await starting
        else:
            await clock.advance(12)
            with pytest.raises(UsageError, match="closed"):
                await starting
        await closing
        head = await inner.head(run_id)
        assert head.owner is None
        assert head.summary.loss_recorded == released


def test_the_identity_of_a_start_is_its_content_its_binding_and_its_contract() -> None:
    """RC-7: nothing else; the model and the prompt come in by the specification's `config_digest`."""

    async def identity(given: RunSpec, binding: str = "b", **more) -> str:
        journal = MemoryJournal()
        async with RunController(
            ScriptedRuntime(descriptor=descriptor(**more)), binding, journal=journal
        ) as runs:
            await runs.start(given)
            registration = (await journal.head(given.run_id)).registration
            text = f"{digest_of(registration.spec)}\n{binding}\n{runs.descriptor.digest}"
            assert registration.identity == digest(text.encode())
            assert registration.descriptor_digest == digest_of(runs.descriptor.descriptor)
            return registration.identity

    async def main() -> None:
        first = await identity(spec())
        assert await identity(spec()) == first
        others = [
            await identity(spec(config_digest="another prompt")),
            await identity(spec(options={"x": 1})),
            await identity(spec(), "other"),
            await identity(spec(), recovery=None),
        ]
        assert len({first, *others}) == 5

    asyncio.run(main())


async def test_a_start_under_another_binding_or_configuration_is_a_conflict() -> None:
    """RC-7, RC-33: the same id stands for one identity."""
    journal = MemoryJournal()
    async with RunController(ScriptedRuntime(), "one", journal=journal) as runs:
        await (await runs.start(spec())).wait()
        with pytest.raises(RunConflict):
            await runs.start(spec(config_digest="new"))
    async with RunController(ScriptedRuntime(), "two", journal=journal) as runs:
        with pytest.raises(RunConflict):
            await runs.start(spec())


async def busy(runs: RunController, run_id: str) -> bool:
    try:
        await runs.start(spec(run_id))
    except Unsupported as error:
        return error.code == "thread_busy"
    return False


@pytest.mark.parametrize("reuse", ["none", "sequential", "parallel"])
async def test_a_thread_takes_as_many_runs_as_the_runtime_can_have_in_it(reuse: str) -> None:
    """RC-35: none: one for ever; sequential: one after the other; parallel: any. Other threads are untouched."""
    hold = Hold()
    runtime = ScriptedRuntime(TurnStarted(1), hold, END, descriptor=descriptor(thread_reuse=reuse))
    journal = MemoryJournal()
    async with RunController(runtime, journal=journal) as runs:
        first = await runs.start(spec("r1"))
        assert await busy(runs, "r2") == (reuse != "parallel")
        assert (await runs.start(spec("r1"))).reopened  # a repeat asks for nothing new
        await runs.start(spec("o1", "other"))
        hold.release()
        await first.wait()
        assert await busy(runs, "r3") == (reuse == "none")
        assert await runs.has_run("r3") == (reuse != "none")


async def test_a_run_at_rest_or_of_another_process_keeps_its_thread() -> None:
    """RC-35: live is what is neither ended nor unknown, whoever drives it; an orphan is unknown."""
    journal: Journal = MemoryJournal()
    script = (TurnStarted(1), Ask(Request("q1", "input", prompt="?")), END)

    def controller(clock: StepClock | None = None) -> RunController:
        runtime = ScriptedRuntime(*script, descriptor=descriptor())
        return RunController(runtime, journal=journal, clock=clock, timing=RunTiming(park_after=5))

    clock = StepClock()
    async with controller(clock) as first, controller() as second:
        await first.start(spec("r1"))
        await passes()
        assert await busy(second, "r2")  # live elsewhere
        await clock.advance(6)
        assert (await first.inspect("r1")).ownership == "parked"
        assert await busy(first, "r2")
        assert await busy(second, "r2")
        await second.run("r1").answer("q1", InputAnswer("yes"))
        assert (await second.run("r1").wait()).outcome == Completed()
        assert not await busy(first, "r2")
        await passes()
        other = RunController(ScriptedRuntime(Noted("test/x"), Hold()), "other", journal=journal)
        assert not await busy(other, "r3")  # another contract is another agent: its threads are its own
        await other.aclose()
