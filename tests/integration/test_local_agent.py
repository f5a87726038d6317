"""`LocalAgent` over our conversations: stops, steering, restarts, several at once, the journal's answer (AG-180 … AG-184)."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit import ONE_ATTEMPT, tasks_of
from convkit import SlowJournal
from pilothouse.agent_errors import RecoveryRequired, RequestPending, ResumeInvalid
from pilothouse.agents import LocalAgent
from pilothouse.agents.signals import watch
from pilothouse.cancel import Token
from pilothouse.conversation.controller import AgentController
from pilothouse.errors import AgentBusy, JournalUnavailable, MessageTooLong
from pilothouse.journal.memory import MemoryJournal
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.messages import Image, Text
from pilothouse.projection import CustomEvent, InterruptAnswer, Ok
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedProvider, StepClock
from pilothouse.testing.agent_suite.driving import consistent, shown, texts, until
from pilothouse.testing.scripted import Cut, Hold, call, failure, thought


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool(approval=True)
def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


@tool(effect="human")
async def ask_name(context: ToolContext) -> str:
    """Asks."""
    return "hello " + await context.ask("What is your name?")


def controller(provider: ScriptedProvider, journal=None, thread_id=None, **options) -> AgentController:
    return AgentController(
        provider,
        tools=[add, pay, ask_name],
        config=ONE_ATTEMPT,
        journal=journal,
        thread_id=thread_id,
        **options,
    )


class Opened:
    """A local agent, open, until the block ends."""

    def __init__(self, *scripts, journal=None, thread_id=None, agent=None, **options) -> None:
        self.provider = ScriptedProvider(*scripts)
        self.controller = controller(self.provider, journal, thread_id, **options)
        self.options = agent or {}

    async def __aenter__(self) -> LocalAgent:
        self.agent = LocalAgent(self.controller, **self.options)
        return await self.agent.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.agent.aclose()
        await self.controller.aclose()


# Shown at once


async def test_a_slow_journal_shows_at_once() -> None:
    """AG-184, §5.7: here at once, in the controller only once durable, one message under one id."""
    journal = SlowJournal()
    journal.open.clear()
    async with Opened("Hello", journal=journal) as agent:
        op = agent.submit("hi")
        mine = agent.messages.get()[0]
        await asyncio.sleep(0)
        assert texts(agent) == [("user", "hi")]
        assert agent.controller.messages == ()
        journal.open.set()
        assert await op == "success"
        assert agent.messages.get()[0] is mine
        assert agent.controller.messages[0].id == mine.id


async def test_a_stop_before_the_commit_takes_the_message_back() -> None:
    """AG-184: outcome `aborted`; nothing is registered, or it stays if the registration stands."""
    journal = SlowJournal()
    journal.open.clear()
    async with Opened("Hello", "fine", journal=journal) as agent:
        op = agent.submit("hi")
        assert await agent.stop() == "stopped"
        assert await op == "aborted"
        assert texts(agent) == []
        assert journal.registrations == 0
        journal.open.set()
        assert await agent.submit("again") == "success"
        assert texts(agent)[0] == ("user", "again")


async def test_a_journal_that_is_away_is_raised_by_awaiting() -> None:
    """AG-15: the optimistic message is taken back, the status is idle, nothing is on `error`."""
    journal = SlowJournal()
    journal.failure = JournalUnavailable("away")
    async with Opened("Hello", journal=journal) as agent:
        op = agent.submit("hi", state={"n": 1})
        assert dict(agent.state.get()) == {"n": 1}
        with pytest.raises(JournalUnavailable):
            await op
        assert (texts(agent), agent.status.get(), agent.error.get()) == ([], "idle", None)
        assert dict(agent.state.get()) == {}


async def test_a_limit_is_raised_by_awaiting() -> None:
    """AG-15."""
    async with Opened("Hello", max_message_length=5) as agent:
        with pytest.raises(MessageTooLong):
            await agent.submit("much too long")
        assert texts(agent) == []
        assert await agent.submit("hi") == "success"


async def test_another_caller_of_the_controller_is_followed() -> None:
    """AG-44, AG-180: a run that somebody else started drives the same signals."""
    hold = Hold()
    async with Opened(["one", hold, "!"], "two") as agent:
        sending = asyncio.create_task(agent.controller.send("theirs"))
        await shown(agent, "one")
        assert agent.status.get() == "running"
        with pytest.raises(AgentBusy):
            agent.submit("mine")
        hold.release()
        await sending
        await until(agent, "idle")
        assert texts(agent) == [("user", "theirs"), ("assistant", "one!")]
        assert await agent.submit("mine") == "success"


async def test_state_is_the_threads() -> None:
    """AG-25, AG-72, TC-121: the patch is a fact, and survives a restart."""
    journal = MemoryJournal()
    async with Opened("one", journal=journal) as agent:
        op = agent.submit("hi", state={"n": {"a": 1}})
        assert dict(agent.state.get()) == {"n": {"a": 1}}
        await op
        thread_id = agent.thread_id
        assert dict(agent.controller.shared_state) == {"n": {"a": 1}}
    async with Opened(journal=journal, thread_id=thread_id) as agent:
        assert dict(agent.state.get()) == {"n": {"a": 1}}


async def test_parts_travel_as_parts() -> None:
    """AG-70, AG-173."""
    async with Opened("I see") as agent:
        picture = Image("image/png", data=b"\x89PNG")
        assert await agent.submit([Text("look"), picture]) == "success"
        assert agent.messages.get()[0].content == (Text("look"), picture)


# Stop


@tool
async def stubborn() -> str:
    """Does not listen."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            if stubborn_may_end.is_set():
                raise


