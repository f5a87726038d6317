"""Random legal runs, and what must not touch them: repeats, mutations, deltas, appends that fail in the middle."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from oracles.alphabet import HOST, RUNTIME
from oracles.traces import RUN_ID, Bench, check_many, draw, snapshot
from pilothouse.commands import Cancel, Command, FollowUp, Replace, Steer, Withdraw
from pilothouse.core.view import view, view_digest
from pilothouse.errors import InvalidCommand, InvalidSpec, ProtocolViolation, RecordRefused
from pilothouse.events import (
    ArgumentsTold,
    CallHeartbeat,
    CallProgress,
    Completed,
    Extension,
    InputReturned,
    MessageAdded,
    Noted,
    OutputAdded,
    PartialSaved,
    Progress,
    ReasoningTold,
    RunEnded,
    RunHeartbeat,
    RunStarted,
    StopRequested,
    TextTold,
    TurnStarted,
)
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.messages import Message
from pilothouse.records import Draft, RunSpec
from pilothouse.runs.timing import RunLimits, RunTiming

TEXT_NOT_SAVED = RunTiming(partial_interval=None)


async def test_random_runs_fold_repeat_and_refuse() -> None:
    """RC-12, RC-13, RC-27, RC-29, EF-2: stepwise fold = whole fold; a repeat has its seq; no mutation uses a number.

    10,000 of them: `python -m tests.oracles.traces --count 10000`.
    """
    found = await check_many(200)
    assert found["facts"] > 8_000
    assert found["repeats"] > 4_000
    assert found["mutations"] > 2_000
    assert (
        min(found[f"last {phase}"] for phase in ("running", "waiting", "stopping", "terminal", "unknown")) > 0
    )


# Deltas


def noise(dice: random.Random) -> object:
    """A delta, or something that is none."""
    name = f"m{dice.randrange(40)}"
    return dice.choice(
        [
            TextTold(name, dice.randrange(3), "text"), ReasoningTold(name, 0, "think"), ArgumentsTold(name, 1, "c1", "{"),
            ArgumentsTold(name, 1, "c1", "", tool="pay"), CallProgress("c1", "half", 0.5), CallHeartbeat("c1", 5),
            RunHeartbeat(), Progress("going"), Extension("test/x", {"a": 1}), TextTold(name, 0, ""),
            # What no runtime should tell:
            TextTold(name, 0, None), TextTold(name, 0, b"raw"), TextTold(5, 0, "x"), TextTold(name, "0", "x"),
            TextTold([], 0, "x"), ArgumentsTold(name, 0, None, "x"), "text", None, {"kind": "text"}, Noted("test/x"),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
async def test_deltas_change_no_view_seq_or_chain(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """RC-17: told, dropped, doubled, out of order, or none at all: an invalid one is logged and ends no run."""
    caplog.set_level(logging.CRITICAL)
    dice, chains, digests = random.Random(seed), [], []
    for loud in (False, True):
        async with Bench(timing=TEXT_NOT_SAVED) as bench:
            for offer in draw(seed, losses=False).offers:
                for _ in range(dice.randrange(4) if loud else 0):
                    bench.port.tell(noise(dice))
                await bench.offer(*offer)
            chains.append((bench.state.seq, bench.state.chain))
            found = view(bench.state, bench.live.registration, fence=1, ownership="here", descriptor=None)
            digests.append(view_digest(found))
    assert chains[0] == chains[1]
    assert digests[0] == digests[1]


async def test_what_is_no_delta_is_logged_and_nobody_sees_it(caplog: pytest.LogCaptureFixture) -> None:
    """RC-17."""
    async with Bench() as bench:
        async with await bench.controller.subscribe(RUN_ID) as seen:
            bench.port.tell("text")
            bench.port.tell(TextTold("m", 0, b"raw"))
            bench.port.tell(RunHeartbeat())
            first = await anext(seen)
        assert first.body == RunHeartbeat()
    assert [record.getMessage() for record in caplog.records] == [
        "run run: a delta was dropped: str is none",
        "run run: a delta was dropped: text is bytes, not str",
    ]


async def test_told_text_is_stored_in_front_of_a_loss_a_stop_and_an_end() -> None:
    """RC-19: what a reader saw is in the record, also where the runtime broke the contract."""
    for kind in ("violation", "stop", "deadline", "end"):
        async with Bench() as bench:
            await bench.port.record(RunStarted())
            bench.port.tell(TextTold("m1", 0, "half an ans"))
            match kind:
                case "violation":
                    with pytest.raises(ProtocolViolation):
                        await bench.port.record(TurnStarted(9))
                case "stop":
                    await bench.controller.cancel(RUN_ID, "enough")
                case "deadline":
                    await bench.live._deadline()
                case _:
                    await bench.port.record(RunEnded(Completed()))
            facts = [record.fact for record in await bench.facts()]
            saved = facts.index(PartialSaved("m1", "text", 0, 0, "half an ans"))
            assert facts[saved + 1].kind in (
                "violation_recorded",
                "command_received",
                "stop_requested",
                "run_ended",
            )
            entry = (await bench.controller.history(RUN_ID))[-1]
            assert (entry.message.text, entry.complete) == ("half an ans", False)


async def test_text_that_was_told_before_a_run_began_stops_nothing() -> None:
    """§3.5: a fragment has no place before the start; the end of such a run is recorded all the same."""
    async with Bench() as bench:
        bench.port.tell(TextTold("m1", 0, "too early"))
        await bench.live.save_partials()
        await bench.controller.cancel(RUN_ID, "enough")
        assert [record.fact.kind for record in await bench.facts()][-1] == "stop_requested"
    async with Bench() as bench:
        bench.port.tell(TextTold("m1", 0, "too early"))
        await bench.live.lose("eof", "left")
        assert bench.state.phase == "unknown"


# Appends


GOOD = (Noted("test/a"), OutputAdded("o1", "report", 1), MessageAdded(Message("m1", "user")))
BAD = {
    "violation": (TurnStarted(9), ProtocolViolation),
    "wrong lane": (StopRequested("mine"), RecordRefused),
    "not JSON": (Noted("test/x", float("nan")), RecordRefused),
    "wrong shape": (TurnStarted("1"), RecordRefused),
    "no message": (MessageAdded(None), RecordRefused),
    "too large": (Noted("test/x", "x" * 300_000), RecordRefused),
    "reserved id": (Draft(Noted("test/x"), event_id="host:x"), RecordRefused),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("place", range(4))
async def test_an_append_is_stored_whole_or_not_at_all(bad: str, place: int) -> None:
    """RC-12: wherever in it the fault is, the state and the numbers are those from before."""
    fact, error = BAD[bad]
    async with Bench() as bench:
        await bench.port.record(RunStarted())
        before, stored = snapshot(bench.state), await bench.facts()
        with pytest.raises(error) as caught:
            await bench.port.record(*GOOD[:place], fact, *GOOD[place:])
        facts = (await bench.facts())[len(stored) :]
        if error is RecordRefused:
            assert facts == []
            assert snapshot(bench.state) == before
            assert await bench.port.record(*GOOD) == len(stored) + 3  # the run goes on
        else:
            assert [record.fact.kind for record in facts] == ["violation_recorded", "continuity_lost"]
        codes = {"wrong lane": "wrong_lane", "violation": "turn_order", "too large": "too_large"}
        assert caught.value.code == codes.get(bad, "invalid_fact")


@pytest.mark.parametrize(
    ("fact", "path"),
    [
        (Noted("test/x", {"a": [float("nan")]}), "data.a[0]"),
        (TurnStarted("1"), "turn"),
        (MessageAdded(None), "message"),
        (MessageAdded(Message("m", "narrator")), "message.role"),
        (RunEnded("done"), "outcome"),
    ],
)
async def test_a_fact_of_the_wrong_form_is_refused_with_its_path(fact: object, path: str) -> None:
    """§4 `invalid_fact`: it would be stored and never be read again."""
    async with Bench() as bench:
        await bench.port.record(RunStarted())
        with pytest.raises(RecordRefused) as caught:
            await bench.port.record(fact)
        assert caught.value.why.startswith(f"{path}: ")


async def test_repeats_inside_an_append_are_left_out_and_the_others_stand() -> None:
    """RC-12, RC-13: stored before, twice in one append, or put in front by the port."""
    async with Bench() as bench:
        assert await bench.port.record(Noted("test/a"), RunStarted()) == 3
        note = Draft(Noted("test/b"), event_id="mine")
        assert await bench.port.record(note, note, TurnStarted(1), TurnStarted(1)) == 5
        assert await bench.port.record(note, RunStarted(), GOOD[1], TurnStarted(1)) == 6
        assert await bench.port.record(note) == 4
        assert await bench.port.record(note, TurnStarted(1)) == 5
        assert await bench.port.record() == 6
        kinds = [record.fact.kind for record in await bench.facts()]
        assert kinds == ["run_accepted", "run_started", "noted", "noted", "turn_started", "output_added"]


async def test_a_repeat_has_its_number_also_when_the_run_is_over() -> None:
    """RC-13, RC-29: in any state; anything else is refused."""
    for over in (RunEnded(Completed()), TurnStarted(9)):
        async with Bench() as bench:
            assert await bench.port.record(Noted("test/a"), GOOD[1]) == 4
            if isinstance(over, RunEnded):
                assert await bench.port.record(over) == 5
                assert await bench.port.record(over) == 5
            else:
                with pytest.raises(ProtocolViolation):
                    await bench.port.record(over)
            seq = bench.state.seq
            assert await bench.port.record(GOOD[1]) == 4
            assert await bench.port.record(RunStarted(), GOOD[1]) == 4
            for late in (OutputAdded("o1", "other"), OutputAdded("o2", "late"), Noted("test/a")):
                with pytest.raises(RecordRefused, match="ended" if isinstance(over, RunEnded) else "unknown"):
                    await bench.port.record(late)
            assert len(await bench.facts()) == seq


async def test_a_full_run_can_still_be_stopped_settled_and_ended() -> None:
    """§3.12: 512 facts stay reserved."""
    async with Bench(limits=RunLimits(max_run_facts=520)) as bench:
        await bench.port.record(RunStarted())
        with pytest.raises(RecordRefused, match="run_full"):
            for _ in range(20):
                await bench.port.record(Noted("test/x"))
        assert bench.state.seq <= 9
        assert (await bench.controller.cancel(RUN_ID, "enough")).state == "applied"
        await bench.port.record(Noted("test/last words"))
        await bench.live.writer.write((Draft(RunEnded(Completed())), RUNTIME))
        assert bench.state.phase == "terminal"
    async with Bench(limits=RunLimits(max_run_facts=512)) as bench:
        await bench.live.lose("eof", "left")
        assert bench.state.phase == "unknown"


async def test_the_same_over_a_file(tmp_path: Path) -> None:
    """RC-12, RC-13: atomic appends and repeats do not depend on a journal that answers at once."""
    journal = SQLiteJournal(tmp_path / "runs.db", durability="off")
    async with journal, Bench(journal=journal) as bench:
        note = Draft(Noted("test/b"), event_id="mine")
        assert await bench.port.record(RunStarted(), note) == 3
        assert await bench.port.record(note, note, GOOD[1], RunStarted()) == 4
        assert await bench.port.record(note) == 3
        before = snapshot(bench.state)
        with pytest.raises(RecordRefused, match="too_large"):
            await bench.port.record(GOOD[2], BAD["too large"][0])
        assert snapshot(bench.state) == before
        with pytest.raises(ProtocolViolation, match="duplicate_conflict"):
            await bench.port.record(GOOD[2], Draft(Noted("test/other"), event_id="mine"))
        kinds = [record.fact.kind for record in await bench.facts()]
        assert kinds[4:] == ["violation_recorded", "continuity_lost"]
        assert await bench.live.writer.write((Draft(RunStarted()), RUNTIME)) == 2
        with pytest.raises(RecordRefused):
            await bench.live.writer.write((Draft(PartialSaved("m", "text", 0, 0, "x")), HOST))


# Commands whose meaning is in the fold


async def test_a_second_cancel_is_applied_to_the_first_stop() -> None:
    """RC-39: accepted, no second stop, applied where the first one was; also after a stop by the deadline."""
    for by_deadline in (False, True):
        async with Bench() as bench:
            await bench.port.record(RunStarted())
            if by_deadline:
                await bench.live._deadline()
            else:
                assert (await bench.controller.cancel(RUN_ID, "enough")).state == "applied"
            ack = await bench.controller.command(Command("again", RUN_ID, Cancel("now!")))
            assert (ack.state, ack.applied_seq) == ("applied", bench.state.stop_seq)
            assert await bench.controller.command_ack(RUN_ID, "again") == ack
            stops = [record.seq for record in await bench.facts() if isinstance(record.fact, StopRequested)]
            assert stops == [bench.state.stop_seq]


async def test_a_replaced_input_keeps_place_and_kind_and_the_old_one_goes_back() -> None:
    """RC-37, RC-43: by a fact, so that readers need not infer it."""
    async with Bench() as bench:
        await bench.port.record(RunStarted())
        for name, kind in (("a", Steer), ("b", FollowUp), ("c", FollowUp)):
            await bench.controller.command(Command(name, RUN_ID, kind(Message(f"m-{name}", "user"))))
        ack = await bench.controller.command(Command("new", RUN_ID, Replace("b", Message("m-new", "user"))))
        assert ack.state == "accepted"
        await bench.controller.command(Command("newer", RUN_ID, Replace("new", Message("m-newer", "user"))))
        assert (await bench.controller.command_ack(RUN_ID, "b")).state == "returned"
        assert (await bench.controller.command_ack(RUN_ID, "new")).state == "returned"
        returned = [record.fact for record in await bench.facts() if isinstance(record.fact, InputReturned)]
        assert returned == [InputReturned("b", "replaced"), InputReturned("new", "replaced")]
        assert (await bench.controller.inspect(RUN_ID)).queued == ("a", "newer", "c")
        inbox = bench.port.commands
        assert [inbox.take("follow_up").command.id, inbox.take("follow_up").command.id] == ["newer", "c"]
        assert inbox.take("steer").command.id == "a"
        await bench.port.record(Draft(MessageAdded(Message("m-newer", "user")), causation="newer"))
        assert (await bench.controller.command_ack(RUN_ID, "newer")).state == "applied"


async def test_a_withdrawal_is_applied_by_what_it_returned() -> None:
    """RC-37: `applied_seq` is its effect."""
    async with Bench() as bench:
        await bench.port.record(RunStarted())
        await bench.controller.command(Command("a", RUN_ID, Steer(Message("m-a", "user"))))
        ack = await bench.controller.command(Command("b", RUN_ID, Withdraw("a")))
        (returned,) = [record.seq for record in await bench.facts() if isinstance(record.fact, InputReturned)]
        assert (ack.state, ack.applied_seq) == ("applied", returned)
        assert bench.port.commands.peek() is None


@pytest.mark.parametrize(
    "body", [Steer("hello"), Steer(None), Cancel(5), Cancel("x", "nobody"), Withdraw(5), "cancel", None]
)
async def test_a_malformed_command_is_an_error_and_leaves_no_trace(body: object) -> None:
    """RC-36, §3.7: it would be stored and never be read again."""
    async with Bench() as bench:
        with pytest.raises(InvalidCommand):
            await bench.controller.command(Command("c", RUN_ID, body))
        assert len(await bench.facts()) == 1


@pytest.mark.parametrize(
    "spec",
    [RunSpec("r2", "t2", ("hello",)), RunSpec("r2", "t2", (Message("m", "narrator"),)), RunSpec("r2", "t2", None),
     RunSpec("r2", "t2", (Message("m", "user"),), options=[1]), RunSpec("r2", "t2", (Message("m", "user"),), deadline_ms="soon")],
)  # fmt: skip
async def test_a_malformed_spec_is_an_error_and_leaves_no_trace(spec: RunSpec) -> None:
    """RC-31."""
    async with Bench() as bench:
        with pytest.raises(InvalidSpec):
            await bench.controller.start(spec)
        assert not await bench.controller.has_run("r2")
