"""Sends of a conversation: guards, commit, ids, cancelled callers, retry and regenerate (AC-30 … AC-52)."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from math import inf
from pathlib import Path

import pytest

from convkit import Log, SlowJournal, passes, texts, until
from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.extras import Refused, RunExtras
from pilothouse.conversation.reply import ReplyPhase
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import (
    AgentBusy,
    AgentClosed,
    AttachmentTooLarge,
    ConfigError,
    ConversationFull,
    InvalidSpec,
    InvalidTarget,
    JournalUnavailable,
    MessageTooLong,
    NothingToDo,
    ReplyCancelled,
    RunConflict,
    SendAbandoned,
    ThreadConflict,
    UsageError,
)
from pilothouse.events import Cancelled, Completed, Failed, Unknown
from pilothouse.journal.memory import MemoryJournal
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.tools import tool
from pilothouse.messages import Image, Message, Text, user_message
from pilothouse.records import Owner, Parent, RunSpec
from pilothouse.responses import ModelRequest
from pilothouse.runs.controller import RunController
from pilothouse.testing import FaultyJournal
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call, failure


async def test_with_a_journal_that_is_awaited_the_message_appears_once_it_is_durable() -> None:
    """AC-40, AC-33: sending is set in the first step; no message is ever shown and taken back."""
    journal = SlowJournal()
    journal.open.clear()
    async with AgentController(ScriptedProvider("x"), journal=journal) as agent:
        task = asyncio.ensure_future(agent.send("hi"))
        await passes()
        assert (agent.state, agent.messages, agent.reply.phase) == (
            AgentState.SENDING,
            (),
            ReplyPhase.PREPARING,
        )
        journal.open.set()
        await (await task).result()
        assert texts(agent) == ["hi", "x"]


async def test_a_registration_that_fails_leaves_no_trace_and_frees_the_id() -> None:
    """AC-42, AC-41: raised out of `send`, the state goes to idle, no on_error; the draft is kept."""
    log = Log()
    journal = SlowJournal()
    journal.failure = JournalUnavailable("away")
    async with AgentController(ScriptedProvider("x"), journal=journal) as agent:
        agent.subscribe(log)
        with pytest.raises(JournalUnavailable) as caught:
            await agent.send("hi", id="k")
        assert (agent.state, agent.messages, agent.error) == (AgentState.IDLE, (), None)
        reply = caught.value.reply
        assert agent.last_reply is reply
        assert (reply.committed, reply.user_message.text, reply.outcome) == (
            False,
            "hi",
            Refused(caught.value),
        )
        assert log.entries == [("state", "sending"), ("state", "idle")]
        with pytest.raises(JournalUnavailable):
            await reply.result()
        with pytest.raises(JournalUnavailable):
            await reply.wait_committed()
        assert await reply.wait_closed()
        journal.failure = None
        assert (await (await agent.send("other", id="k")).result()).text == "x"


@pytest.mark.parametrize(("limit", "fits"), [(4, False), (5, True), (inf, True)])
async def test_the_count_covers_the_message_and_its_answer(limit: float, fits: bool) -> None:
    """AC-47: three held: a limit of 4 refuses, 5 allows; from idle, complete and error the state stays."""
    provider = ScriptedProvider("x")
    async with AgentController(provider, max_messages=limit) as agent:
        agent.set_messages([Message(str(n), "user", (Text("x"),)) for n in range(3)])
        if fits:
            await (await agent.send("hi")).result()
            assert len(agent.messages) == 5
        else:
            with pytest.raises(ConversationFull, match="would have 5 messages, the limit is 4"):
                await agent.send("hi")
            assert (agent.state, provider.requests) == (AgentState.IDLE, [])


async def test_continue_retry_and_regenerate_count_one() -> None:
    """AC-47: they add the answer only."""
    async with AgentController(ScriptedProvider(failure("auth"), "a", "b"), max_messages=2) as agent:
        await (await agent.send("hi")).wait()
        assert (await (await agent.retry()).result()).text == "a"
        with pytest.raises(ConversationFull):
            await agent.send("more")
        assert agent.state is AgentState.COMPLETE
        again = await agent.regenerate(agent.messages[-1].id)
        assert (await again.result()).text == "b"


async def test_length_is_in_characters_and_empty_content_is_sent() -> None:
    """AC-48: an emoji is one; all text parts count together."""
    async with AgentController(ScriptedProvider("a", "b"), max_message_length=2) as agent:
        await (await agent.send("😀😀")).result()
        with pytest.raises(MessageTooLong) as caught:
            await agent.send([Text("ab"), Text("c")])
        assert (caught.value.length, caught.value.limit) == (3, 2)
        assert "abc" not in str(caught.value)
        assert agent.state is AgentState.COMPLETE
        await (await agent.send("")).result()


async def test_inline_bytes_have_a_limit() -> None:
    """AC-161: of one message together."""
    async with AgentController(ScriptedProvider("a"), max_attachment_bytes=3) as agent:
        with pytest.raises(AttachmentTooLarge, match="4 bytes, the limit is 3"):
            await agent.send("x", [Image("image/png", data=b"ab"), Image("image/png", data=b"cd")])
        await (await agent.send("x", [Image("image/png", data=b"abc")])).result()


async def test_the_same_id_at_once_is_given_when_the_first_call_gives_it() -> None:
    """AC-41: also while the first call still waits; a different content is a conflict then too."""
    hold = Hold()
    async with AgentController(ScriptedProvider([hold, "x"])) as agent:
        first = asyncio.ensure_future(agent.send("hi", id="k"))
        await hold.reached()
        second = asyncio.ensure_future(agent.send("hi", id="k"))
        await passes()
        assert not second.done()
        with pytest.raises(RunConflict):
            await agent.send("other", id="k")
        hold.release()
        assert await first is await second
        await (await first).result()
    assert texts(agent) == ["hi", "x"]


async def test_the_same_id_after_a_restart_is_a_reply_over_the_earlier_run() -> None:
    """AC-41: nothing is sent, nothing enters the messages, the state goes back."""
    journal = MemoryJournal()
    async with AgentController(ScriptedProvider("one"), journal=journal, thread_id="t") as agent:
        await (await agent.send("hi", id="k")).result()
    provider = ScriptedProvider()
    async with AgentController(provider, journal=journal, thread_id="t") as later:
        reply = await later.send("hi", id="k")
        assert (await reply.result()).text == "one"
        assert (reply.outcome, reply.text, reply.user_message.text) == (Completed(), "one", "hi")
        assert (later.state, texts(later)) == (AgentState.IDLE, ["hi", "one"])
        with pytest.raises(RunConflict):
            await later.send("other", id="k")
        assert (later.state, provider.requests) == (AgentState.IDLE, [])


async def test_a_moved_head_is_a_conflict_and_open_loads_the_new_path() -> None:
    """AC-33, AC-46: the state goes to idle, the messages stay."""
    journal = MemoryJournal()
    async with (
        AgentController(ScriptedProvider("one", "three"), journal=journal, thread_id="t") as here,
        AgentController(ScriptedProvider("two"), journal=journal, thread_id="t") as there,
    ):
        await (await here.send("1")).result()
        await there.open()
        await (await there.send("2")).result()
        with pytest.raises(ThreadConflict):
            await here.send("3")
        assert (here.state, texts(here)) == (AgentState.IDLE, ["1", "one"])
        await here.open()
        assert texts(here) == ["1", "one", "2", "two"]
        await (await here.send("3")).result()
        assert texts(here)[-1] == "three"


@pytest.mark.parametrize("slow", [False, True])
async def test_cancelling_the_awaiting_task_stops_the_send(slow: bool) -> None:
    """AC-51: before hand-over; the CancelledError goes on, the conversation is free."""
    hold = Hold()
    provider = ScriptedProvider([hold], "next")
    async with AgentController(provider, journal=SlowJournal() if slow else None) as agent:
        task = asyncio.ensure_future(agent.send("hi"))
        await hold.reached()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (agent.state, agent.last_reply.outcome) == (AgentState.IDLE, Cancelled("aborted"))
        assert await agent.last_reply.wait_closed(5)
        assert provider.open == 0
        assert (await (await agent.send("again")).result()).text == "next"
        assert texts(agent) == ["hi", "again", "next"]


async def test_cancelled_while_the_registration_is_written_the_run_is_ended_and_not_left_behind() -> None:
    """AC-51, AC-80: a registration that was handed over is not undone; the run ends cancelled, unasked."""
    journal = SlowJournal()
    journal.open.clear()
    provider = ScriptedProvider("never", "next")
    async with AgentController(provider, journal=journal) as agent:
        task = asyncio.ensure_future(agent.send("hi", id="k"))
        await passes()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        reply = agent.last_reply
        assert (agent.state, agent.messages) == (AgentState.IDLE, ())
        with pytest.raises(ReplyCancelled):
            await reply.wait_committed()
        following = asyncio.ensure_future(agent.send("next"))
        await passes()
        journal.open.set()
        assert (await (await following).result()).text == "never"
        assert texts(agent) == ["hi", "next", "never"]
        assert (await agent.runs.inspect("k")).status == "cancelled"
        assert len(provider.requests) == 1


async def test_a_registration_that_fails_after_the_stop_leaves_neither_run_nor_message() -> None:
    """AC-80: if it fails there is neither."""
    journal = SlowJournal()
    journal.open.clear()
    journal.failure = JournalUnavailable("away")
    async with AgentController(ScriptedProvider("x"), journal=journal) as agent:
        task = asyncio.ensure_future(agent.send("hi"))
        await passes()
        assert agent.abort()
        journal.open.set()
        reply = await task
        assert await reply.wait_closed()
        assert (agent.messages, reply.outcome) == ((), Cancelled("aborted"))
        journal.failure = None
        await (await agent.send("hi")).result()


async def test_a_reset_while_the_registration_is_written_begins_a_new_thread() -> None:
    """AC-80, AC-84: the late message does not enter what was cleared."""
    journal = SlowJournal()
    journal.open.clear()
    async with AgentController(ScriptedProvider("x"), journal=journal) as agent:
        task = asyncio.ensure_future(agent.send("old", id="k"))
        await passes()
        agent.reset()
        journal.open.set()
        await task
        await passes()
        assert agent.messages == ()
        await (await agent.send("new")).result()
        assert texts(agent) == ["new", "x"]
        assert (await agent.runs.registered("k")).thread_id != agent.thread_id


async def test_a_second_call_for_the_id_keeps_a_send_whose_first_caller_left() -> None:
    """AC-51: only the last waiting call takes the send with it."""
    hold = Hold()
    async with AgentController(ScriptedProvider([hold, "x"])) as agent:
        first = asyncio.ensure_future(agent.send("hi", id="k"))
        await hold.reached()
        second = asyncio.ensure_future(agent.send("hi", id="k"))
        await passes()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        hold.release()
        assert (await (await second).result()).text == "x"


async def test_from_hand_over_on_leaving_stops_nothing() -> None:
    """AC-51, AC-124: a cancelled `result()`, a left iterator."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["a", hold, "b"])) as agent:
        reply = await agent.send("hi")
        waiting = asyncio.ensure_future(reply.result())
        await hold.reached()
        waiting.cancel()
        async for _ in reply:
            break
        hold.release()
        assert (await reply.result()).text == "ab"


