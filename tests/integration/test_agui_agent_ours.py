"""`AGUIAgent` with our server behind it: stops that are proved, threads that are loaded, checks that are answered (AG-115 … AG-121)."""

from __future__ import annotations

import asyncio

import pytest

from agentkit import ServerDriver
from pilothouse.agent_errors import AgentError
from pilothouse.agents.signals import watch
from pilothouse.remote import RunControlClient
from pilothouse.testing.agent_suite.driving import Ask, HandOver, Use, say, shown, texts, until
from pilothouse.testing.scripted import Hold


@pytest.fixture
async def driver():
    made = ServerDriver()
    yield made
    await made.aclose()


async def test_a_stop_is_proved(driver: ServerDriver) -> None:
    """AG-92, AG-211: the server says that it stopped; its record says cancelled."""
    driver.plan(say("one"), Hold())
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "one")
    assert await agent.stop() == "stopped"
    view = await driver.control.run(op.run_id)
    assert view["status"] == "cancelled"


async def test_a_waiting_run_is_restored_on_load(driver: ServerDriver) -> None:
    """AG-138: without any request that would run something; and answered from there."""
    driver.plan(Ask())
    driver.plan(say("done"))
    agent = await driver.make()
    assert await agent.submit("hi") == "paused"
    other = await driver.another()
    assert other.interrupts.phase.get() == "pending"
    assert other.interrupt.get().id == agent.interrupt.get().id
    assert await other.submit(resume=True) == "success"
    assert texts(other)[-1] == ("assistant", "done")


async def test_a_thread_with_tools_is_loaded_as_it_was_shown(driver: ServerDriver) -> None:
    """AG-44, AG-204: calls and their results, not only what was said."""
    driver.plan(say("one"), Use("look", {"at": "sky"}, "blue"), say("two"))
    agent = await driver.make()
    assert await agent.submit("hi") == "success"
    other = await driver.another()
    assert texts(other) == texts(agent) == [("user", "hi"), ("assistant", "one"), ("assistant", "two")]
    loaded, seen = (
        [(call.name, call.status, call.result) for call in each.tool_calls.get()] for each in (other, agent)
    )
    assert loaded == seen
    assert [name for name, _, _ in loaded] == ["look"]


async def test_a_live_run_is_joined_on_load(driver: ServerDriver) -> None:
    """AG-44, SV-48: a second agent on the thread follows to the same end, and stopping to look stops nothing."""
    hold = Hold()
    driver.plan(say("one"), hold, say("!"))
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "one")
    other = await driver.another()
    await until(other, "running")
    await shown(other, "one")
    hold.release()
    assert await op == "success"
    await until(other, "idle")
    assert texts(other) == texts(agent) == [("user", "hi"), ("assistant", "one!")]


async def test_a_broken_line_is_mended_by_itself(driver: ServerDriver) -> None:
    """Table *Ends*: our frames carry ids; the connection breaks in the middle, the reader never learns of it."""
    hold = Hold()
    driver.plan(say("one"), Use("look", {"at": "sky"}, "blue"), hold, say("two"))
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "blue")
    driver.line.break_off()
    hold.release()
    assert await op == "success"
    assert texts(agent) == [("user", "hi"), ("assistant", "one"), ("assistant", "two")]


async def test_client_results_without_another_request(driver: ServerDriver) -> None:
    """AG-147, AG-150: flushed by command; the run completes and the model is not asked again."""
    from pilothouse.messages import ToolSpec
    from pilothouse.projection import Ok

    driver.plan(HandOver("show", {}))
    agent = await driver.make()
    agent.client_tools.set_catalog([ToolSpec("show", "Shows.", {"type": "object", "properties": {}})])
    op = agent.submit("hi")
    assert await op == "paused"
    (call,) = agent.client_tools.pending.get()
    agent.client_tools.settle(call.id, Ok("shown"))
    await agent.client_tools.flush()
    view = await driver.control.run(op.run_id)
    assert view["status"] == "completed"
    assert len(driver.plans.provider.requests) == 1


