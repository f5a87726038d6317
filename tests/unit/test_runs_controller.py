"""The run controller over the memory journal: one run from its registration to its end."""

from __future__ import annotations

import pytest

from pilothouse.commands import Cancel, Command
from pilothouse.contracts import RunPort
from pilothouse.errors import CommandConflict, InvalidSpec, OutcomeError, RunConflict, StartRefused
from pilothouse.events import (
    ArgumentsTold,
    Cancelled,
    Completed,
    Delta,
    Failed,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    RunEnded,
    TextTold,
    TurnEnded,
    TurnStarted,
    Unknown,
)
from pilothouse.messages import Message, Text
from pilothouse.records import Descriptor, Record, RunSpec, Start
from pilothouse.runs.controller import RunController


class Scripted:
    """A runtime that does what its script says."""

    def __init__(self, work) -> None:
        self.work = work
        self.entered = 0

    def describe(self) -> Descriptor:
        return Descriptor(
            "scripted", commands=("cancel", "steer", "answer"), cancel="confirmed", recovery="journal"
        )

    async def run(self, start: Start, port: RunPort) -> None:
        self.entered += 1
        await self.work(start, port)

    resume = run


async def answer(start: Start, port: RunPort, text: str = "hello") -> None:
    message_id = f"{start.spec.run_id}.1"
    await port.record(TurnStarted(1))
    await port.record(ModelRequested(1, 1, message_id))
    for piece in text:
        port.tell(TextTold(message_id, 0, piece))
    await port.record(
        ModelAttemptEnded(1, 1, "answered"), MessageAdded(Message(message_id, "assistant", (Text(text),)), 1)
    )
    await port.record(TurnEnded(1))
    await port.record(RunEnded(Completed()))


async def hang(start: Start, port: RunPort) -> None:
    await port.record(TurnStarted(1))
    await port.record(ModelRequested(1, 1, "m"))
    port.tell(TextTold("m", 0, "half an ans"))
    await port.scope.wait()


def spec(run_id: str = "r1", text: str = "hi", thread_id: str = "t1") -> RunSpec:
    return RunSpec(run_id, thread_id, (Message(f"{run_id}.0", "user", (Text(text),)),))


async def test_a_run_is_recorded_in_order_and_ends_once() -> None:
    """RC-10, RC-12, RC-29: gap-free numbers from 1, one end, the message in the history."""
    async with RunController(Scripted(answer)) as runs:
        run = await runs.start(spec())
        result = await run.result()
        facts = await run.events()
        assert [record.seq for record in facts] == list(range(1, len(facts) + 1))
        assert [record.fact.kind for record in facts] == [
            "run_accepted", "run_started", "turn_started", "model_requested", "model_attempt_ended",
            "message_added", "turn_ended", "run_ended",
        ]  # fmt: skip
        assert result.outcome == Completed()
        assert [(entry.message.role, entry.message.text) for entry in await run.history()] == [
            ("user", "hi"),
            ("assistant", "hello"),
        ]


async def test_equal_starts_make_one_run_and_other_content_is_a_conflict() -> None:
    """RC-33: the run id is the idempotency key."""
    runtime = Scripted(answer)
    async with RunController(runtime) as runs:
        first = await runs.start(spec())
        again = await runs.start(spec())
        assert (first.reopened, again.reopened, runtime.entered) == (False, True, 1)
        await again.result()
        assert (await runs.start(spec())).reopened
        with pytest.raises(RunConflict):
            await runs.start(spec(text="other"))
        assert runtime.entered == 1


async def test_a_stop_ends_cancelled_and_the_text_that_was_told_stays() -> None:
    """RC-19, RC-39, RC-40: the end after our stop is the evidence; the partial is in the history, marked."""
    async with RunController(Scripted(hang)) as runs:
        run = await runs.start(spec())
        async with await run.subscribe() as seen:
            ack = await run.cancel("enough")
            assert ack.state == "applied"
            result = await run.wait()
            assert result.outcome == Cancelled("enough")
            kinds = [item.fact.kind async for item in seen if type(item) is Record]
            assert kinds[-1] == "run_ended"
        last = (await run.history())[-1]
        assert (last.message.text, last.complete) == ("half an ans", False)
        assert (await run.cancel("again")).code == "ended"


async def test_a_command_is_acknowledged_again_without_being_forwarded() -> None:
    """RC-36, RC-37: same id and content, same ack; other content is a conflict and leaves no trace."""
    async with RunController(Scripted(hang)) as runs:
        run = await runs.start(spec())
        command = Command("c1", "r1", Cancel("enough"))
        first = await run.command(command)
        seq = (await run.inspect()).last_seq
        again = await run.command(command)
        assert (again.duplicate, again.applied_seq) == (True, first.applied_seq)
        assert (await run.inspect()).last_seq >= seq
        with pytest.raises(CommandConflict):
            await run.command(Command("c1", "r1", Cancel("other")))


async def test_a_runtime_that_leaves_without_an_end_makes_the_run_unknown() -> None:
    """RC §3.8: silence is never completed, failed or cancelled."""

    async def leave(start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(1))

    async with RunController(Scripted(leave)) as runs:
        run = await runs.start(spec())
        result = await run.wait()
        assert isinstance(result.outcome, Unknown)
        assert not result.settled
        assert (result.view.status, result.view.unknown.ways) == ("unknown", ("recover", "abandon"))
        with pytest.raises(OutcomeError):
            result.raise_for_outcome()
        view = await run.abandon("nobody knows", by="tester")
        assert view.outcome == Unknown("eof", "nobody knows", settled=True, by="tester")