async def test_queued_sends_keep_their_reply_and_can_be_withdrawn() -> None:
    """TC-90, AC-51, AC-122: FIFO; the `Reply` stands in `queued` under its id; the limit refuses."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold], "2", "4"), queue_limit=3) as agent:
        first = await agent.send("a")
        tasks = [
            asyncio.ensure_future(agent.send(text, id=text, when_busy="queue")) for text in ("b", "c", "d")
        ]
        await passes()
        assert [reply.id for reply in agent.queued] == ["b", "c", "d"]
        assert {reply.phase for reply in agent.queued} == {ReplyPhase.QUEUED}
        b, c, _ = agent.queued
        with pytest.raises(AgentBusy):
            await agent.send("e", when_busy="queue")
        same = asyncio.ensure_future(agent.send("b", id="b"))
        assert c.abort()
        assert await tasks[1] is c
        assert c.outcome == Cancelled("aborted")
        hold.release()
        assert await tasks[0] is b
        assert await same is b
        await b.result()
        await (await tasks[2]).result()
        assert texts(agent) == ["a", "1", "b", "2", "d", "4"]
        await first.result()


@pytest.mark.parametrize("how", ["abort", "cancel"])
async def test_a_queued_send_that_leaves_when_its_turn_has_come_gives_the_turn_on(how: str) -> None:
    """TC-90, AC-51: the one behind it does not wait for ever."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold], "3"), when_busy="queue") as agent:
        first = await agent.send("a")
        second = asyncio.ensure_future(agent.send("b"))
        third = asyncio.ensure_future(agent.send("c"))
        await passes()
        waiting = agent.queued[0]
        hold.release()
        await first.wait()
        assert agent.queued[0] is waiting
        if how == "abort":
            assert waiting.abort()
        else:
            second.cancel()
        assert (await (await asyncio.wait_for(third, 5)).result()).text == "3"
        assert texts(agent) == ["a", "1", "c", "3"]
        await asyncio.wait({second})
        assert second.cancelled() or second.result() is waiting


