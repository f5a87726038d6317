"""State that a model changes: staged by calls, fenced, prepared, sealed with the end of the run (TC §3.7)."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

import pytest

from controlkit import Number, Told
from convkit import passes
from pilothouse import AgentController, MemoryJournal, SQLiteJournal, StagedController
from pilothouse.errors import DeadReply, JournalFull, UsageError
from pilothouse.events import Cancelled, Completed
from pilothouse.loop.answers import ToolResult
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.loop.hooks import Override
from pilothouse.loop.tools import tool
from pilothouse.messages import Text as Words
from pilothouse.records import Owner
from pilothouse.responses import StreamEnd
from pilothouse.testing import FaultyJournal, Hold, ScriptedProvider, StepClock
from pilothouse.testing.faults import APPENDS
from pilothouse.testing.scripted import Cut, call, failure


def add(by, key="n"):
    return call(f"{key}__add", {"by": by})


async def ran(*scripts, controllers=None, **options):
    number = Number("n")
    agent = AgentController(ScriptedProvider(*scripts), controllers=controllers or [number], **options)
    reply = await agent.send("go")
    await reply.wait()
    await passes()
    return agent, number, reply


def notes(records, name):
    return [record.fact.data for record in records if getattr(record.fact, "name", "") == name]


async def test_of_several_the_last_counts() -> None:
    """TC-70: what is staged is seen as pending, what is committed is not changed."""
    agent, number, _ = await ran([add(2)], [add(3)], "done")
    assert number.state == 5
    results = [message.text for message in agent.messages if message.role == "tool"]
    assert results == ["now 2, was None", "now 5, was None"]
    assert len(number.changes) == 1
    await agent.aclose()


async def test_a_send_without_staging_touches_nothing() -> None:
    """TC-70: no redraw, no event, no note."""
    agent, number, reply = await ran("done")
    assert (number.told.names(), number.changes) == (["response n"], [])
    assert number.responses[0].commits == {}
    assert notes(await agent.runs.events(reply.id), "controllers/committed") == []
    await agent.aclose()


@pytest.mark.parametrize("after", [False, True])
async def test_a_call_that_fails_drops_its_value(after: bool) -> None:
    """TC-72: before and behind a good one; its note is not in the way."""
    fall = call("n__fall", {"by": 99})
    agent, number, _ = await ran(*([add(1)], [fall]) if after else ([fall], [add(1)]), "done")
    assert number.state == 1
    await agent.aclose()


async def test_an_error_result_drops_its_value_too() -> None:
    """TC-72: `is_error` is no success."""

    class Soft(Number):
        def get_tools(self):
            return [self.bad]

        def bad(self) -> ToolResult:
            """Stages, and says that it went wrong."""
            self.stage(7)
            return ToolResult((Words("no"),), is_error=True)

    soft = Soft("n")
    agent, _, _ = await ran([call("n__bad")], "done", controllers=[soft])
    assert (soft.state, soft.responses[0].commits) == (None, {})
    await agent.aclose()


async def test_of_parallel_calls_the_last_to_finish_counts() -> None:
    """TC-72: the order of their ends, not of their calls."""
    gates = {1: asyncio.Event(), 2: asyncio.Event()}

    class Slow(Number):
        def get_tools(self):
            return [self.put]

        async def put(self, value: int) -> str:
            """Puts."""
            self.stage(value)
            await gates[value].wait()
            return "ok"

    slow = Slow("n")
    agent = AgentController(
        ScriptedProvider([call("n__put", {"value": 1}), call("n__put", {"value": 2})], "done"),
        controllers=[slow],
    )
    reply = await agent.send("go")
    while reply.phase != "working":
        await asyncio.sleep(0)
    gates[2].set()
    await passes()
    gates[1].set()
    await reply.wait()
    assert slow.state == 1
    await agent.aclose()


async def test_staging_is_fenced() -> None:
    """TC-71: outside of a call, in somebody else's call, and from a call that outlived its send."""
    late = threading.Event()
    entered = threading.Event()
    outcome = []

    class Late(Number):
        def get_tools(self):
            return [self.hang, self.add]

        def hang(self) -> str:
            """Ignores its stop."""
            entered.set()
            late.wait(10)
            try:
                self.stage(666)
            except BaseException as error:
                outcome.append(type(error))
            return "late"

    number = Late("n")
    other = Number("m")
    seen = []

    @tool
    def steal() -> str:
        """Stages for somebody else."""
        try:
            other.stage(1)
        except UsageError as error:
            seen.append(type(error))
        return "no"

    with pytest.raises(UsageError):
        number.stage(1)
    config = LoopConfig(cancel_grace=0.05)
    provider = ScriptedProvider([call("n__hang")], [call("steal"), add(3)], "done")
    agent = AgentController(provider, tools=[steal], controllers=[number, other], config=config)
    async with agent:
        first = await agent.send("go")
        while not entered.is_set():
            await asyncio.sleep(0)
        agent.abort()
        assert await first.wait_closed(10)
        second = await agent.send("again")
        late.set()
        await second.result()
        for _ in range(1000):
            if outcome:
                break
            await asyncio.sleep(0.001)
        assert outcome == [DeadReply]
        assert seen == [UsageError]
        assert (number.state, other.state) == (3, None)
        assert number.staged is None
        with pytest.raises(UsageError):
            number.stage(1)


