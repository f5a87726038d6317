"""The shared state of a thread: who changes it, when it is durable, how it follows history (TC §3.11)."""

from __future__ import annotations

import asyncio

import pytest

from controlkit import Number, Plain, Told
from convkit import passes
from pilothouse import AgentController, MemoryJournal, RunExtras, SQLiteJournal, current_reply
from pilothouse.errors import DeadReply, UsageError
from pilothouse.loop.tools import tool
from pilothouse.records import Parent
from pilothouse.testing import Hold, ScriptedProvider
from pilothouse.testing.scripted import call, failure


def notes(records):
    return [record.fact.data for record in records if getattr(record.fact, "name", "") == "pilothouse/state"]


def state(**patch):
    return RunExtras(state=patch)


async def text(messages):
    yield "ok"


@pytest.mark.parametrize("provider", [text, None], ids=["text", "provider"])
async def test_a_send_brings_a_change(provider) -> None:
    """TC-121: its run's first note; keys replace whole branches; no hook is needed."""
    async with AgentController(provider or ScriptedProvider("a", "b")) as agent:
        assert agent.shared_state == {}
        reply = await agent.send("hi", extras=state(a={"x": 1}, b=[1]))
        await reply.wait()
        assert agent.shared_state == {"a": {"x": 1}, "b": [1]}
        records = await agent.runs.events(reply.id)
        assert notes(records) == [
            {
                "delta": [
                    {"op": "add", "path": "/a", "value": {"x": 1}},
                    {"op": "add", "path": "/b", "value": [1]},
                ]
            }
        ]
        reply = await agent.send("hi", extras=state(a={"y": 2}))
        await reply.wait()
        assert agent.shared_state == {"a": {"y": 2}, "b": [1]}
        copy = agent.shared_state
        copy["b"].append(2)
        assert agent.shared_state["b"] == [1]


async def test_hooks_see_the_change_and_can_veto_it() -> None:
    """TC-121: what is refused changes nothing."""
    plain = Plain(Told(), "p", request=ValueError("no"))
    async with AgentController(ScriptedProvider("ok"), controllers=[plain]) as agent:
        with pytest.raises(ValueError, match="no"):
            await agent.send("hi", extras=state(a=1))
        assert plain.events[0].state == {"a": 1}
        assert agent.shared_state == {}
        plain.at.clear()
        await (await agent.send("hi", extras=state(a=1))).wait()
        assert agent.shared_state == {"a": 1}


async def test_a_hook_adds_to_the_first_note() -> None:
    """TC-122: before the commit it is merged into the change that came with the send."""
    plain = Plain(Told(), "p", request=lambda event: event.reply.update_state({"b": 2}))
    async with AgentController(ScriptedProvider("ok"), controllers=[plain]) as agent:
        reply = await agent.send("hi", extras=state(a=1))
        await reply.wait()
        assert agent.shared_state == {"a": 1, "b": 2}
        assert len(notes(await agent.runs.events(reply.id))) == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_a_tool_changes_it_with_the_end_of_its_call(fails: bool) -> None:
    """TC-122: in the append of the call's first end fact; a plain tool, from a thread, without any controller."""

    @tool
    def act() -> str:
        """Acts."""
        current_reply().update_state({"seen": 1})
        current_reply().update_state({"more": None})
        if fails:
            raise ValueError("boom")
        return "done"

    async with AgentController(ScriptedProvider([call("act")], "ok"), tools=[act]) as agent:
        reply = await agent.send("go")
        await reply.result()
        assert agent.shared_state == {"seen": 1, "more": None}
        records = await agent.runs.events(reply.id)
        at = next(n for n, item in enumerate(records) if getattr(item.fact, "name", "") == "pilothouse/state")
        assert records[at + 1].fact.kind == "call_finished"
        assert len(notes(records)) == 1