@pytest.mark.parametrize("act", ["retry", "regenerate", "send"])
@pytest.mark.parametrize("turns", [0, 1, 3])
async def test_a_close_while_a_call_is_on_its_way_is_told_as_one(
    act: str, turns: int, tmp_path: Path
) -> None:
    """AC-166, AC-87: `AgentClosed` or a cancelled reply; nobody is cancelled who was not."""
    async with SQLiteJournal(tmp_path / "t.db", durability="off") as journal:
        agent = AgentController(ScriptedProvider("1", failure("auth"), "3"), journal=journal)
        await (await agent.send("a")).result()
        if act == "retry":
            await (await agent.send("b")).wait()
        calls = {"send": lambda: agent.send("c"), "retry": agent.retry}
        calls["regenerate"] = lambda: agent.regenerate(agent.messages[1].id)
        task = asyncio.ensure_future(calls[act]())
        await passes(turns)
        await agent.aclose()
        try:
            reply = await asyncio.wait_for(task, 5)
        except AgentClosed:
            return
        assert isinstance(reply.outcome, Cancelled)


async def test_a_new_conversation_while_a_retry_is_on_its_way_leaves_nothing_to_retry(tmp_path: Path) -> None:
    """AC-50, AC-84: what was to be retried belongs to the conversation before."""
    async with SQLiteJournal(tmp_path / "t.db", durability="off") as journal:
        async with AgentController(ScriptedProvider(failure("auth"), "2"), journal=journal) as agent:
            await (await agent.send("a")).wait()
            task = asyncio.ensure_future(agent.retry())
            await passes(2)
            agent.reset()
            with pytest.raises(NothingToDo, match="another conversation began"):
                await task
            await (await agent.send("b")).result()
            assert texts(agent) == ["b", "2"]