async def test_a_value_that_cannot_be_kept_is_told_to_the_model() -> None:
    """TC §8: the call fails, nothing of the exception is told."""

    class Odd(Number):
        def encode(self, value):
            if value == 13:
                raise ValueError("secret 13")
            return value

    odd = Odd("n")
    agent, _, _ = await ran([add(13)], [add(2)], "done", controllers=[odd])
    results = [message.text for message in agent.messages if message.role == "tool"]
    assert results[0] == "The value could not be kept."
    assert odd.state == 2
    await agent.aclose()


@pytest.mark.parametrize(
    ("scripts", "options", "ending"),
    [
        ([[add(1)], ["cut", StreamEnd("length")]], {}, "truncated"),
        ([[add(1)], [StreamEnd("content_filter")]], {}, "incomplete"),
        ([[add(1)], [failure("auth", "no")]], {}, "failed"),
        ([[add(1)], ["x", Cut()]], {}, "unknown"),
        ([[add(1)], "never"], {"config": LoopConfig(limits=Limits(turns=1))}, "incomplete"),
    ],
    ids=["truncated", "incomplete", "failed", "unknown", "limit"],
)
async def test_only_a_completed_send_commits(scripts, options, ending) -> None:
    """TC-74: discarded before any on_response; arguments and notes stay in the journal."""
    options.setdefault("config", LoopConfig(limits=Limits(length_continuations=0)))
    agent, number, reply = await ran(*scripts, **options)
    assert reply.ending == ending
    assert (number.state, number.changes) == (None, [])
    assert number.responses[0].commits == {"n": "discarded"}
    records = await agent.runs.events(reply.id)
    assert [note["value"] for note in notes(records, "controllers/staged")] == [1]
    assert notes(records, "controllers/committed") == []
    await agent.aclose()


async def test_a_controller_may_commit_more_endings() -> None:
    """TC-18, TC-74: `commit_on`; the others of the same send are discarded."""
    greedy = Number("g")
    greedy.commit_on = frozenset({"completed", "truncated"})
    strict = Number("s")
    agent, _, _ = await ran(
        [add(1, "g"), add(2, "s")],
        ["cut", StreamEnd("length")],
        controllers=[greedy, strict],
        config=LoopConfig(limits=Limits(length_continuations=0)),
    )
    assert (greedy.state, strict.state) == (1, None)
    assert greedy.responses[0].commits == {"g": "committed", "s": "discarded"}
    await agent.aclose()


