"""Every row of the table of commands, and of bad input (RC §3.7, §4): refusals leave no trace."""

from __future__ import annotations

import asyncio
import math

import pytest
from msgspec.structs import replace

from pilothouse.commands import (
    Allow,
    Answer,
    Cancel,
    Command,
    Deny,
    FollowUp,
    InputAnswer,
    Replace,
    Request,
    Steer,
    Withdraw,
)
from pilothouse.errors import (
    ArtifactNotFound,
    CommandConflict,
    CommandNotFound,
    CursorAhead,
    InvalidCommand,
    InvalidSpec,
    NotControllable,
    OutcomeError,
    OwnedElsewhere,
    PilothouseError,
    RunConflict,
    RunError,
    RunNotFound,
    ThreadConflict,
    Unsupported,
    UsageError,
)
from pilothouse.events import Completed, MessageAdded, RunEnded, TurnEnded, TurnStarted
from pilothouse.journal import MemoryJournal, SQLiteJournal
from pilothouse.messages import File, Message, Text
from pilothouse.records import Descriptor, Draft, Parent, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedRuntime
from pilothouse.testing.runtimes import COMMANDS, Ask, Hold

END = (TurnEnded(1), RunEnded(Completed()))
QUESTION = Request("q1", "input", prompt="?")


def spec(run_id: str = "r1", **fields) -> RunSpec:
    return RunSpec(run_id, f"t-{run_id}", (Message(f"{run_id}.0", "user", (Text("hi"),)),), **fields)


def said(name: str) -> Message:
    return Message(name, "user", (Text(name),))


class Desk:
    """A run that waits, and who looks whether anything was written."""

    def __init__(self, *script, descriptor: Descriptor | None = None, journal=None) -> None:
        self.hold = Hold()
        self.runtime = ScriptedRuntime(*(script or (TurnStarted(1), self.hold, END)), descriptor=descriptor)
        self.runs = RunController(self.runtime, journal=journal)
        self.run = self.runs.run("r1")

    async def __aenter__(self):
        await self.runs.start(spec())
        for _ in range(20):
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.runs.aclose()

    async def seq(self) -> int:
        return (await self.run.inspect()).last_seq

    async def refused(self, body, state: str, code: str) -> None:
        before = await self.seq()
        ack = await self.runs.command(Command("refused", "r1", body))
        assert (ack.state, ack.code) == (state, code)
        assert await self.seq() == before
        assert await self.runs.recorded_command("r1", "refused") is None
        with pytest.raises(CommandNotFound):
            await self.runs.command_ack("r1", "refused")


@pytest.mark.parametrize(
    "command",
    [
        Command("", "r1", Cancel("x")),
        Command("c" * 201, "r1", Cancel("x")),
        Command("c\n1", "r1", Cancel("x")),
        Command("c1", "r1", Cancel("  ")),
        Command("c1", "r1", Steer(said("s")), {"a/b": math.nan}),
        Command("c1", "r1", Answer("q1", InputAnswer({1, 2}))),  # type: ignore[arg-type]
    ],
)
async def test_a_malformed_command_is_the_callers_mistake(command: Command) -> None:
    """RC §3.7 row 1, RC-36."""
    async with Desk() as desk:
        before = await desk.seq()
        with pytest.raises(InvalidCommand):
            await desk.runs.command(command)
        assert await desk.seq() == before


async def test_an_unknown_run_is_not_found_and_nothing_is_made() -> None:
    """RC §3.7 row 1, RC §4."""
    async with RunController(ScriptedRuntime()) as runs:
        for doing in (
            runs.cancel("nothing", "x"), runs.inspect("nothing"), runs.events("nothing"), runs.history("nothing"),
            runs.initial_input("nothing"), runs.run_extensions("nothing"), runs.recover("nothing"),
            runs.check_status("nothing"), runs.abandon("nothing", "x"), runs.wait_for_terminal("nothing"),
            runs.subscribe("nothing"), runs.recorded_command("nothing", "c"), runs.command_ack("nothing", "c"),
        ):  # fmt: skip
            with pytest.raises(RunNotFound) as caught:
                await doing
            assert (caught.value.code, caught.value.retryable) == ("not_found", False)
        assert not await runs.has_run("nothing")
        assert not await runs.can_control_run("nothing")
        with pytest.raises(ArtifactNotFound):
            await runs.journal.get_blob("0" * 64)