async def test_cancelling_the_task_of_a_queued_send_withdraws_it() -> None:
    """AC-51: a queued one is withdrawn; closing abandons those that wait."""
    hold = Hold()
    agent = AgentController(ScriptedProvider(["1", hold]))
    await agent.send("a")
    tasks = [asyncio.ensure_future(agent.send(text, when_busy="queue")) for text in "bc"]
    await passes()
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    assert len(agent.queued) == 1
    await agent.aclose()
    with pytest.raises(SendAbandoned):
        await tasks[1]
    assert texts(agent) == ["a"]


async def test_guards_are_checked_again_when_a_queued_send_starts() -> None:
    """TC-90: what filled the conversation meanwhile counts."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold], "2"), max_messages=5) as agent:
        await agent.send("a")
        waiting = [asyncio.ensure_future(agent.send(text, when_busy="queue")) for text in "bc"]
        await passes()
        hold.release()
        await (await waiting[0]).result()
        with pytest.raises(ConversationFull):
            await waiting[1]
        assert agent.state is AgentState.COMPLETE


async def test_superseding_refuses_before_it_stops_anything() -> None:
    """AC-30, TC-90: a message that cannot be sent does not cost the live answer."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold]), max_message_length=1) as agent:
        first = await agent.send("a")
        with pytest.raises(MessageTooLong):
            await agent.send("too long", when_busy="supersede")
        with pytest.raises(TypeError):
            await agent.send(3, when_busy="supersede")
        hold.release()
        assert (await first.result()).text == "1"
        dropped = await agent.send("b", when_busy="drop") if agent.is_busy else None
        assert dropped is None