async def test_a_stopped_send_commits_nothing() -> None:
    """TC-97: cancelled while it streams, with a value staged."""
    hold = Hold()
    number = Number("n")
    agent = AgentController(ScriptedProvider([add(1)], ["x", hold]), controllers=[number])
    async with agent:
        reply = await agent.send("go")
        await hold.reached()
        agent.abort()
        assert await reply.wait_closed(5)
        await passes()
        assert number.responses[0].commits == {"n": "discarded"}
        assert number.state is None


async def test_a_value_is_durable_with_its_call() -> None:
    """TC-73: in the same append as the first end fact of the call, in front of it."""
    agent, _, reply = await ran([add(1)], "done")
    records = await agent.runs.events(reply.id)
    at = next(
        n for n, record in enumerate(records) if getattr(record.fact, "name", "") == "controllers/staged"
    )
    assert records[at + 1].fact.kind == "call_finished"
    assert records[at].fact.data == {"key": "n", "call_id": "call-1-1", "version": 1, "value": 1}
    await agent.aclose()


@dataclass
class Big:
    text: str


class Text(StagedController[Big]):
    namespace = "t"

    def get_tools(self):
        return [self.fill]

    def fill(self, size: int) -> str:
        """Fills."""
        self.stage(Big("x" * size))
        return "ok"

    def decode(self, data, version):
        return Big(**data)

    def public(self, value):
        return len(value.text)


async def test_a_large_value_is_an_artifact() -> None:
    """TC-73, TC-76: stored once; it comes back when the thread is opened."""
    journal = MemoryJournal()
    text = Text()
    agent, _, reply = await ran(
        [call("t__fill", {"size": 100_000})], "done", controllers=[text], journal=journal, thread_id="t1"
    )
    records = await agent.runs.events(reply.id)
    assert "artifact" in notes(records, "controllers/staged")[0]
    assert "artifact" in notes(records, "controllers/committed")[0]["t"]
    assert agent.shared_state == {"t": 100_000}
    await agent.aclose()
    again = Text()
    async with await AgentController.reconnect(
        ScriptedProvider("ok"), journal=journal, thread_id="t1", controllers=[again]
    ) as other:
        assert again.state == text.state
        assert other.shared_state == {"t": 100_000}


# Sealing


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_one_that_cannot_be_prepared_stops_all(which: int, how: str) -> None:
    """Proof 9, TC-75: first, middle, last: no state changed."""
    told = Told()
    clock = StepClock()
    numbers = [Number(key, told) for key in "abc"]
    numbers[which].fail["prepare"] = OSError("no") if how == "raises" else asyncio.Event().wait
    agent = AgentController(
        ScriptedProvider([add(n, key) for n, key in enumerate("abc", 1)], "done"),
        controllers=numbers,
        clock=clock,
        hook_timeout=2,
    )
    reply = await agent.send("go")
    while not told.of(f"prepare {'abc'[which]}"):
        await asyncio.sleep(0)
    await clock.advance(2)
    await reply.wait()
    assert (reply.ending, reply.outcome.code) == ("failed", "abc"[which])
    assert [number.state for number in numbers] == [None] * 3
    assert [name for name in told.names() if name.startswith("apply")] == []
    assert [name for name in told.names() if name.startswith("prepare")] == [
        f"prepare {key}" for key in "abc"[: which + 1]
    ]
    assert agent.shared_state == {}
    await agent.aclose()


@pytest.mark.parametrize("by", ["abort", "run"])
async def test_a_stop_during_sealing_wins(by: str) -> None:
    """TC-75, TC-97: prepare is cancelled at once, nothing is committed, the run ends cancelled."""
    number = Number("n")
    entered = asyncio.Event()
    cancelled = []

    async def hang():
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    number.fail["prepare"] = hang
    async with AgentController(ScriptedProvider([add(1)], "done", "next"), controllers=[number]) as agent:
        reply = await agent.send("go")
        await entered.wait()
        if by == "abort":
            assert agent.abort()
        else:
            await reply.run.cancel("enough")
        assert await reply.wait_closed(5)
        await passes()
        assert cancelled == [True]
        assert reply.ending == "cancelled"
        assert number.state is None
        assert number.responses[0].commits == {"n": "discarded"}
        end = (await agent.runs.events(reply.id))[-1].fact
        assert isinstance(end.outcome, Cancelled)
        assert [m.text for m in agent.messages if m.role == "assistant"][-1] == "done"  # it was whole
        assert (await (await agent.send("go on")).result()).text == "next"