async def test_the_control_client(driver: ServerDriver) -> None:
    """SV-133: views, pages, a stream, commands; refusals are errors with the server's words."""
    driver.plan(say("one"))
    agent = await driver.make()
    op = agent.submit("hi")
    await op
    async with RunControlClient(driver.url) as control:
        view = await control.run(op.run_id)
        assert (view["status"], view["thread_id"]) == ("completed", agent.thread_id)
        page = await control.runs(thread=agent.thread_id)
        assert [item["run_id"] for item in page["items"]] == [op.run_id]
        facts = await control.events(op.run_id)
        assert facts["events"][0]["kind"] == "run_accepted"
        kinds = [item["type"] async for item in control.follow(op.run_id)]
        assert kinds[-1] == "end"
        assert (await control.cancel(op.run_id))["status"] == "completed"
        assert (await control.thread(agent.thread_id))["thread_id"] == agent.thread_id
        assert (await control.messages(agent.thread_id))["items"]
        assert (await control.requests(op.run_id))["items"] == []
        with pytest.raises(AgentError) as error:
            await control.run("no such run")
        assert (error.value.status, error.value.code) == (404, "not_found")
    gone = RunControlClient("http://127.0.0.1:9", timeout_s=5)
    with pytest.raises(AgentError) as error:
        await gone.run("x")
    assert error.value.kind == "connection"
    await gone.aclose()


async def test_a_check_answers_from_the_journal(driver: ServerDriver) -> None:
    """AG-117: the line is lost for good, the run goes on; asked, the agent follows it to its end."""
    from pilothouse.remote import Reconnect

    hold = Hold()
    driver.plan(say("one"), hold, say("!"))
    agent = await driver.make(reconnect=Reconnect(attempts=0))
    op = agent.submit("hi")
    await shown(agent, "one")
    driver.line.break_off()
    assert await op == "interrupted"
    assert agent.error.get().recovery == "check"
    await agent.check_status()
    assert (agent.status.get(), agent.error.get()) == ("running", None)
    hold.release()
    await until(agent, "idle")
    assert texts(agent) == [("user", "hi"), ("assistant", "one!")]
    async for error in watch(agent.error):
        assert error is None
        break


async def test_a_run_takes_steering(driver: ServerDriver) -> None:
    """AG-78, AG-84: over the control API; it stands behind the stream until the run takes it in."""
    hold = Hold()
    driver.plan(say("one"), hold, Use("look", {"at": "sky"}, "blue"), say("as you say"))
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "one")
    steered = agent.submit("in French", when_busy="steer")
    assert texts(agent)[-1] == ("user", "in French")
    while not any("steer" in kind for kind in await commands(driver, op.run_id)):
        await asyncio.sleep(0.01)
    hold.release()
    assert await op == "success"
    assert await steered == "success"
    said = [("user", "hi"), ("assistant", "one"), ("user", "in French"), ("assistant", "as you say")]
    assert texts(agent) == said
    assert texts(await driver.another()) == said


async def commands(driver: ServerDriver, run_id: str) -> list[str]:
    facts = (await driver.control.events(run_id))["events"]
    return [str(fact["command"]["body"]) for fact in facts if fact["kind"] == "command_received"]


async def test_steering_that_comes_too_late_is_a_submission(driver: ServerDriver) -> None:
    """AG-84: an ordinary run, at once."""
    hold = Hold()
    driver.plan(say("one"), hold)
    driver.plan(say("two"))
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "one")
    hold.release()
    steered = agent.submit("late", when_busy="steer")
    assert await op == "success"
    assert await steered == "success"
    assert [item for item in texts(agent) if item[0] == "user"] == [("user", "hi"), ("user", "late")]
    assert texts(agent)[-1] == ("assistant", "two")


@pytest.mark.parametrize("before", [0, 1])
async def test_a_run_is_rolled_back(driver: ServerDriver, before: int) -> None:
    """AG-78: the first of a thread too; another agent, and the model, never see what was rolled back."""
    for number in range(before):
        driver.plan(say(f"answer {number}"))
    driver.plan(say("one"), Hold())
    driver.plan(say("two"))
    agent = await driver.make()
    for number in range(before):
        assert await agent.submit(f"question {number}") == "success"
    front = texts(agent)
    first = agent.submit("1")
    await shown(agent, "one")
    assert await agent.submit("2", when_busy="rollback") == "success"
    assert await first == "interrupted"
    said = [*front, ("user", "2"), ("assistant", "two")]
    assert texts(agent) == said
    assert texts(await driver.another()) == said
    assert [message.text for message in driver.plans.provider.requests[-1].messages] == [
        text for _, text in said[:-1]
    ]