stubborn_may_end = asyncio.Event()


async def test_a_deaf_backend_is_unconfirmed_within_the_grace() -> None:
    """AG-91, AG-92: `stopping` meanwhile; a submission in that time is admitted."""
    clock = StepClock()
    hold = Hold(deaf=True)
    provider = ScriptedProvider(["one", hold, "never"], "fine")
    inner = AgentController(provider, config=ONE_ATTEMPT)
    agent = await LocalAgent(inner, clock=clock, stop_grace=5.0).open()
    op = agent.submit("hi")
    await shown(agent, "one")
    stopping = agent.stop()
    assert agent.stopping.get() is True
    await asyncio.sleep(0)
    await clock.advance(5.0)
    assert await stopping == "unconfirmed"
    assert await op == "aborted"
    assert agent.stopping.get() is False
    hold.release()
    assert await agent.submit("next") == "success"
    await agent.aclose()
    await inner.aclose()


async def test_stop_regenerate_stop() -> None:
    """§5.8."""
    holds = [Hold(), Hold()]
    async with Opened(["one", holds[0]], ["two", holds[1]], "three") as agent:
        agent.submit("hi")
        await shown(agent, "one")
        await agent.stop()
        op = agent.regenerate(1)
        await shown(agent, "two")
        assert await agent.stop() == "stopped"
        assert await op == "aborted"
        assert await agent.regenerate(1) == "success"
        assert texts(agent) == [("user", "hi"), ("assistant", "three")]


async def test_a_stop_keeps_what_was_seen() -> None:
    """AG-96: also after a reload, marked."""
    journal = MemoryJournal()
    hold = Hold()
    async with Opened(["some text", hold], journal=journal) as agent:
        agent.submit("hi")
        await shown(agent, "some text")
        await agent.stop()
        thread_id = agent.thread_id
    async with Opened(journal=journal, thread_id=thread_id) as agent:
        assert texts(agent) == [("user", "hi"), ("assistant", "some text")]
        assert agent.messages.get()[-1].delivery.outcome == "aborted"


# Steering