async def test_steering_during_sealing_makes_the_run_go_on() -> None:
    """TC-75: sealing is repeated at the next end."""
    told = Told()
    number = Number("n", told)
    entered, gate = asyncio.Event(), asyncio.Event()

    async def wait():
        entered.set()
        await gate.wait()

    number.fail["prepare"] = wait
    provider = ScriptedProvider([add(1)], "done", [add(10)], "done again")
    async with AgentController(provider, controllers=[number]) as agent:
        reply = await agent.send("go")
        await entered.wait()
        ack = await reply.run.steer("ten more")
        assert ack.state in ("accepted", "applied")
        gate.set()
        assert (await reply.result()).text == "done again"
        assert number.state == 11
        assert [entry[1] for entry in told.of("prepare n")] == [1, 11]
        assert "ten more" in [message.text for message in agent.messages]


async def test_steering_that_the_run_cannot_take_does_not_hold_it_up() -> None:
    """TC-75: sealed again, once."""
    told = Told()
    number = Number("n", told)
    entered, gate = asyncio.Event(), asyncio.Event()

    async def wait():
        entered.set()
        await gate.wait()

    number.fail["prepare"] = wait
    config = LoopConfig(max_steering_turns=0)
    async with AgentController(
        ScriptedProvider([add(1)], "done"), controllers=[number], config=config
    ) as agent:
        reply = await agent.send("go")
        await entered.wait()
        await reply.run.steer("ten more")
        gate.set()
        await reply.result()
        assert (number.state, len(told.of("prepare n"))) == (1, 2)


async def test_a_stop_after_the_end_was_handed_over_is_too_late() -> None:
    """TC-97, AC-82: what the journal is given, is."""
    number = Number("n")

    class Slow(MemoryJournal):
        immediate = False
        held: asyncio.Event | None = None
        reached = asyncio.Event()

        async def append(self, run_id, records, **named):
            if any(record.fact.kind == "run_ended" for record in records) and self.held is not None:
                self.reached.set()
                await self.held.wait()
            return await super().append(run_id, records, **named)

    journal = Slow()
    journal.held = asyncio.Event()
    async with AgentController(
        ScriptedProvider([add(1)], "done"), controllers=[number], journal=journal
    ) as agent:
        reply = await agent.send("go")
        await journal.reached.wait()
        assert agent.abort() is False
        journal.held.set()
        await reply.result()
        assert number.state == 1


async def test_an_end_that_is_not_stored_applies_nothing() -> None:
    """TC-76, RC-15: the journal is away: nobody knows; once it is back, record and state agree."""
    number = Number("n")
    clock = StepClock()
    faulty = FaultyJournal(MemoryJournal())
    agent = AgentController(
        ScriptedProvider([add(1)], "done"), controllers=[number], journal=faulty, clock=clock
    )

    async def full():
        faulty.fail(1, JournalFull("disk"), times=None, on=APPENDS)

    number.fail["prepare"] = full
    reply = await agent.send("go")
    await reply.wait()
    await passes()
    assert (reply.ending, number.state) == ("unknown", None)
    assert number.responses[0].ending == "unknown"
    faulty.heal()
    for _ in range(50):
        await clock.advance(1)
        await passes()
    end = (await agent.runs.events(reply.id))[-1].fact
    assert isinstance(end.outcome, Completed)
    assert number.state == 1
    await agent.aclose()