async def test_a_submission_right_behind_a_stop_waits_for_it(driver: ServerDriver) -> None:
    """AG-90, AG-91, fixture 110: two runs never write to one thread, and the second is not refused."""
    driver.plan(say("one"), Hold())
    driver.plan(say("two"))
    agent = await driver.make()
    first = agent.submit("1")
    await shown(agent, "one")
    stopping = agent.stop()
    second = agent.submit("2")
    assert agent.status.get() == "running"
    assert await stopping == "stopped"
    assert await first == "aborted"
    assert await second == "success"
    said = [("user", "1"), ("assistant", "one"), ("user", "2"), ("assistant", "two")]
    assert texts(agent) == said
    assert texts(await driver.another()) == said


async def test_a_stop_of_what_does_not_stop_is_not_confirmed(driver: ServerDriver) -> None:
    """AG-91, AG-92: that the order arrived is no proof; it is confirmed once the run has its end."""
    deaf = Hold(deaf=True)
    driver.plan(say("one"), deaf)
    driver.plan(say("two"), deaf)
    agent = await driver.make()
    agent.submit("1")
    await shown(agent, "one")
    assert await agent.stop(grace=0.3) == "unconfirmed"
    deaf.release()
    assert await agent.submit("2") == "success"
    assert texts(agent)[-1] == ("assistant", "two")


async def test_a_newer_submission_is_not_refused_while_the_old_line_closes(driver: ServerDriver) -> None:
    """AG-78: the server is told what the new run means, whatever it knows of who still reads."""
    driver.plan(say("one"), Hold())
    driver.plan(say("two"), Hold())
    driver.plan(say("three"))
    agent = await driver.make()
    other = await driver.another()
    ops = [agent.submit("1")]
    await shown(agent, "one")
    await other.aclose()
    follower = await driver.another()  # somebody else follows: a send without a word would be refused
    await shown(follower, "one")
    ops.append(agent.submit("2", when_busy="supersede"))
    await shown(agent, "two")
    ops.append(agent.submit("3", when_busy="supersede"))
    assert [await op for op in ops] == ["interrupted", "interrupted", "success"]
    assert texts(agent)[-1] == ("assistant", "three")


async def test_an_approval_of_two_clients_counts_once(driver: ServerDriver) -> None:
    """Issue 8.5, AG-130, SV-103: both answer at once: performed once, both go on from the same conversation."""
    driver.plan(Ask())
    driver.plan(say("done"))
    driver.plan(say("more"))
    agent = await driver.make()
    assert await agent.submit("hi") == "paused"
    other = await driver.another()
    both = (agent, other)
    outcomes = await asyncio.gather(agent.submit(resume=True), other.submit(resume=False))
    assert sorted(outcomes) == ["error", "success"]
    assert len(driver.plans.provider.requests) == 2
    for each in both:
        if each.status.get() == "running":  # it came before the end of the run that the other one answered
            await until(each, "idle")
        assert (each.interrupts.phase.get(), each.is_input_blocked.get()) == ("none", False)
        assert texts(each)[-1] == ("assistant", "done")
    assert texts(agent) == texts(other)
    loser = both[outcomes.index("error")]
    assert await loser.submit("and now?") == "success"
    assert texts(loser)[-1] == ("assistant", "more")


async def test_a_stop_by_another_client_ends_the_run_for_both(driver: ServerDriver) -> None:
    """Issue 8.5: whoever follows sees the same end; the text that was seen stays with both."""
    driver.plan(say("one"), Hold(), say("never"))
    agent = await driver.make()
    op = agent.submit("hi")
    await shown(agent, "one")
    other = await driver.another()
    await shown(other, "one")
    assert await other.stop() == "stopped"
    assert await op == "aborted"
    assert (agent.status.get(), agent.error.get()) == ("idle", None)
    assert texts(agent) == texts(other) == [("user", "hi"), ("assistant", "one")]
    assert await agent.stop() == "nothing"
    view = await driver.control.run(op.run_id)
    assert view["status"] == "cancelled"