async def test_a_run_takes_steering() -> None:
    """AG-78, AG-84: it stands behind the stream until the run takes it in, and settles with the run."""
    hold = Hold()
    scripts = [["one", hold, call("add", {"a": 1, "b": 2})], "three, as you say"]
    async with Opened(*scripts) as agent:
        op = agent.submit("hi")
        await shown(agent, "one")
        steered = agent.submit("in French", when_busy="steer")
        assert texts(agent)[-1] == ("user", "in French")
        hold.release()
        assert await op == "success"
        assert await steered == "success"
        assert texts(agent) == [
            ("user", "hi"),
            ("assistant", "one"),
            ("user", "in French"),
            ("assistant", "three, as you say"),
        ]
        assert [item.id for item in agent.messages.get() if item.role != "tool"] == [
            message.id for message in agent.controller.messages if message.role != "tool"
        ]


async def test_steering_that_comes_too_late_is_a_submission() -> None:
    """AG-84: nothing is left for the next send; after a stop it is taken back."""
    hold = Hold()
    async with Opened(["one", hold], "two", ["three", Hold()]) as agent:
        agent.submit("hi")
        await shown(agent, "one")
        steered = agent.submit("late", when_busy="steer")
        hold.release()
        assert await steered == "success"
        assert texts(agent)[-2:] == [("user", "late"), ("assistant", "two")]
        assert agent.controller.undelivered == ()
        op = agent.submit("again")
        await shown(agent, "three")
        steered = agent.submit("gone", when_busy="steer")
        await asyncio.sleep(0)
        await agent.stop()
        assert await op == "aborted"
        assert await steered == "aborted"
        assert "gone" not in str(texts(agent))


async def test_a_run_is_rolled_back_and_another_takes_its_place() -> None:
    """AG-78: the first of a thread too; the model never reads what was rolled back."""
    async with Opened(["one", Hold()], ["two", Hold()], "three", ["four", Hold()], "five") as agent:
        first = agent.submit("1")
        await shown(agent, "one")
        second = agent.submit("2", when_busy="rollback")
        assert await first == "interrupted"
        await shown(agent, "two")
        assert texts(agent) == [("user", "2"), ("assistant", "two")]
        assert await agent.submit("3", when_busy="rollback") == "success"
        assert await second == "interrupted"
        agent.submit("4")
        await shown(agent, "four")
        assert await agent.submit("5", when_busy="rollback") == "success"
        wanted = [("user", "3"), ("assistant", "three"), ("user", "5"), ("assistant", "five")]
        assert texts(agent) == wanted
        other = await LocalAgent(agent.controller.sibling(agent.thread_id)).open()
        assert texts(other) == wanted
        assert len(other.history.get()) == 5  # nothing is deleted
        await other.aclose()
        await other.controller.aclose()


async def test_a_run_is_rolled_back_before_it_is_registered() -> None:
    """AG-78: at once behind the first submission."""
    async with Opened("one", "two") as agent:
        first = agent.submit("1")
        second = agent.submit("2", when_busy="rollback")
        assert await first in ("interrupted", "aborted")
        assert await second == "success"
        assert texts(agent)[0] == ("user", "2")
        assert len(texts(agent)) == 2


# Waiting


async def test_an_approval_survives_a_restart(tmp_path) -> None:
    """AG-141: answerable in a fresh process, under the call's own id (AG-137)."""
    path = tmp_path / "a.db"
    async with (
        SQLiteJournal(path) as journal,
        Opened([call("pay", {"amount": 3})], journal=journal, close_timeout=0.1) as agent,
    ):
        assert await agent.submit("pay") == "paused"
        thread_id = agent.thread_id
        await agent.controller.runs.aclose()
    async with (
        SQLiteJournal(path) as journal,
        Opened("thanks", journal=journal, thread_id=thread_id) as agent,
    ):
        async for phase in watch(agent.interrupts.phase):
            if phase == "pending":
                break
        assert agent.interrupt.get().resumable
        assert agent.status.get() == "idle"
        payload = {"approved": True, "editedArgs": {"amount": 4}}
        assert await agent.submit(resume=payload) == "success"
        (done,) = agent.tool_calls.get()
        assert (done.name, done.result, done.status, dict(done.args)) == (
            "pay",
            "paid 4",
            "complete",
            {"amount": 4},
        )
        assert texts(agent)[-1] == ("assistant", "thanks")