async def test_a_run_of_another_contract_or_owner_takes_no_commands() -> None:
    """RC §3.7 row 2."""
    journal = MemoryJournal()
    async with Desk(journal=journal) as desk:
        other = RunController(ScriptedRuntime(), journal=journal)
        before = await desk.seq()
        with pytest.raises(OwnedElsewhere):
            await other.cancel("r1", "x")
        foreign = RunController(ScriptedRuntime(), "another", journal=journal)
        with pytest.raises(NotControllable) as caught:
            await foreign.cancel("r1", "x")
        assert caught.value.code in ("binding", "not_controllable")
        assert await desk.seq() == before
        await other.aclose()
        await foreign.aclose()


async def test_a_hundred_repeats_are_forwarded_and_applied_once() -> None:
    """RC §3.7 rows 3 and 4, §5.9: the present ack; other content is a conflict; also after the end."""
    seen: list[str] = []

    async def listen(_start, port) -> None:
        port.commands.on_arrival(lambda command: seen.append(command.id))

    async def use(_start, port) -> None:
        pending = port.commands.take("steer")
        message = pending.command.body.message
        await port.record(Draft(MessageAdded(message, 1), causation=pending.command.id))

    hold = Hold()
    async with Desk(TurnStarted(1), listen, hold, use, END) as desk:
        command = Command("c1", "r1", Steer(said("s1")))
        first = await desk.runs.command(command)
        assert (first.state, first.duplicate) == ("accepted", False)
        acks = await asyncio.gather(*[desk.runs.command(command) for _ in range(100)])
        assert {(ack.state, ack.duplicate, ack.received_seq) for ack in acks} == {
            ("accepted", True, first.received_seq)
        }
        assert seen == ["c1"]
        with pytest.raises(CommandConflict):
            await desk.runs.command(Command("c1", "r1", Steer(said("other"))))
        hold.release()
        await desk.run.wait()
        again = await desk.runs.command(command)
        assert (again.state, again.duplicate) == ("applied", True)
        kinds = [item.fact.kind for item in await desk.run.events()]
        assert (kinds.count("command_received"), kinds.count("message_added")) == (1, 1)


async def test_commands_of_the_wrong_time_are_refused_without_a_trace() -> None:
    """RC §3.7 row 5."""
    deaf = Hold(deaf=True)
    async with Desk(TurnStarted(1), deaf, END) as desk:
        await desk.run.cancel("enough")
        await desk.refused(Steer(said("s")), "rejected", "stopping")
        deaf.release()
        await desk.run.wait()
        for body in (Steer(said("s")), Cancel("x"), Answer("q1", InputAnswer("x"))):
            await desk.refused(body, "rejected", "ended")
    async with Desk(TurnStarted(1), TurnStarted(9)) as desk:
        await desk.run.wait()
        for body in (Steer(said("s")), Cancel("x"), Answer("q1", InputAnswer("x"))):
            await desk.refused(body, "rejected", "unknown")


async def test_what_is_not_declared_is_unsupported() -> None:
    """RC §3.7 row 6."""
    plain = Descriptor("plain", commands=("cancel",), cancel="none")
    async with Desk(descriptor=plain) as desk:
        for body in (
            Steer(said("s")),
            FollowUp(said("s")),
            Withdraw("c"),
            Cancel("x"),
            Answer("q", Deny("")),
        ):
            await desk.refused(body, "unsupported", "unsupported")
        desk.hold.release()
        await desk.run.wait()