async def test_a_stop_while_a_large_value_is_put_away() -> None:
    """TC-97: until the append is handed over, a stop wins."""
    text = Text()

    class Slow(MemoryJournal):
        immediate = False
        held = asyncio.Event()
        reached = asyncio.Event()

        async def put_blob(self, data, media_type):
            if len(data) > 50_000:
                self.reached.set()
                await self.held.wait()
            return await super().put_blob(data, media_type)

    journal = Slow()
    text.encode = lambda value: {"text": value.text}
    async with AgentController(
        ScriptedProvider([call("t__fill", {"size": 60_000})], "done"), controllers=[text], journal=journal
    ) as agent:
        reply = await agent.send("go")
        await journal.reached.wait()
        agent.abort()
        journal.held.set()
        assert await reply.wait_closed(5)
        await passes()
        assert (reply.ending, text.state) == ("cancelled", None)
        assert notes(await agent.runs.events(reply.id), "controllers/committed") == []


async def test_a_stop_between_preparing_and_the_append() -> None:
    """TC-97: the stop comes in the very step in which the last `prepare` returns."""
    number = Number("n")

    class Stopping(Number):
        async def prepare(self, value, reply):
            made = await super().prepare(value, reply)
            asyncio.get_running_loop().call_soon(agent.abort)
            return made

    number = Stopping("n")
    agent = AgentController(ScriptedProvider([add(1)], "done"), controllers=[number])
    async with agent:
        reply = await agent.send("go")
        assert await reply.wait_closed(5)
        await passes()
        end = (await agent.runs.events(reply.id))[-1].fact.outcome
        committed = notes(await agent.runs.events(reply.id), "controllers/committed")
        assert (number.state == 1) == isinstance(end, Completed) == bool(committed)


async def test_a_run_that_is_taken_over_while_it_is_sealed() -> None:
    """TC-78, RC-16: the store's fence refuses the append: nothing is applied here."""
    number = Number("n")
    faulty = FaultyJournal(MemoryJournal())

    async def thief():
        faulty.steal(1)

    number.fail["prepare"] = thief
    agent = AgentController(ScriptedProvider([add(1)], "done"), controllers=[number], journal=faulty)
    reply = await agent.send("go")
    await reply.wait()
    await passes()
    assert (reply.ending, number.state) == ("unknown", None)
    assert number.responses[0].commits == {"n": "discarded"}
    await agent.aclose()


async def test_a_call_that_was_left_behind_stages_nothing() -> None:
    """TC-71: its call has ended, its send lives; what it had staged before is dropped too."""
    entered, late = threading.Event(), threading.Event()
    outcome = []

    class Hanging(Number):
        def get_tools(self):
            return [self._tool(), self.add]

        def _tool(self):
            @tool(name="hang", timeout=0.05)
            def hang() -> str:
                """Hangs."""
                self.stage(5)
                entered.set()
                late.wait(10)
                try:
                    self.stage(666)
                except BaseException as error:
                    outcome.append(type(error))
                return "late"

            return hang

    number = Hanging("n")
    hold = Hold()
    agent = AgentController(
        ScriptedProvider([call("n__hang")], ["…", hold, "done"]),
        controllers=[number],
        config=LoopConfig(cancel_grace=0.05),
    )
    async with agent:
        reply = await agent.send("go")
        await hold.reached()
        late.set()
        while not outcome:
            await asyncio.sleep(0)
        assert outcome == [UsageError]
        hold.release()
        await reply.result()
        assert number.state is None


@pytest.mark.parametrize("spoiled", [False, True])
async def test_a_value_is_noted_with_the_first_end_fact_of_its_call(spoiled: bool) -> None:
    """TC-72, TC-73: with `call_observed`, where a hook looks at results; what the call becomes in the end decides."""
    config = LoopConfig(after_tool_call=lambda done: Override(is_error=spoiled))
    agent, number, reply = await ran([add(1)], "done", config=config)
    records = await agent.runs.events(reply.id)
    at = next(
        n for n, record in enumerate(records) if getattr(record.fact, "name", "") == "controllers/staged"
    )
    assert records[at + 1].fact.kind == "call_observed"
    assert len(notes(records, "controllers/staged")) == 1
    assert number.state == (None if spoiled else 1)
    await agent.aclose()