@pytest.mark.parametrize(
    ("payload", "ledger"),
    [(True, "succeeded"), (False, "refused"), ({"approved": False, "reason": "too much"}, "refused")],
)
async def test_approvals(payload, ledger) -> None:
    """AG-142."""
    async with Opened([call("pay", {"amount": 3})], "so be it") as agent:
        await agent.submit("pay")
        assert await agent.submit(resume=payload) == "success"
        (done,) = agent.tool_calls.get()
        assert done.ledger == ledger
        assert (done.status == "error") == (ledger != "succeeded")


@pytest.mark.parametrize("payload", ["yes", 1, {"approved": "yes"}, {"approved": True, "extra": 1}, None])
async def test_anything_else_is_no_answer(payload) -> None:
    """AG-142: refused in the call, the batch stays."""
    async with Opened([call("pay", {"amount": 3})], "fine") as agent:
        await agent.submit("pay")
        with pytest.raises(ResumeInvalid):
            agent.submit(resume=payload)
        assert agent.interrupts.phase.get() == "pending"
        assert (
            await agent.submit(resume=[InterruptAnswer(agent.interrupt.get().id, "cancelled")]) == "success"
        )


async def test_an_input_takes_text() -> None:
    """AG-142."""
    async with Opened([call("ask_name")], "nice to meet you") as agent:
        assert await agent.submit("hi") == "paused"
        assert agent.interrupt.get().value == "What is your name?"
        assert await agent.submit(resume="Ada") == "success"
        assert agent.tool_calls.get()[0].result == "hello Ada"


async def test_a_stop_cancels_a_waiting_run() -> None:
    """AG-95: its requests close with a result each, the next submission works."""
    async with Opened([call("pay", {"amount": 3})], "fine") as agent:
        await agent.submit("pay")
        assert await agent.stop() == "stopped"
        assert agent.interrupts.phase.get() == "none"
        assert agent.interrupt.get() is None
        assert await agent.submit("other") == "success"
        assert agent.tool_calls.get()[0].result is not None
        roles = [message.role for message in agent.messages.get()]
        assert roles == ["user", "assistant", "tool", "user", "assistant"]


async def test_a_submission_may_supersede_a_waiting_run() -> None:
    """AG-79: each open request closes with a result for its call; a late answer is refused."""
    async with Opened([call("pay", {"amount": 3})], "fine") as agent:
        await agent.submit("pay")
        with pytest.raises(RequestPending):
            agent.submit("other")
        assert await agent.submit("other", when_busy="supersede") == "success"
        assert texts(agent)[-1] == ("assistant", "fine")
        with pytest.raises(ResumeInvalid):
            agent.submit(resume=True)


async def test_somebody_else_answers() -> None:
    """AG-44, AG-182: two agents on one thread; one answers, both go on and show the same."""
    async with Opened([call("pay", {"amount": 3})], "paid") as agent:
        await agent.submit("pay")
        twin = agent.controller.sibling(agent.thread_id)
        other = await LocalAgent(twin).open()
        async for phase in watch(other.interrupts.phase):
            if phase == "pending":
                break
        assert await other.submit(resume=True) == "success"
        await shown(agent, "paid")
        await until(agent, "idle")
        assert agent.interrupts.phase.get() == "none"
        assert [item.id for item in agent.messages.get()] == [item.id for item in other.messages.get()]
        await other.aclose()
        await twin.aclose()