async def test_commands_at_the_same_moment_are_judged_one_after_the_other(tmp_path) -> None:
    """RC-10, RC-39, RC §3.7: over a journal that takes its time: one receipt, one stop, one answer under way."""
    waiting = Hold()

    async def open_and_keep(_start, port) -> None:
        from pilothouse.events import RequestOpened

        await port.record(RequestOpened(QUESTION))
        await waiting.wait()

    async with (
        SQLiteJournal(tmp_path / "j.db", durability="off") as journal,
        Desk(TurnStarted(1), open_and_keep, journal=journal) as desk,
    ):
        while not (await desk.run.inspect()).requests:
            await asyncio.sleep(0.001)
        steer = Command("s1", "r1", Steer(said("s1")))
        acks = await asyncio.gather(*[desk.runs.command(steer) for _ in range(20)])
        assert {(ack.state, ack.received_seq) for ack in acks} == {("accepted", acks[0].received_seq)}
        assert sum(not ack.duplicate for ack in acks) == 1
        answers = [Command(f"a{n}", "r1", Answer("q1", InputAnswer(n))) for n in range(5)]
        found = await asyncio.gather(*[desk.runs.command(each, timeout=0.0) for each in answers])
        assert sorted((ack.state, ack.code) for ack in found) == [
            ("received", ""),
            *[("rejected", "request_busy")] * 4,
        ]
        stops = await asyncio.gather(*[desk.run.cancel(f"reason {n}") for n in range(5)])
        assert {ack.state for ack in stops} <= {"applied", "rejected"}
        assert {ack.code for ack in stops} <= {"", "ended"}
        waiting.release()
        await desk.run.wait()
        kinds = [item.fact.kind for item in await desk.run.events()]
        assert kinds.count("stop_requested") == 1


async def test_answers_that_do_not_fit_are_refused() -> None:
    """RC §3.7 row 7: not pending, wrong kind, another answer under way; a denial always fits."""
    waiting = Hold()

    async def open_and_keep(_start, port) -> None:
        from pilothouse.events import RequestOpened

        await port.record(RequestOpened(QUESTION))
        await waiting.wait()

    async with Desk(TurnStarted(1), open_and_keep) as desk:
        await desk.refused(Answer("q9", InputAnswer("x")), "rejected", "request_not_pending")
        await desk.refused(Answer("q1", Allow("once")), "rejected", "answer_mismatch")
        first = await desk.runs.command(Command("a1", "r1", Answer("q1", InputAnswer("yes"))), timeout=0.0)
        assert first.state == "received"
        await desk.refused(Answer("q1", Deny("no")), "rejected", "request_busy")
        waiting.release()


async def test_an_equal_answer_under_another_id_is_the_first_ones_duplicate() -> None:
    """RC §3.7 row 8; a different second answer finds nothing pending."""
    hold = Hold()
    async with Desk(TurnStarted(1), Ask(QUESTION), hold, END) as desk:
        first = await desk.run.answer("q1", InputAnswer("yes"), id="a1")
        assert first.state == "applied"
        second = await desk.run.answer("q1", InputAnswer("yes"), id="a2")
        assert (second.command_id, second.duplicate, second.applied_seq) == ("a1", True, first.applied_seq)
        await desk.refused(Answer("q1", InputAnswer("no")), "rejected", "request_not_pending")
        hold.release()
        await desk.run.wait()


async def test_a_queue_is_edited_in_place_and_what_left_it_is_not() -> None:
    """RC §3.7 row 9, RC-43: withdrawn text never reaches the runtime, a replacement keeps its place."""
    taken: list[str] = []

    async def take(_start, port) -> None:
        while (pending := port.commands.take()) is not None:
            taken.append(pending.command.body.message.text)
            message = pending.command.body.message
            await port.record(Draft(MessageAdded(message, 1), causation=pending.command.id))

    hold, after = Hold(), Hold()
    async with Desk(TurnStarted(1), hold, take, after, END) as desk:
        for name in ("one", "two", "three"):
            await desk.run.steer(said(name), id=name)
        assert (await desk.runs.command(Command("w", "r1", Withdraw("two")))).state == "applied"
        replaced = await desk.runs.command(Command("r", "r1", Replace("one", said("first"))))
        assert replaced.state == "accepted"
        await desk.refused(Withdraw("two"), "rejected", "not_queued")
        await desk.refused(Replace("nothing", said("x")), "rejected", "not_queued")
        hold.release()
        await after.reached()
        await desk.refused(Withdraw("three"), "rejected", "not_queued")
        assert taken == ["first", "three"]
        states = {
            name: (await desk.runs.command_ack("r1", name)).state for name in ("one", "two", "three", "r")
        }
        assert states == {"one": "returned", "two": "returned", "three": "applied", "r": "applied"}
        after.release()
        await desk.run.wait()