async def test_a_dropped_send_is_an_ended_reply() -> None:
    """TC-90: rejected, with the error."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["1", hold])) as agent:
        await agent.send("a")
        reply = await agent.send("b", when_busy="drop")
        assert isinstance(reply.outcome, Refused)
        with pytest.raises(AgentBusy):
            await reply.result()
        hold.release()


async def test_continue_answers_what_stands_there() -> None:
    """AC-50: no second user message after a failure."""
    provider = ScriptedProvider(failure("auth"), "x")
    async with AgentController(provider) as agent:
        await (await agent.send("hi")).wait()
        reply = await agent.send(None)
        assert reply.user_message.text == "hi"
        assert (await reply.result()).text == "x"
        assert texts(agent) == ["hi", "x"]
        assert [message.role for message in provider.requests[-1].messages] == ["user"]
        with pytest.raises(NothingToDo):
            await agent.send(None)
        with pytest.raises(NothingToDo):
            await agent.retry()


@pytest.mark.parametrize("point", ["response 1", "in the tools", "response 2", "failed 2", "unknown 2"])
async def test_retry_never_repeats_the_effect_of_a_call_that_ended(point: str) -> None:
    """AC-50, AC-171: results stay, the same user message is answered, nothing provisional is in the request."""
    effects: list[str] = []
    gate, hold = Hold(), Hold()

    @tool
    async def book(port: str) -> str:
        """Book."""
        effects.append(port)
        if point == "in the tools" and len(effects) == 2:
            await gate.wait()
        return "booked"

    first = ["Let me.", call("book", {"port": "Brest"}), call("book", {"port": "Oban"})]
    if point == "response 1":
        scripts: list = [["Let", hold], first, "done"]
    elif point == "in the tools":
        scripts = [first, "done"]
    else:
        second = {
            "response 2": ["half", hold],
            "failed 2": ["half", failure("auth")],
            "unknown 2": ["half", Cut()],
        }
        scripts = [first, second[point], "done"]
    provider = ScriptedProvider(*scripts)
    async with AgentController(provider, tools=[book]) as agent:
        reply = await agent.send("go")
        if point in ("response 1", "response 2"):
            await hold.reached()
            reply.abort()
        elif point == "in the tools":
            await gate.reached()
            reply.abort()
        assert isinstance(await reply.wait(), Cancelled | Failed | Unknown)
        again = await agent.retry()
        assert (await again.result()).text == "done"
        assert sorted(effects) == ["Brest", "Oban"]
        asked = provider.requests[-1].messages
        assert [message.text for message in asked if message.role == "user"] == ["go"]
        assert "half" not in [message.text for message in asked]
        proposed = [item.call_id for message in asked for item in message.tool_calls]
        assert [message.call_id for message in asked if message.role == "tool"] == proposed
        assert [message.id for message in agent.messages] == [
            entry.message.id for entry in await agent.runs.history(again.id) if entry.complete
        ]


async def test_retry_does_not_make_a_call_again_of_which_nobody_knows_whether_it_happened() -> None:
    """AC-50, RC-60, promise 4: abandoned first, so the call has a result, that it is unknown, and the model reads it."""
    effects: list[str] = []
    journal = FaultyJournal(MemoryJournal())

    @tool
    async def pay(amount: int) -> str:
        """Pay."""
        effects.append(f"paid {amount}")
        lost.append(journal.crash(on=("append",)))
        return "paid"

    def answer(asked: ModelRequest) -> list:
        return (
            ["I pay.", call("pay", {"amount": 5})] if asked.messages[-1].role == "user" else ["I look first."]
        )

    lost: list = []
    dead = RunController(AgentLoop(ScriptedProvider(answer), tools=[pay]), journal=journal)
    await dead.start(RunSpec("r", "t", (user_message("Pay the bill", "in"),)), until="accepted")
    while not lost:
        await asyncio.sleep(0)
    await lost[0].reached.wait()  # its process is dead now: the payment was made, its result was not stored
    await journal.inner.release(Owner((await journal.inner.head("r")).owner), "r")

    provider = ScriptedProvider(answer)
    async with AgentController(provider, tools=[pay], journal=journal.inner, thread_id="t") as agent:
        assert agent.state is AgentState.ERROR
        again = await agent.retry()
        assert (await again.result()).text == "I look first."
        assert effects == ["paid 5"]
        assert "outcome is unknown" in provider.requests[0].messages[-1].text
        assert [message.role for message in agent.messages] == ["user", "assistant", "tool", "assistant"]


async def test_regenerate_refuses_what_is_no_answer() -> None:
    """AC-50, AC-167: naming the id."""
    async with AgentController(ScriptedProvider("x")) as agent:
        with pytest.raises(UsageError, match="'nope'"):
            await agent.regenerate("nope")
        assert agent.state is AgentState.IDLE


async def test_an_edit_hangs_a_new_message_on_an_earlier_parent() -> None:
    """AC-50, AC-168: the messages become the path to it; a wrong parent changes nothing."""
    async with AgentController(ScriptedProvider("1", "2", "3")) as agent:
        first = await agent.send("a")
        await first.result()
        await (await agent.send("b")).result()
        with pytest.raises(InvalidSpec):
            await agent.send("c", extras=RunExtras(parent=Parent("nowhere")))
        assert texts(agent) == ["a", "1", "b", "2"]
        edited = await agent.send("B", extras=RunExtras(parent=Parent(first.id)))
        await edited.result()
        assert texts(agent) == ["a", "1", "B", "3"]
        used = agent.messages[0].id
        with pytest.raises(InvalidSpec):
            await agent.send("d", extras=RunExtras(message_id=used))
        assert (texts(agent), agent.state) == (["a", "1", "B", "3"], AgentState.IDLE)


async def test_abort_and_retry_in_one_step() -> None:
    """AC-43, AC-50: the retry waits until the stopped run has its end."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["half", hold], "whole"), journal=SlowJournal()) as agent:
        await agent.send("hi")
        await hold.reached()
        agent.abort()
        assert (await (await agent.retry()).result()).text == "whole"
        assert texts(agent) == ["hi", "whole"]