async def test_an_approval_of_two_agents_counts_once() -> None:
    """Issue 8.5, AG-130: both answer at once: performed once; the other is told, and shows the same in the end."""
    async with Opened([call("pay", {"amount": 3})], "done", "more") as agent:
        assert await agent.submit("hi") == "paused"
        other = await LocalAgent(agent.controller.sibling(agent.thread_id)).open()
        assert other.interrupts.phase.get() == "pending"
        both = (agent, other)
        found = await asyncio.gather(
            agent.submit(resume=True), other.submit(resume=True), return_exceptions=True
        )
        assert "success" in found
        for each in both:
            await until(each, "idle")
            assert each.interrupts.phase.get() == "none"
        said = [("user", "hi"), ("assistant", ""), ("assistant", "done")]
        assert texts(agent) == texts(other) == said
        results = [message.text for message in agent.messages.get() if message.role == "tool"]
        assert results == ["paid 3"]
        assert await other.submit("and now?") == "success"
        await other.aclose()
        await other.controller.aclose()


# Unknown ends


async def lost(journal, **more):
    """A thread whose last run was lost with its process."""
    hold = Hold()
    first = controller(ScriptedProvider(["partial", hold]), journal, **more)
    agent = await LocalAgent(first).open()
    agent.submit("hi")
    await shown(agent, "partial")
    await first.runs.aclose(timeout=0)
    thread_id = agent.thread_id
    await agent.aclose()
    await first.aclose()
    return thread_id


async def test_a_lost_run_may_be_retried_where_nothing_is_uncertain() -> None:
    """AG-64, AG-104, AG-183: the decision is recorded first, so every run has exactly one end."""
    journal = MemoryJournal()
    thread_id = await lost(journal)
    async with Opened("whole", journal=journal, thread_id=thread_id) as agent:
        error = agent.error.get()
        assert (agent.status.get(), error.kind, error.recovery) == ("error", "interrupted", "retry")
        last = agent.messages.get()[-1]
        assert (last.text, last.delivery.outcome) == ("partial", "interrupted")
        old = error.run_id
        assert await agent.retry() == "success"
        assert texts(agent) == [("user", "hi"), ("assistant", "whole")]
        view = await agent.controller.runs.inspect(old)
        assert view.outcome is not None


async def test_a_call_whose_effect_nobody_knows_is_not_repeated() -> None:
    """AG-64, AG-103, AG-172, AG-183."""
    journal = MemoryJournal()
    began = asyncio.Event()

    @tool
    async def send_mail() -> str:
        """Sends."""
        began.set()
        await asyncio.sleep(3600)
        return "sent"

    first = AgentController(
        ScriptedProvider([call("send_mail")]), tools=[send_mail], config=ONE_ATTEMPT, journal=journal
    )
    agent = await LocalAgent(first).open()
    agent.submit("hi")
    await began.wait()
    await first.runs.aclose(timeout=0)
    thread_id = agent.thread_id
    await agent.aclose()
    await first.aclose()
    async with Opened("never", journal=journal, thread_id=thread_id) as agent:
        error = agent.error.get()
        assert (error.kind, error.recovery, error.retryable) == ("interrupted", "check", False)
        assert "abandon" in error.detail
        with pytest.raises(RecoveryRequired):
            agent.retry()
        await agent.check_status()
        assert agent.error.get() is error  # still unknown


async def test_a_check_finds_what_the_journal_knows() -> None:
    """AG-117: abandoned meanwhile: the error clears; nothing was resubmitted."""
    journal = MemoryJournal()
    thread_id = await lost(journal)
    async with Opened(journal=journal, thread_id=thread_id) as agent:
        run_id = agent.error.get().run_id
        await agent.controller.runs.abandon(run_id, "enough")
        await agent.check_status()
        assert (agent.status.get(), agent.error.get()) == ("idle", None)
        assert texts(agent) == [("user", "hi"), ("assistant", "partial")]