async def test_a_thousand_bad_or_late_commands_never_poison_a_run() -> None:
    """RC-36, §5.9: in every state; no trace, never unknown."""
    hold = Hold()
    async with Desk(TurnStarted(1), hold, END) as desk:
        before = await desk.seq()
        for number in range(500):
            body = (Answer("q9", InputAnswer(number)), Withdraw(f"c{number}"))[number % 2]
            assert (await desk.runs.command(Command(f"x{number}", "r1", body))).state == "rejected"
        assert (await desk.seq(), (await desk.run.inspect()).status) == (before, "running")
        hold.release()
        assert (await desk.run.wait()).outcome == Completed()
        before = await desk.seq()
        for number in range(500):
            assert (await desk.runs.command(Command(f"y{number}", "r1", Cancel("late")))).code == "ended"
        assert (await desk.seq(), (await desk.run.inspect()).status) == (before, "completed")


BAD_SPECS = [
    (RunSpec("", "t"), "invalid_spec"),
    (spec("x" * 201), "invalid_spec"),
    (spec("a\x00b"), "invalid_spec"),
    (replace(spec(), thread_id=""), "invalid_spec"),
    (replace(spec(), input=()), "nothing_to_do"),
    (replace(spec(), parent=Parent("nothing", None)), "parent_not_found"),
    (replace(spec(), parent=Parent("p", None), base=(said("b"),)), "parent_and_base"),
    (spec(deadline_ms=0), "deadline"),
    (spec(options={"a": math.inf}), "invalid_spec"),
    (replace(spec(), input=(said("s"), said("s"))), "message_id_used"),
]


@pytest.mark.parametrize(("bad", "code"), BAD_SPECS, ids=[str(n) for n in range(len(BAD_SPECS))])
async def test_a_spec_that_cannot_be_is_refused_before_anything_is_written(bad: RunSpec, code: str) -> None:
    """RC §4 row 1, RC-31, RC-3."""
    async with RunController(ScriptedRuntime()) as runs:
        with pytest.raises(InvalidSpec) as caught:
            await runs.start(bad)
        assert caught.value.code == code
        assert (await runs.catalog_runs()).items == ()


async def test_a_parent_that_does_not_fit_is_refused() -> None:
    """RC §4 row 1, RC-69."""
    async with RunController(ScriptedRuntime()) as runs:
        await (await runs.start(spec("p"))).wait()
        child = replace(spec("c"), thread_id="t-p")
        for parent, thread, code in (
            (Parent("p", "no-such-message"), "t-p", "keep_through_unknown"),
            (Parent("p", None), "elsewhere", "parent_foreign"),
        ):
            with pytest.raises(InvalidSpec) as caught:
                await runs.start(replace(child, parent=parent, thread_id=thread))
            assert caught.value.code == code
        assert not await runs.has_run("c")


async def test_what_a_runtime_does_not_declare_cannot_be_started() -> None:
    """RC §4 row 2."""
    plain = Descriptor("plain", accepts=("text/*",), thread_reuse="none")
    async with RunController(ScriptedRuntime(descriptor=plain)) as runs:
        cases = (
            (spec(output_schema={"type": "object"}), "structured_output"),
            (
                replace(spec(), input=(Message("i", "user", (File("application/pdf", data=b"x"),)),)),
                "media_type",
            ),
        )
        for bad, code in cases:
            with pytest.raises(Unsupported) as caught:
                await runs.start(bad)
            assert caught.value.code == code
        await (await runs.start(spec())).wait()
        with pytest.raises(Unsupported) as caught:
            await runs.start(replace(spec("r2"), thread_id="t-r1"))
        assert caught.value.code == "thread_busy"
    sequential = Descriptor("plain", commands=COMMANDS, cancel="confirmed", thread_reuse="sequential")
    hold = Hold()
    async with RunController(ScriptedRuntime(TurnStarted(1), hold, END, descriptor=sequential)) as runs:
        await runs.start(spec())
        with pytest.raises(Unsupported):
            await runs.start(replace(spec("r2"), thread_id="t-r1"))
        hold.release()
        await runs.run("r1").wait()
        await (await runs.start(replace(spec("r2"), thread_id="t-r1"))).wait()