async def test_a_recovered_run_goes_on_from_its_facts() -> None:
    """RC-54: loss, restore, then `resume`; the same run completes."""
    left = []

    async def work(start: Start, port: RunPort) -> None:
        if not left:
            left.append(1)
            await port.record(TurnStarted(1))
            return
        message = Message("late", "assistant", (Text("late"),))
        await port.record(ModelRequested(1, 1, "late"))
        await port.record(ModelAttemptEnded(1, 1, "answered"), MessageAdded(message, 1))
        await port.record(TurnEnded(1), RunEnded(Completed()))

    async with RunController(Scripted(work)) as runs:
        run = await runs.start(spec())
        await run.wait()
        await run.recover()
        assert (await run.result()).outcome == Completed()
        kinds = [record.fact.kind for record in await run.events()]
        assert kinds.index("continuity_restored") == kinds.index("continuity_lost") + 1


async def test_a_runtime_that_breaks_the_contract_is_unknown_with_the_evidence() -> None:
    """RC §3.5: a violation is kept as a fact and the run is given up, not guessed."""

    async def wrong(start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(7))

    async with RunController(Scripted(wrong)) as runs:
        run = await runs.start(spec())
        await run.wait()
        kinds = [record.fact.kind for record in await run.events()]
        assert kinds[-2:] == ["violation_recorded", "continuity_lost"]


async def test_a_refused_start_is_told_and_recorded() -> None:
    """RC-34: a promise that no work exists."""

    async def refuse(start: Start, port: RunPort) -> None:
        raise StartRefused("no_seat", "all seats are taken", retryable=True)

    async with RunController(Scripted(refuse)) as runs:
        with pytest.raises(StartRefused, match="all seats"):
            await runs.start(spec())
        assert (await runs.inspect("r1")).status == "failed"


async def test_a_spec_that_cannot_be_leaves_no_trace() -> None:
    """RC-31: checked before anything is written."""
    async with RunController(Scripted(answer)) as runs:
        for bad in (RunSpec("", "t"), RunSpec("r\n1", "t"), RunSpec("r1", "t"), spec(run_id="x" * 201)):
            with pytest.raises(InvalidSpec):
                await runs.start(bad)
        assert (await runs.catalog_runs()).items == ()


async def test_a_stream_replays_then_goes_live_without_a_gap() -> None:
    """RC-63, RC-20: from any cursor, strictly ascending; deltas carry offsets that say what a reader has."""
    async with RunController(Scripted(answer)) as runs:
        run = await runs.start(spec(), until="accepted")
        live = [item async for item in run.stream()]
        seqs = [item.seq for item in live if type(item) is Record]
        assert seqs == list(range(1, len(seqs) + 1))
        told = [item.body for item in live if type(item) is Delta]
        assert [(body.offset, body.text) for body in told] == list(enumerate("hello"))
        later = [item.seq async for item in run.stream(after=3)]
        assert later == seqs[3:]


async def test_a_loss_that_was_mended_does_not_end_a_replay() -> None:
    """RC-64: a stream ends at a loss only if nothing followed it."""

    async def once(start: Start, port: RunPort) -> None:
        if port.state.seq < 4:
            await port.record(TurnStarted(1))
            raise RuntimeError("boom")
        await port.record(TurnEnded(1), RunEnded(Completed()))

    async with RunController(Scripted(once)) as runs:
        run = await runs.start(spec())
        assert [item.fact.kind async for item in run.stream()][-1] == "continuity_lost"
        await run.recover()
        await run.wait()
        kinds = [item.fact.kind async for item in run.stream()]
        assert "continuity_restored" in kinds
        assert kinds[-1] == "run_ended"


async def test_what_is_there_is_taken_at_once() -> None:
    """SV-43: deltas that wait are taken without waiting; a fact in front of them is not passed by."""
    async with RunController(Scripted(answer)) as runs:
        run = await runs.start(spec(), until="accepted")
        async with run.stream() as follower:
            kinds: list[str] = []
            async for item in follower:
                kinds.append(item.fact.kind if type(item) is Record else "delta")
                while follower.delta_nowait() is not None:
                    kinds.append("taken")
        assert kinds.count("delta") + kinds.count("taken") == len("hello")
        assert kinds[-1] == "run_ended"


async def test_a_call_that_was_only_named_is_saved_once() -> None:
    """RC-19: its name is kept although there is no text of it, and its text later has its own fragment."""

    async def work(start: Start, port: RunPort) -> None:
        await port.record(TurnStarted(1))
        await port.record(ModelRequested(1, 1, "m"))
        port.tell(TextTold("m", 0, "see "))
        port.tell(ArgumentsTold("m", 1, "c1", "", 0, "tide"))
        port.tell(ArgumentsTold("m", 2, "c2", "{", 0, "wind"))
        await port.record(ModelAttemptEnded(1, 1, "failed"), RunEnded(Failed("bug")))

    async with RunController(Scripted(work)) as runs:
        run = await runs.start(spec())
        await run.wait()
        saved = [record.fact for record in await run.events() if record.fact.kind == "partial_saved"]
        assert [(fact.text, fact.tool) for fact in saved] == [("see ", ""), ("", "tide"), ("{", "wind")]
        partial = (await run.history())[-1].message
        assert [(call.call_id, call.tool) for call in partial.tool_calls] == [("c1", "tide"), ("c2", "wind")]