async def test_a_check_follows_a_run_that_lives_on() -> None:
    """AG-117: recovered by another controller meanwhile: attached and followed."""
    journal = MemoryJournal()
    thread_id = await lost(journal)
    async with Opened(journal=journal, thread_id=thread_id) as agent:
        run_id = agent.error.get().run_id
        hold = Hold()
        other = controller(ScriptedProvider(["whole", hold, "!"]), journal, thread_id)
        await other.runs.recover(run_id)
        await agent.check_status()
        assert agent.status.get() == "running"
        await shown(agent, "whole")
        hold.release()
        await until(agent, "idle")
        assert texts(agent)[-1] == ("assistant", "whole!")
        fresh = await LocalAgent(other.sibling(thread_id)).open()
        assert texts(fresh) == texts(agent)
        await fresh.aclose()
        await fresh.controller.aclose()
        await other.aclose()


async def test_a_run_that_is_taken_up_elsewhere_is_noticed() -> None:
    """AG-44: who was told that nobody knows is told when somebody does, without asking."""
    journal = MemoryJournal()
    thread_id = await lost(journal)
    clock = StepClock()
    watching = {"clock": clock, "watch_interval": 1.0}
    async with Opened(journal=journal, thread_id=thread_id, agent=watching) as agent:
        error = agent.error.get()
        await clock.advance(1.0)
        await clock.advance(1.0)
        assert agent.error.get() is error
        hold = Hold()
        other = controller(ScriptedProvider(["whole", hold, "!"]), journal, thread_id)
        await other.runs.recover(error.run_id)
        await clock.advance(1.0)
        await shown(agent, "whole")
        assert (agent.status.get(), agent.error.get()) == ("running", None)
        hold.release()
        await until(agent, "idle")
        assert texts(agent)[-1] == ("assistant", "whole!")
        await other.aclose()


# The tree


async def test_history_is_the_tree_of_the_thread() -> None:
    """AG-113, AG-175, AG-176: regenerated beside, retried behind; each answer leads back; whoever opens sees the same."""
    async with Opened("one", "two", "anew", [failure("server_error", "no")], "at last") as agent:
        assert (agent.history.get(), dict(agent.checkpoints.get())) == ((), {})
        await agent.submit("1")
        await agent.submit("2")
        answer = agent.messages.get()[3].id
        first, second = agent.history.get()[::-1]
        assert agent.checkpoints.get()[answer] is second
        assert await agent.regenerate(answer) == "success"
        assert await agent.submit("3") == "error"
        assert await agent.retry() == "success"
        history = agent.history.get()
        assert [item.label for item in history] == ["3", "3", "2", "2", "1"]
        retried, failed, anew, second, first = history
        assert (first.values["parent"], second.values["parent"], anew.values["parent"]) == (
            None,
            first.id,
            first.id,
        )
        assert anew.values["siblings"] == [second.id, anew.id]
        assert (failed.values["parent"], retried.values["parent"]) == (anew.id, failed.id)
        assert [item.values["status"] for item in (retried, failed)] == ["completed", "failed"]
        assert agent.checkpoints.get()[answer].id == second.id  # the old branch is still there
        other = await LocalAgent(agent.controller.sibling(agent.thread_id)).open()
        assert other.history.get() == history
        assert dict(other.checkpoints.get()) == dict(agent.checkpoints.get())
        await other.aclose()
        await other.controller.aclose()


# Several, later, and what is left behind


async def test_a_run_of_another_controller_is_found() -> None:
    """AG-44, AG-182: another tab, a command line, over the same file."""
    journal = MemoryJournal()
    clock = StepClock()
    hold = Hold()
    async with Opened("one", journal=journal, agent={"clock": clock, "watch_interval": 1.0}) as agent:
        await agent.submit("1")
        other = controller(ScriptedProvider(["two", hold, "!"], "three"), journal, agent.thread_id)
        elsewhere = await LocalAgent(other).open()
        op = elsewhere.submit("2")
        await shown(elsewhere, "two")
        await clock.advance(1.0)
        await shown(agent, "two")
        assert agent.status.get() == "running"
        hold.release()
        assert await op == "success"
        await until(agent, "idle")
        assert texts(agent) == texts(elsewhere)
        await elsewhere.aclose()
        await other.aclose()


