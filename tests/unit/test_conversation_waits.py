"""A thread that is opened again while its last run waits for a person: what is refused, the ways out, going on (RC-35)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from convkit import passes, texts
from pilothouse.conversation.controller import AgentController
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import (
    ConversationFull,
    JournalCorrupt,
    JournalFull,
    JournalUnavailable,
    RunUnknown,
    ThreadBusy,
)
from pilothouse.events import Cancelled, Completed, Unknown
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.testing import FaultyJournal
from pilothouse.testing.scripted import Hold, ScriptedProvider, call

deployed: list[str] = []


@tool(approval=True)
async def deploy(where: str) -> str:
    """Deploys."""
    deployed.append(where)
    return f"deployed {where}"


@tool(effect="human")
async def name(ctx: ToolContext) -> str:
    """Asks."""
    return "called " + await ctx.ask("Which name?", schema=str)


def conversation(journal: MemoryJournal, *script: object, **options: object) -> AgentController:
    provider = ScriptedProvider(*script)
    return AgentController(provider, tools=[deploy, name], journal=journal, thread_id="t", **options)


async def waiting(asked: object, reply_id: str = "r") -> MemoryJournal:
    """A journal that an earlier process left behind while its run waits for an answer."""
    deployed.clear()
    journal = MemoryJournal()
    agent = await conversation(journal, ["Well.", asked]).open()
    reply = await agent.send("go", id=reply_id)
    while reply.phase != "asking":
        await asyncio.sleep(0)
    await agent.runs.aclose()
    return journal


@pytest.fixture(params=["approval", "input"])
async def journal(request: pytest.FixtureRequest) -> MemoryJournal:
    return await waiting(call("deploy", {"where": "prod"}) if request.param == "approval" else call("name"))


ACTIONS: dict[str, Callable] = {
    "send": lambda agent: agent.send("and?"),
    "queue": lambda agent: agent.send("and?", when_busy="queue"),
    "supersede": lambda agent: agent.send("and?", when_busy="supersede"),
    "retry": lambda agent: agent.retry(),
    "regenerate": lambda agent: agent.regenerate(agent.messages[-1].id),
}


@pytest.mark.parametrize("action", ACTIONS)
async def test_what_cannot_begin_says_what_is_waited_for_and_how_to_go_on(
    journal: MemoryJournal, action: str
) -> None:
    """RC-35, AC-42: a typed error with the run, its requests and the calls that answer or stop it; nothing has changed."""
    async with conversation(journal, "done", "more") as agent:
        before = agent.messages
        with pytest.raises(ThreadBusy, match=r"approve\(\), deny\(\) or answer\(\).*cancel\(\)") as caught:
            await ACTIONS[action](agent)
        error = caught.value
        (asked,) = (await agent.runs.inspect(error.run_id)).requests
        assert (error.thread_id, error.run_id, error.requests) == ("t", "r", (asked.id,))
        assert error.code == "thread_busy"
        assert (agent.state, agent.messages) == (AgentState.IDLE, before)


@pytest.mark.parametrize("way", ["approve", "deny", "cancel"])
async def test_after_the_named_way_the_conversation_goes_on(way: str) -> None:
    """AC-122, [125]: whatever was done about the request, the path is shown whole, and the next send works."""
    journal = await waiting(call("deploy", {"where": "prod"}))
    async with conversation(journal, "done", "more") as agent:
        with pytest.raises(ThreadBusy) as caught:
            await agent.send("and?")
        run, (request,) = agent.runs.run(caught.value.run_id), caught.value.requests
        await {
            "approve": lambda: run.approve(request),
            "deny": lambda: run.deny(request, "not today"),
            "cancel": lambda: run.cancel("not today"),
        }[way]()
        assert isinstance((await run.wait()).outcome, Cancelled if way == "cancel" else Completed)
        await (await agent.send("and?")).result()
        said = {
            "approve": ["deployed prod", "done"],
            "deny": ["A person did not allow this call: not today", "done"],
            "cancel": ["This call was not run."],
        }[way]
        assert texts(agent) == ["go", "Well.", *said, "and?", "done" if way == "cancel" else "more"]
        assert deployed == (["prod"] if way == "approve" else [])


async def test_an_answer_to_a_question_goes_on_too() -> None:
    """AC-122: the same of a tool that asks."""
    from pilothouse.commands import InputAnswer

    journal = await waiting(call("name"))
    async with conversation(journal, "done", "more") as agent:
        with pytest.raises(ThreadBusy) as caught:
            await agent.retry()
        run = agent.runs.run(caught.value.run_id)
        await run.answer(caught.value.requests[0], InputAnswer("Ada"))
        await run.wait()
        await (await agent.send("and?")).result()
        assert texts(agent) == ["go", "Well.", "called Ada", "done", "and?", "more"]


@pytest.mark.parametrize("action", ["abort", "reset", "set_messages"])
async def test_what_needs_no_run_does_not_mind(journal: MemoryJournal, action: str) -> None:
    """AC-14 … AC-16: in idle an abort changes nothing; another conversation begins in a thread of its own."""
    async with conversation(journal, "done") as agent:
        {
            "abort": agent.abort,
            "reset": agent.reset,
            "set_messages": lambda: agent.set_messages(agent.messages),
        }[action]()
        assert (await agent.runs.inspect("r")).status == "waiting"
        if action == "abort":
            with pytest.raises(ThreadBusy):
                await agent.send("and?")
        else:
            assert (await (await agent.send("and?")).result()).text == "done"


@pytest.mark.parametrize("way", ["approve", "abort"])
async def test_a_send_that_waits_is_found_again_by_its_id(way: str) -> None:
    """AC-41: the same id gives a reply over the earlier run at once, with which that is answered or stopped."""
    journal = await waiting(call("deploy", {"where": "prod"}))
    async with conversation(journal, "done", "more") as agent:
        reply = await asyncio.wait_for(agent.send("go", id="r"), 5)
        assert reply.outcome is None
        assert reply.run is not None
        if way == "approve":
            (asked,) = (await reply.run.inspect()).requests
            await reply.run.approve(asked.id)
            assert (await reply.result()).text == "done"
        else:
            assert reply.abort()
            assert await reply.wait() == Cancelled("aborted")
        await passes()
        assert texts(agent) == [
            "go",
            "Well.",
            *(["deployed prod", "done"] if way == "approve" else ["This call was not run."]),
        ]
        await (await agent.send("and?")).result()


async def test_what_another_process_answered_is_on_the_path_of_the_next_send() -> None:
    """AC-33, AC-122: a run that was loaded before its end is loaded again, so that no message is missing on the screen."""
    journal = await waiting(call("deploy", {"where": "prod"}))
    async with conversation(journal, "here") as agent, conversation(journal, "there") as other:
        run = other.runs.run("r")
        await run.approve((await run.inspect()).requests[0].id)
        await run.wait()
        assert texts(agent) == ["go", "Well."]
        await (await agent.send("and?")).result()
        assert texts(agent) == ["go", "Well.", "deployed prod", "there", "and?", "here"]


async def test_a_send_that_the_journal_knows_asks_for_nothing_new() -> None:
    """AC-41: its own messages are no reason to refuse its repetition after a restart; another content still is one."""
    journal = MemoryJournal()
    async with conversation(journal, "one", max_messages=2) as agent:
        await (await agent.send("go", id="k")).result()
    async with conversation(journal, max_messages=2) as agent:
        assert (await (await agent.send("go", id="k")).result()).text == "one"
        with pytest.raises(ConversationFull):
            await agent.send("go", id="other")
        assert texts(agent) == ["go", "one"]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_conversation_leaves_error_once_somebody_knows(where: str) -> None:
    """AC-122: `error` where nobody knows how the last run ended, and only as long as that is so."""
    journal, hold = MemoryJournal(), Hold()
    before = await conversation(journal, ["half ", hold]).open()
    await (await before.send("go", id="r")).wait_handed_over()
    await hold.reached()
    await before.runs.aclose()
    async with conversation(journal, "whole", "more") as agent, conversation(journal, "whole") as other:
        assert (agent.state, type(agent.error)) == (AgentState.ERROR, RunUnknown)
        states: list[str] = []
        agent.update_options(on_state_change=lambda state: states.append(state.value))
        run = (agent if where == "here" else other).runs.run("r")
        await run.recover()
        await run.wait()
        await passes()
        if where == "elsewhere":
            await agent.open()
        assert (agent.state, agent.error, states) == (AgentState.IDLE, None, ["idle"])
        assert texts(agent) == ["go", "whole"]
        await (await agent.send("and?")).result()
        assert texts(agent)[2:] == ["and?", "whole" if where == "elsewhere" else "more"]


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("fault", [JournalCorrupt("r", 3), OSError("of somebody's own journal")])
async def test_a_journal_that_fails_for_good_leaves_nobody_waiting_and_the_thread_goes_on(
    fault: Exception, at: int
) -> None:
    """AC-101, promise 5: nobody knows how the send ended; a retry that fails as well is in nobody's way once it works."""
    journal = FaultyJournal(MemoryJournal())
    script = "one", ["Well.", call("name_it")], "two", "three", "four"
    async with conversation(journal, *script) as agent, asyncio.timeout(30):
        await (await agent.send("1")).result()
        armed = journal.fail(at, fault, times=None, on=("append",))
        reply = await agent.send("2")
        outcome = await reply.wait()
        assert isinstance(outcome, Unknown)
        assert outcome.cause == "journal_unavailable"
        assert agent.state is AgentState.ERROR
        assert await reply.wait_closed()
        with pytest.raises(type(fault)):
            await agent.retry()
        armed.release()
        await (await agent.retry()).result()
        await (await agent.send("3")).result()
        assert [message.text for message in agent.messages if message.role == "user"] == ["1", "2", "3"]


@pytest.mark.parametrize("plugged", [False, True])
async def test_nobody_waits_for_a_journal_that_is_full(*, plugged: bool) -> None:
    """AC-43, AC-101, RC-15: the next send and a retry say so, nothing has changed, and both work once there is room."""
    journal = FaultyJournal(MemoryJournal())
    more = {"request_listener": lambda event: None} if plugged else {}
    async with conversation(journal, "one", "two", "three", "four", **more) as agent, asyncio.timeout(30):
        await (await agent.send("1")).result()
        armed = journal.fail(error=JournalFull("no room"), times=None, on=("append",))
        assert isinstance(await (await agent.send("2")).wait(), Unknown)
        for act in (lambda: agent.send("3"), agent.retry):
            with pytest.raises(JournalUnavailable, match="waits for its journal"):
                await act()
            assert not agent.is_busy
        assert texts(agent)[:3] == ["1", "one", "2"]
        armed.release()
        await (await agent.send("3")).result()
        assert texts(agent) == ["1", "one", "2", "two", "3", "three"]