async def test_a_repeat_asks_for_nothing_new_of_a_busy_thread() -> None:
    """RC-33: what was registered is reopened, or a conflict, whoever works in its thread by now; also by another process."""
    sequential = Descriptor("plain", commands=COMMANDS, cancel="confirmed", thread_reuse="sequential")
    journal, hold = MemoryJournal(), Hold()
    async with RunController(
        ScriptedRuntime(TurnStarted(1), END[0], END[1], descriptor=sequential), journal=journal
    ) as runs:
        await (await runs.start(spec())).wait()
    async with RunController(
        ScriptedRuntime(TurnStarted(1), hold, *END, descriptor=sequential), journal=journal
    ) as runs:
        second = await runs.start(replace(spec("r2"), thread_id="t-r1"))
        again = await runs.start(spec())
        assert (again.reopened, (await again.wait()).outcome) == (True, Completed())
        with pytest.raises(RunConflict):
            await runs.start(spec(extensions={"x/y": 1}))
        with pytest.raises(Unsupported):
            await runs.start(replace(spec("r3"), thread_id="t-r1"))
        hold.release()
        await second.wait()


def test_a_controller_that_cannot_be_is_not_made() -> None:
    """RC §4 row 1: binding, buffer, descriptor fail at once."""
    for doing in (
        lambda: RunController(ScriptedRuntime(), " "),
        lambda: RunController(ScriptedRuntime(), follower_buffer=0),
        lambda: RunController(ScriptedRuntime(descriptor=Descriptor(""))),
        lambda: RunController(ScriptedRuntime(descriptor=Descriptor("x", vocabulary=(9, 0)))),
    ):
        with pytest.raises(InvalidSpec):
            doing()


async def test_conflicts_and_cursors() -> None:
    """RC §4 rows 3 and 6, RC-61, RC-70."""
    async with RunController(ScriptedRuntime()) as runs:
        run = await runs.start(spec())
        await run.wait()
        with pytest.raises(RunConflict):
            await runs.start(spec(options={"other": 1}))
        with pytest.raises(ThreadConflict) as thread:
            await runs.start(replace(spec("r2"), thread_id="t-r1"), expect_head=None)
        assert thread.value.head == "r1"
        assert not await runs.has_run("r2")
        last = (await run.inspect()).last_seq
        with pytest.raises(CursorAhead) as cursor:
            await run.events(last + 1)
        assert cursor.value.last_seq == last
        with pytest.raises(ValueError, match="negative"):
            await run.events(-1)
        with pytest.raises(ValueError, match="negative"):
            run.stream(-1)
        with pytest.raises(CursorAhead):
            await anext(run.stream(last + 1))
        for limit in (0, 501):
            with pytest.raises(InvalidSpec):
                await runs.catalog_runs(limit=limit)


async def test_an_outcome_that_is_no_result_is_raised_and_waiting_is_bounded() -> None:
    """RC §4: `OutcomeError` carries the outcome; `TimeoutError` leaves the run alone."""
    hold = Hold()
    async with RunController(ScriptedRuntime(TurnStarted(1), hold, TurnStarted(5))) as runs:
        run = await runs.start(spec())
        with pytest.raises(TimeoutError):
            await run.wait(timeout=0.01)
        assert (await run.inspect()).status == "running"
        hold.release()
        with pytest.raises(OutcomeError) as caught:
            await run.result()
        assert (caught.value.run_id, caught.value.outcome.cause) == ("r1", "violation")


async def test_nothing_is_begun_on_a_closed_controller() -> None:
    """RC-52: reads may go on, starts and commands do not."""
    runs = RunController(ScriptedRuntime(), journal=(journal := MemoryJournal()))
    await (await runs.start(spec())).wait()
    await runs.aclose()
    await runs.aclose()
    for doing in (
        runs.start(spec("r2")),
        runs.cancel("r1", "x"),
        runs.recover("r1"),
        runs.abandon("r1", "x"),
    ):
        with pytest.raises(UsageError):
            await doing
    await journal.aclose()


def test_every_error_has_a_code_and_says_whether_to_try_again() -> None:
    """RC §4: branches by who is wrong."""

    def below(kind: type) -> set[type]:
        return {kind}.union(*[below(sub) for sub in kind.__subclasses__()])

    for kind in below(PilothouseError):
        assert isinstance(getattr(kind, "code", ""), str)
        assert isinstance(kind.retryable, bool | property)
    assert issubclass(OutcomeError, RunError)