async def test_a_replaced_conversation_is_a_thread_switch() -> None:
    """AG-180: `reset()` and `set_messages()` of the controller."""
    async with Opened("one", ["two", Hold()]) as agent:
        await agent.submit("1")
        op = agent.submit("2")
        await shown(agent, "two")
        agent.controller.reset()
        assert await op == "aborted"
        assert (agent.messages.get(), agent.status.get()) == ((), "idle")
        assert await agent.retry() == "nothing"
        agent.controller.set_messages(
            [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "imported"}]}]
        )
        assert texts(agent) == [("user", "imported")]


async def test_events_of_a_run() -> None:
    """AG-26: a tool's own notes and extensions."""
    seen: list[object] = []
    async with Opened("one") as agent:
        agent.events.subscribe(seen.append)
        await agent.submit("1")
        assert all(isinstance(event, CustomEvent) for event in seen)


async def test_whoever_waits_behind_a_run_is_told_of_the_close() -> None:
    """AG-18: a submission whose turn has not come does not wait for ever."""
    hold = Hold()
    async with Opened(["one", hold, "!"], ["two"]) as agent:
        agent.submit("hi")
        await shown(agent, "one")
        waits = agent.submit("more", when_busy="queue")
        await shown(agent, "more")
        await asyncio.sleep(0)  # the conversation has it
        await agent.aclose()
        assert await waits == "interrupted"
        hold.release()


async def test_an_answer_may_be_cancelled() -> None:
    """AG-76: a token that is set while the answered run works stops that run."""
    hold, token = Hold(), Token()
    async with Opened([call("pay", {"amount": 1})], ["thanks", hold, "!"]) as agent:
        assert await agent.submit("pay") == "paused"
        op = agent.submit(resume=True, cancel=token)
        await shown(agent, "thanks")
        token.set("enough")
        assert await op == "aborted"
        assert agent.status.get() == "idle"
        hold.release()


async def test_publishing_may_be_thinned_out() -> None:
    """AG-8: at most every interval; the last value before a status change is published at once."""
    clock = StepClock()
    hold = Hold()
    pieces = list("abcdefghijklmnop")
    async with Opened([*pieces, hold, "!"], agent={"clock": clock, "publish_interval": 10.0}) as agent:
        published: list[int] = []
        agent.messages.subscribe(lambda messages: published.append(len(messages[-1].text)))
        op = agent.submit("hi")
        await hold.reached()
        hold.release()
        assert await op == "success"
        assert len(published) < 6
        assert texts(agent)[-1] == ("assistant", "".join(pieces) + "!")


async def test_a_conversation_that_is_closed_leaves_nothing_alive() -> None:
    """AG-18: `aclose()` detaches; with `cancel_on_close` it stops."""
    for cancel in (False, True):
        hold = Hold()
        inner = controller(ScriptedProvider(["one", hold, "!"]))
        agent = await LocalAgent(inner, cancel_on_close=cancel).open()
        op = agent.submit("hi")
        await shown(agent, "one")
        reply = inner.reply
        await agent.aclose()
        assert await op == "interrupted"
        assert not tasks_of(agent)
        hold.release()
        await reply.wait()
        assert type(reply.outcome).__name__ == ("Cancelled" if cancel else "Completed")
        await inner.aclose()


# Properties

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text("ab ", min_size=1, max_size=4)),
        st.tuples(st.just("think"), st.text("xy", min_size=1, max_size=4)),
        st.tuples(st.just("call"), st.integers(0, 5)),
        st.tuples(st.just("fail"), st.none()),
        st.tuples(st.just("cut"), st.none()),
    ),
    min_size=1,
    max_size=4,
)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["submit", "stop", "retry", "regenerate"]), STEPS), min_size=1, max_size=4
)