async def test_a_host_changes_it_at_once() -> None:
    """TC-122: outside of a call, while the send lives; not after its end."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["x", hold])) as agent:
        reply = await agent.send("go")
        await hold.reached()
        reply.update_state({"a": 1})
        await asyncio.to_thread(reply.update_state, {"b": 2})
        await passes()
        assert agent.shared_state == {"a": 1, "b": 2}
        hold.release()
        await reply.result()
        with pytest.raises(DeadReply):
            reply.update_state({"c": 3})


async def test_an_end_hook_is_too_late() -> None:
    """TC-122."""
    seen = []

    def late(event):
        try:
            event.reply.update_state({"a": 1})
        except UsageError as error:
            seen.append(type(error))

    async with AgentController(
        ScriptedProvider("ok"), controllers=[Plain(Told(), "p", response=late)]
    ) as agent:
        await (await agent.send("hi")).wait()
        await passes()
        assert seen == [DeadReply]


async def test_keys_of_controllers_are_theirs() -> None:
    """TC-123: an interface, a hook and a tool are refused; before the commit, nothing is sent."""
    number = Number("n")
    seen = []

    @tool
    def act() -> str:
        """Acts."""
        try:
            current_reply().update_state({"n": 5})
        except UsageError as error:
            seen.append(str(error))
        return "x"

    async with AgentController(
        ScriptedProvider([call("act")], "ok"), tools=[act], controllers=[number]
    ) as agent:
        with pytest.raises(UsageError, match="'n'"):
            await agent.send("hi", extras=state(n=1))
        assert agent.provider.requests == []
        await (await agent.send("hi", extras=state(m=1))).result()
        assert "'n'" in seen[0]
        assert agent.shared_state == {"m": 1}


@pytest.mark.parametrize("patch", [5, {1: 2}, {"a": object()}, {"a": float("nan")}, {"a": "x" * 200_000}])
async def test_what_is_no_patch(patch) -> None:
    """TC-121: refused, nothing changed."""
    async with AgentController(ScriptedProvider("ok")) as agent:
        with pytest.raises((UsageError, TypeError)):
            await agent.send("hi", extras=RunExtras(state=patch))
        assert (agent.messages, agent.shared_state) == ((), {})


async def test_a_committed_state_is_shown_and_taken_back() -> None:
    """TC-123: after a commit with its append, after `set` with the next send; hidden again where there is none."""

    class Odd(Number):
        def public(self, value):
            return {"odd": value} if value % 2 else None

    odd = Odd("o")
    async with AgentController(
        ScriptedProvider([call("o__add", {"by": 1})], "one", "two", [call("o__add", {"by": 1})], "three"),
        controllers=[odd],
    ) as agent:
        await (await agent.send("1")).result()
        assert agent.shared_state == {"o": {"odd": 1}}
        await odd.set(7)
        assert agent.shared_state == {"o": {"odd": 1}}
        await (await agent.send("2")).result()
        assert agent.shared_state == {"o": {"odd": 7}}
        await (await agent.send("3")).result()
        assert agent.shared_state == {}


async def test_a_state_that_is_too_large_is_not_shown(caplog) -> None:
    """TC-123: a note is a fact, and facts are small; the run does not fail for it."""

    class Big(Number):
        def public(self, value):
            return "x" * 200_000

    big = Big("b")
    async with AgentController(
        ScriptedProvider([call("b__add", {"by": 1})], "one"), controllers=[big]
    ) as agent:
        await (await agent.send("1")).result()
        assert (big.state, agent.shared_state) == (1, {})
    assert "is not shown" in caplog.text


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "j.db")
    yield made
    await made.aclose()


async def test_it_follows_history_and_survives_a_restart(journal) -> None:
    """TC-120, proof 13: send, retry, regenerate, edit, restart."""
    provider = ScriptedProvider("one", [failure("auth", "no")], "two", "two again", "other")
    async with AgentController(provider, journal=journal, thread_id="t") as agent:
        first = await agent.send("1", extras=state(a=1))
        await first.result()
        await (await agent.send("2", extras=state(a=2, b=1))).wait()
        await passes()
        assert agent.shared_state == {"a": 2, "b": 1}
        await (await agent.retry(extras=state(c=1))).result()
        assert agent.shared_state == {"a": 2, "b": 1, "c": 1}
        await (await agent.regenerate(agent.messages[-1].id)).result()
        assert agent.shared_state == {"a": 2, "b": 1}
        before = agent.shared_state
    async with AgentController(ScriptedProvider("other"), journal=journal, thread_id="t") as agent:
        assert agent.shared_state == before
        extras = RunExtras(parent=Parent(first.id, agent.messages[1].id), state={"d": 4})
        await (await agent.send("edited", extras=extras)).result()
        assert agent.shared_state == {"a": 1, "d": 4}
    async with AgentController(ScriptedProvider("x"), journal=journal, thread_id="t") as agent:
        assert agent.shared_state == {"a": 1, "d": 4}


async def test_a_large_change_is_a_blob(journal) -> None:
    """TC-121: the request of a run is small; a change need not be."""
    large = "x" * 50_000
    async with AgentController(ScriptedProvider("one"), journal=journal, thread_id="t") as agent:
        await (await agent.send("1", extras=state(a=large))).result()
        assert agent.shared_state == {"a": large}
    async with AgentController(ScriptedProvider("one"), journal=journal, thread_id="t") as agent:
        assert agent.shared_state == {"a": large}


async def test_a_change_is_told_to_who_watches() -> None:
    """TC-120."""
    seen = []
    async with AgentController(ScriptedProvider("a", "b")) as agent:
        leave = agent.watch_shared_state(lambda value: seen.append(dict(value)))
        await (await agent.send("1", extras=state(a=1))).wait()
        leave()
        await (await agent.send("2", extras=state(a=2))).wait()
    assert seen == [{"a": 1}]


async def test_nothing_of_an_exception_is_told_to_anybody_else() -> None:
    """Proof 13, TC-100: a secret in what hooks and tools raise is in no request, fact or event."""
    secret = "hunter2"

    @tool
    def leak() -> str:
        """Leaks."""
        raise RuntimeError(f"cannot open /srv/{secret}")

    number = Number("n")
    number.fail["prepare"] = RuntimeError(secret)
    plain = Plain(Told(), "p", response=RuntimeError(secret))
    provider = ScriptedProvider([call("leak"), call("n__add", {"by": 1}), call("n__fall", {"by": 1})], "done")
    seen = []
    async with AgentController(provider, tools=[leak], controllers=[number, plain]) as agent:
        reply = await agent.send("go")
        async with agent.runs.stream(reply.id) as items:
            async for item in items:
                seen.append(item)
        await reply.wait()
    assert secret not in repr(provider.requests)
    assert len(seen) > 5
    assert all(secret not in repr(item) for item in seen)