async def test_nothing_happens_on_the_call_and_errors_come_by_awaiting() -> None:
    """AC-45: a coroutine that is not awaited is no send; another loop is refused when it is awaited."""
    async with AgentController(ScriptedProvider("x")) as agent:
        await until(agent, AgentState.IDLE)
        elsewhere = asyncio.to_thread(lambda: asyncio.run(_send(agent)))
        with pytest.raises(UsageError, match="run_coroutine_threadsafe"):
            await elsewhere
        with pytest.raises(UsageError, match="call_soon_threadsafe"):
            await asyncio.to_thread(agent.abort)
        assert await asyncio.to_thread(lambda: agent.state) is AgentState.IDLE


async def _send(agent: AgentController) -> None:
    await agent.send("hi")


async def test_options_of_a_send_are_frozen_when_it_begins() -> None:
    """AC-31, AC-44, AC-52: model, params and prompt of the live send stay; callbacks change at once."""
    hold, seen = Hold(), []
    provider = ScriptedProvider(["a", hold, "b"], "c")
    params = {"temperature": 0.5, "vendor": {"x": [1]}}
    async with AgentController(provider, model="m1", params=params, system_prompt=" ") as agent:
        params["vendor"]["x"].append(2)
        reply = await agent.send("hi")
        agent.update_options(model="m2", on_response_chunk=lambda piece, _: seen.append(piece))
        hold.release()
        await reply.result()
        await (await agent.send("more")).result()
        first, second = provider.requests
        assert (first.model.id, second.model.id, first.system_prompt) == ("m1", "m2", None)
        assert first.settings.temperature == 0.5
        assert first.settings.extra == {"vendor": {"x": [1]}}
        assert seen == ["b", "c"]
        agent.options["params"]["vendor"]["x"].append(3)
        assert agent.options["params"]["vendor"] == {"x": [1]}