def scripts_of(steps) -> list:
    out: list = []
    script: list = []
    for kind, value in steps:
        if kind == "text":
            script.append(value)
        elif kind == "think":
            script.append(thought(value))
        elif kind == "call":
            out.append([*script, call("add", {"a": value, "b": 1})])
            script = []
        elif kind == "fail":
            return [*out, [*script, failure("server_error", "no")]]
        else:
            return [*out, [*script, Cut()]]
    return [*out, [*script, "end"]]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS)
def test_a_fresh_agent_shows_the_same(actions) -> None:
    """AG-181: after whatever happened, what is shown equals what a fresh `LocalAgent` on the thread shows."""

    async def run() -> None:
        journal = MemoryJournal()
        provider = ScriptedProvider()
        inner = controller(provider, journal)
        agent = await LocalAgent(inner, watch_interval=0).open()
        with consistent(agent) as wrong:
            for action, steps in actions:
                provider.add(*scripts_of(steps))
                await act(agent, action)
            await asyncio.sleep(0)
        assert wrong == []
        twin = inner.sibling(inner.thread_id)
        fresh = await LocalAgent(twin, watch_interval=0).open()
        assert [look(item) for item in fresh.messages.get()] == [look(item) for item in agent.messages.get()]
        assert {c.id: (c.name, c.result) for c in fresh.tool_calls.get()} == {
            c.id: (c.name, c.result)
            for c in agent.tool_calls.get()
            if c.id in {call.id for call in fresh.tool_calls.get()}
        }
        for item in (fresh, agent, twin, inner):
            await item.aclose()

    asyncio.run(run())


async def act(agent: LocalAgent, action: str) -> None:
    messages = agent.messages.get()
    answers = [item.id for item in messages if item.role == "assistant"]
    if action == "retry":
        with suppress(RecoveryRequired):
            await agent.retry()
    elif action == "regenerate" and answers:
        await agent.regenerate(answers[-1])
    elif action == "stop":
        op = agent.submit("stopped")
        for _ in range(3):
            await asyncio.sleep(0)
        await agent.stop()
        await op
    else:
        await agent.submit("go")


def look(item):
    return (item.id, item.role, item.content, item.reasoning or "", item.tool_call_ids, item.tool_call_id)


async def test_many_runs_leave_nothing_behind() -> None:
    """§5.16: flat memory, no live task."""
    provider = ScriptedProvider(*["x"] * 200)
    runs = RunController(controller(provider).runtime)
    inner = controller(provider).joined(runs)
    agent = await LocalAgent(inner).open()
    counts = []
    for number in range(160):
        assert await agent.submit("hi") == "success"
        inner.reset()
        if number % 40 == 39:
            await asyncio.sleep(0)
            gc.collect()
            counts.append(
                len(
                    [
                        item
                        for item in gc.get_objects()
                        if str(type(item).__module__).startswith("pilothouse.agents")
                    ]
                )
            )
    assert counts[-1] - counts[1] < 20
    assert len(tasks_of(agent)) <= 1
    await agent.aclose()
    await inner.aclose()
    await runs.aclose()


async def test_results_of_client_tools_without_another_request() -> None:
    """AG-150: `pilothouse/terminate`: the run completes and the model is not asked again."""
    from pilothouse.messages import ToolSpec

    async with Opened([call("show", {})]) as agent:
        agent.client_tools.set_catalog([ToolSpec("show", "Shows.", {"type": "object", "properties": {}})])
        assert await agent.submit("hi") == "paused"
        (open_call,) = agent.client_tools.pending.get()
        agent.client_tools.settle(open_call.id, Ok("shown"))
        assert agent.client_tools.pending.get() == ()
        await agent.client_tools.flush()
        assert agent.status.get() == "idle"
        assert agent.messages.get()[-1].role == "tool"