@pytest.mark.parametrize("spoiled", [False, True])
async def test_a_process_that_dies_between_observed_and_finished(spoiled: bool) -> None:
    """Proof 9: the next one counts the value, or drops it, by how the call ends there."""
    inner = MemoryJournal()
    faulty = FaultyJournal(inner)
    gate = asyncio.Event()

    async def hang(done):
        gate.set()
        await asyncio.Event().wait()

    before = asyncio.all_tasks()
    agent = AgentController(
        ScriptedProvider([add(1)], "done"),
        controllers=[Number("n")],
        journal=faulty,
        thread_id="t",
        config=LoopConfig(after_tool_call=hang),
    )
    reply = await agent.send("go", id="r1")
    await gate.wait()
    faulty.crash(1)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await passes()
    head = await inner.head("r1")
    if head.owner is not None:
        await inner.release(Owner(head.owner))
    number = Number("n")
    config = LoopConfig(after_tool_call=lambda done: Override(is_error=spoiled))
    async with AgentController(
        ScriptedProvider("done"), controllers=[number], journal=inner, thread_id="t", config=config
    ) as again:
        await again.runs.recover("r1")
        await again.runs.wait_for_terminal("r1")
        await passes(50)
        assert number.state == (None if spoiled else 1)
        assert number.responses[0].commits == ({} if spoiled else {"n": "committed"})
    _dead.append((agent, reply))


_dead: list[object] = []


# Between sends


async def test_a_change_by_the_user() -> None:
    """TC-79: prepared and applied at once; durable from the next send on."""
    journal = MemoryJournal()
    number = Number("n")
    async with AgentController(
        ScriptedProvider("ok"), controllers=[number], journal=journal, thread_id="t"
    ) as agent:
        await number.set(5)
        assert [(c.before, c.after, c.source, c.reply_id) for c in number.changes] == [
            (None, 5, "user", None)
        ]
        assert number.told.names() == ["prepare n", "apply n"]
        number.fail["prepare"] = ValueError("no")
        with pytest.raises(ValueError, match="no"):
            await number.set(6)
        assert number.state == 5
        number.fail.clear()
        await (await agent.send("hi")).result()
        assert agent.shared_state == {"n": 5}
    again = Number("n")
    async with AgentController(ScriptedProvider("ok"), controllers=[again], journal=journal, thread_id="t"):
        assert again.state == 5
        assert again.changes == []  # TC-116: a restore tells nobody


async def test_a_change_by_the_user_during_a_send() -> None:
    """TC-79: the model's value wins, and the change names both."""
    hold = Hold()
    number = Number("n")
    async with AgentController(ScriptedProvider([add(1)], ["x", hold]), controllers=[number]) as agent:
        reply = await agent.send("go")
        await hold.reached()
        await number.set(50)
        hold.release()
        await reply.result()
        assert [(c.before, c.after, c.source) for c in number.changes] == [
            (None, 50, "user"),
            (50, 1, "model"),
        ]


async def test_a_callback_can_be_taken_back() -> None:
    """TC-77."""
    number = Number("n")
    seen = []
    leave = number.on_change(seen.append)
    await number.set(1)
    leave()
    await number.set(2)
    assert [change.after for change in seen] == [1]


async def test_a_stored_end_is_the_commit_on_sqlite_too(tmp_path) -> None:
    """TC-76, TC-78: one append; an export of the same thread agrees."""
    journal = SQLiteJournal(tmp_path / "j.db")
    number = Number("n")
    async with AgentController(
        ScriptedProvider([add(1)], "done", [add(2)], "done"),
        controllers=[number],
        journal=journal,
        thread_id="t",
    ) as agent:
        for _ in range(2):
            reply = await agent.send("go")
            await reply.result()
        assert number.state == 3
        records = await agent.runs.events(reply.id)
        assert isinstance(records[-1].fact.outcome, Completed)
        assert notes(records, "controllers/committed")[0]["n"]["value"] == 3
    await journal.aclose()