async def test_the_provider_runs_in_the_caller_s_context() -> None:
    """AC-121: context variables are inherited, and none of a send's tasks is left after it."""
    user: ContextVar[str] = ContextVar("user", default="nobody")
    seen = []

    async def answer(messages):
        seen.append(user.get())
        return "x"

    for journal in (None, SlowJournal()):
        async with AgentController(answer, journal=journal) as agent:
            for name in ("ada", "bob"):
                user.set(name)
                reply = await agent.send("hi")
                await reply.result()
            assert await reply.wait_closed()
            await passes()
            assert [task for task in asyncio.all_tasks() if "pilothouse-run" in task.get_name()] == []
    assert seen == ["ada", "bob"] * 2


@pytest.mark.parametrize(("wanted", "kept"), [("a2", ["q1", "1", "q2"]), ("a1", ["q1"])])
async def test_an_answer_that_was_set_is_answered_again(tmp_path: Path, wanted: str, kept: list[str]) -> None:
    """AC-50: also before any run; the new one begins with the messages that it keeps, and a restart shows the same."""
    before = [("q1", "user", "q1"), ("a1", "assistant", "1"), ("q2", "user", "q2"), ("a2", "assistant", "2")]
    provider = ScriptedProvider("new", "more")
    async with SQLiteJournal(tmp_path / "chat.db") as journal:
        async with AgentController(provider, journal=journal) as agent:
            agent.set_messages([Message(name, role, (Text(text),)) for name, role, text in before])
            with pytest.raises(InvalidTarget):
                await agent.regenerate("q2")
            reply = await agent.regenerate(wanted, id="again")
            assert (await reply.result()).text == "new"
            assert texts(agent) == [*kept, "new"]
            assert [message.text for message in provider.requests[0].messages] == kept
            assert (await agent.regenerate(wanted, id="again")).id == reply.id
            await (await agent.send("on")).result()
            thread_id = agent.thread_id
        async with AgentController(provider, journal=journal, thread_id=thread_id) as later:
            await later.open()
            assert texts(later) == [*kept, "new", "on", "more"]


async def test_a_slip_in_how_something_is_sent_is_told_at_once() -> None:
    """§6: also while nothing is under way, and nothing is changed."""
    async with AgentController(ScriptedProvider("fine")) as agent:
        with pytest.raises(
            ConfigError, match="when_busy must be raise, queue, drop or supersede, got 'wait'"
        ):
            await agent.send("hi", when_busy="wait")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="got \\['queue'\\]"):
            await agent.send("hi", when_busy=["queue"])  # type: ignore[arg-type]
        for again in (agent.send("hi", extras={}), agent.retry(extras={}), agent.regenerate("m", extras={})):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="extras must be RunExtras"):
                await again
        assert (agent.state, agent.messages) == (AgentState.IDLE, ())
        assert (await (await agent.send("hi")).result()).text == "fine"
