"""States follow the history; restored when a thread is opened, taken along in a snapshot (TC-80, TC-81, TC §3.9)."""

from __future__ import annotations

import asyncio
import json
import pickle

import msgspec
import pytest

from controlkit import Number, Plain, Told
from convkit import passes, texts
from pilothouse import AgentController, Attachment, MemoryJournal, RunExtras, Snapshot, SQLiteJournal
from pilothouse.conversation.snapshots import SnapshotState
from pilothouse.errors import RunConflict
from pilothouse.loop.tools import tool
from pilothouse.records import Parent
from pilothouse.testing import Hold, ScriptedProvider
from pilothouse.testing.scripted import call, failure


def add(by, key="n"):
    return call(f"{key}__add", {"by": by})


def built(*scripts, controllers, **options):
    return AgentController(ScriptedProvider(*scripts), controllers=controllers, **options)


async def three_sends(number, **options):
    """After three sends the number is 1, 3, 6."""
    agent = built(
        [add(1)], "one", [add(2)], "two", [add(3)], "three", "again", "more", controllers=[number], **options
    )
    for text in ("1", "2", "3"):
        await (await agent.send(text)).result()
    assert number.state == 6
    return agent


# Going back (TC-81)


async def test_regenerating_goes_back_to_the_state_in_front_of_the_answer() -> None:
    """TC-81: the base of the run that is cut; the change names history and what was replaced."""
    number = Number("n")
    agent = await three_sends(number)
    number.changes.clear()
    reply = await agent.regenerate(agent.messages[-1].id)
    await reply.result()
    assert number.state == 3
    assert [(c.before, c.after, c.source, c.reply_id) for c in number.changes] == [
        (6, 3, "history", reply.id)
    ]
    assert agent.shared_state == {"n": 3}
    await agent.aclose()


async def test_an_edit_goes_back_to_the_end_of_the_parent() -> None:
    """TC-81: a parent that is kept whole: what it committed."""
    number = Number("n")
    agent = await three_sends(number)
    first = agent.messages[3]
    assert first.text == "one"
    run = (await agent.runs.history(agent.last_reply.id))[0].run_id
    reply = await agent.send("other", extras=RunExtras(parent=Parent(run, first.id)))
    await reply.result()
    assert texts(agent) == ["1", "", "now 1, was None", "one", "other", "again"]
    assert number.state == 1
    assert agent.shared_state == {"n": 1}
    await agent.aclose()


async def test_regenerating_the_first_answer_goes_back_to_nothing() -> None:
    """TC-81."""
    number = Number("n")
    agent = built([add(1)], "one", "two", controllers=[number])
    await (await agent.send("1")).result()
    await (await agent.regenerate(agent.messages[-1].id)).result()
    assert number.state is None
    assert agent.shared_state == {}
    await agent.aclose()


async def test_a_controller_may_stay_where_it_is() -> None:
    """TC-81: `follow_history=False`."""
    number = Number("n")
    number.follow_history = False
    agent = await three_sends(number)
    await (await agent.regenerate(agent.messages[-1].id)).result()
    assert number.state == 6
    await agent.aclose()


async def test_a_state_that_cannot_go_back_refuses_the_send() -> None:
    """TC-81, proof 9: pre-commit, and all states are what they were."""
    told = Told()
    one, two = Number("a", told), Number("b", told)
    agent = built(
        [add(1, "a"), add(1, "b")], "x", [add(5, "a"), add(5, "b")], "y", "z", controllers=[one, two]
    )
    for text in "12":
        await (await agent.send(text)).result()
    assert (one.state, two.state) == (6, 6)
    before = texts(agent)
    two.fail["prepare"] = OSError("no")
    with pytest.raises(OSError, match="no"):
        await agent.regenerate(agent.messages[-1].id)
    two.fail.clear()
    assert (one.state, two.state) == (6, 6)
    assert texts(agent) == before
    assert agent.shared_state == {"a": 6, "b": 6}
    await (await agent.regenerate(agent.messages[-1].id)).result()
    assert (one.state, two.state) == (1, 1)
    await agent.aclose()


async def test_a_regeneration_that_a_hook_refuses_changes_no_state() -> None:
    """TC-81: it is the same for every failure before the commit."""
    number = Number("n")
    plain = Plain(Told(), "p")
    agent = built([add(1)], "one", [add(2)], "two", "three", controllers=[number, plain])
    for text in "12":
        await (await agent.send(text)).result()
    plain.at["request"] = ValueError("locked")
    with pytest.raises(ValueError, match="locked"):
        await agent.regenerate(agent.messages[-1].id)
    assert number.state == 3
    await agent.aclose()


async def test_a_retry_stages_again_what_the_kept_calls_had_staged() -> None:
    """TC-81, proof 8: a failed send left no state; its results are read as done, so its values count."""
    number = Number("n")
    agent = built([add(2)], [failure("auth", "no")], [failure("auth", "no")], "done", controllers=[number])
    first = await agent.send("go")
    await first.wait()
    await passes()
    assert number.state is None
    second = await agent.retry()  # fails again: what it took over is not lost
    await second.wait()
    await passes()
    assert (second.ending, number.state) == ("failed", None)
    third = await agent.retry()
    await third.result()
    assert number.state == 2
    assert number.responses[-1].commits == {"n": "committed"}
    assert len([m for m in agent.messages if m.role == "tool"]) == 1
    await agent.aclose()


async def test_reset_keeps_the_states() -> None:
    """TC-81: and the new thread begins with them."""
    number = Number("n")
    agent = await three_sends(number)
    agent.reset()
    assert number.state == 6
    assert agent.shared_state == {}
    await (await agent.send("new")).result()
    assert agent.shared_state == {"n": 6}
    await agent.aclose()


# Opening (TC-113)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "j.db")
    yield made
    await made.aclose()


async def test_a_thread_that_is_opened_has_its_states(journal) -> None:
    """TC-111 … TC-113, TC-116: no listener is told; the next send goes on from them."""
    await (await three_sends(Number("n"), journal=journal, thread_id="t")).aclose()
    number, fresh = Number("n"), Number("m")
    fresh.state = 9
    async with built([add(1)], "ok", controllers=[number, fresh], journal=journal, thread_id="t") as agent:
        assert (number.state, fresh.state) == (6, None)
        assert number.changes == []
        assert agent.shared_state == {"n": 6}
        assert (agent.restore_errors, agent.orphan_states) == ({}, frozenset())
        await agent.open()  # a second one is a no-op
        await (await agent.send("4")).result()
        assert number.state == 7


async def test_a_state_without_its_controller_is_kept(journal) -> None:
    """TC-113: orphaned, through runs of others, until its controller is back."""
    await (await three_sends(Number("n"), journal=journal, thread_id="t")).aclose()
    other = Number("other")
    async with built("ok", controllers=[other], journal=journal, thread_id="t") as agent:
        assert agent.orphan_states == {"n"}
        assert agent.snapshot().states == {"n": SnapshotState(1, 6)}
        await (await agent.send("without")).result()
    number = Number("n")
    async with built("ok", controllers=[number], journal=journal, thread_id="t"):
        assert number.state == 6


async def test_a_state_that_cannot_be_read_is_kept(journal) -> None:
    """TC-113: logged, told, empty; the stored one counts until something is committed over it."""
    await (await three_sends(Number("n"), journal=journal, thread_id="t")).aclose()

    class Drifted(Number):
        def decode(self, data, version):
            raise KeyError("column")

    drifted = Drifted("n")
    async with built("ok", controllers=[drifted], journal=journal, thread_id="t") as agent:
        assert drifted.state is None
        assert isinstance(agent.restore_errors["n"], KeyError)
        await (await agent.send("hi")).result()
    number = Number("n")
    async with built([add(1)], "ok", controllers=[number], journal=journal, thread_id="t") as agent:
        assert number.state == 6
    drifted = Drifted("n")
    async with built([add(1)], "ok", controllers=[drifted], journal=journal, thread_id="t") as agent:
        await (await agent.send("over")).result()
        assert agent.restore_errors == {}
        assert drifted.state == 1
    number = Number("n")
    async with built("ok", controllers=[number], journal=journal, thread_id="t"):
        assert number.state == 1


async def test_the_version_of_a_state_is_given_to_decode(journal) -> None:
    """TC-113: so that a newer controller can read an older state."""
    await (await three_sends(Number("n"), journal=journal, thread_id="t")).aclose()

    class Newer(Number):
        state_version = 2

        def decode(self, data, version):
            return data * 10 if version == 1 else data

    newer = Newer("n")
    async with built("ok", controllers=[newer], journal=journal, thread_id="t") as agent:
        assert newer.state == 60
        await (await agent.send("hi")).result()
    newer = Newer("n")
    async with built("ok", controllers=[newer], journal=journal, thread_id="t"):
        assert newer.state == 60


async def test_a_repeat_after_a_restart_is_known_by_what_was_passed(journal) -> None:
    """TC-25: context, replacement and base differ from then; no hook is called."""

    def make(told):
        return built(
            "ok",
            controllers=[Plain(told, "p"), Number("n")],
            journal=journal,
            thread_id="t",
            interceptor=lambda event: event.replace(text=f"{event.text}!"),
            send_context=lambda event: f"at {len(told)}",
        )

    async with make(Told()) as agent:
        await (await agent.send("hi", [Attachment(data=b"x", mime_type="image/png")], id="s1")).result()
    told = Told()
    async with make(told) as agent:
        told.clear()
        await agent.controllers[1].set(4)
        reply = await agent.send("hi", [Attachment(data=b"x", mime_type="image/png")], id="s1")
        assert (await reply.result()).text == "ok"
        assert told.names() == []
        assert agent.provider.requests == []
        with pytest.raises(RunConflict):
            await agent.send("hi!", id="s1")
        with pytest.raises(RunConflict):
            await agent.send("hi", [Attachment(data=b"y", mime_type="image/png")], id="s1")


# Snapshot (TC-110, TC-114)


async def test_a_snapshot_is_json_and_makes_a_new_conversation() -> None:
    """TC-114: path, states, shared state; restored into a new thread as its root."""
    number = Number("n")
    agent = await three_sends(number)
    agent.last_reply.user_message
    text = json.dumps(msgspec.to_builtins(agent.snapshot()))
    again = Number("n")
    other = await AgentController.from_snapshot(
        json.loads(text), ScriptedProvider([add(1)], "ok"), controllers=[again]
    )
    assert other.thread_id != agent.thread_id
    assert texts(other) == texts(agent)
    assert again.state == 6
    assert other.shared_state == {"n": 6}
    await (await other.send("go on")).result()
    assert again.state == 7
    assert other.provider.requests[0].messages[0].text == "1"
    await agent.aclose()
    await other.aclose()


async def test_attachments_of_a_snapshot() -> None:
    """TC-114: by digest over the same journal; inline on request."""
    journal = MemoryJournal()
    agent = built("ok", controllers=[], journal=journal)
    picture = Attachment(data=b"bytes", mime_type="image/png")
    await (await agent.send("look", [picture])).result()
    by_digest, inline = agent.snapshot(), agent.snapshot(attachments=True)
    assert b"Ynl0ZXM" not in msgspec.json.encode(by_digest)
    async with await AgentController.from_snapshot(
        by_digest, ScriptedProvider("ok"), journal=journal
    ) as other:
        await (await other.send("again")).result()
        assert other.provider.requests[0].messages[0].attachments[0].data == b"bytes"
    with pytest.raises(ValueError, match=r"messages\[0\].*not in the journal"):
        await AgentController.from_snapshot(by_digest, ScriptedProvider("ok"))
    async with await AgentController.from_snapshot(inline, ScriptedProvider("ok")) as other:
        await (await other.send("again")).result()
        assert other.provider.requests[0].messages[0].attachments[0].data == b"bytes"
    await agent.aclose()


@pytest.mark.parametrize("when", ["streaming", "sending"])
async def test_a_snapshot_in_mid_send_can_be_answered_later(when: str) -> None:
    """TC-114, proof 12: finished messages only; retry answers the open one."""
    hold = Hold()
    gate = asyncio.Event()
    agent = AgentController(
        ScriptedProvider(["half", hold]),
        request_listener=(lambda event: gate.wait()) if when == "sending" else None,
    )
    sending = asyncio.ensure_future(agent.send("question"))
    if when == "streaming":
        await hold.reached()
    else:
        await passes()
    found = agent.snapshot()
    assert [message.text for message in found.messages] == ["question"]
    other = await AgentController.from_snapshot(found, ScriptedProvider("answer"))
    assert (await (await other.retry()).result()).text == "answer"
    assert texts(other) == ["question", "answer"]
    agent.abort()
    gate.set()
    await sending
    await agent.aclose()
    await other.aclose()


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        ({"version": 2}, "version 2"),
        ({"version": "1"}, "version"),
        ({"messages": [{"id": "m"}]}, r"messages\[0\]"),
        ({"messages": 5}, "messages"),
        ({"states": {"n": 5}}, "states"),
        ({"thread_id": None}, "thread_id"),
        ({"messages": [{"id": "m", "role": "user"}] * 2}, "unique"),
    ],
)
async def test_a_damaged_snapshot_restores_nothing(damage, match) -> None:
    """TC §8: ValueError naming version or path."""
    good = {"version": 1, "thread_id": "t", "messages": [], "states": {}}
    with pytest.raises(ValueError, match=match):
        await AgentController.from_snapshot({**good, **damage}, ScriptedProvider("ok"))


def test_nothing_is_pickled() -> None:
    """TC-21, TC-40, TC-110: what is durable is in the journal and in snapshots; interceptors and controllers are given again."""
    with pytest.raises(TypeError, match="snapshot"):
        pickle.dumps(AgentController(ScriptedProvider("ok")))
    assert Snapshot("t").version == 1


# A run that is taken up again (TC-115)


def gated(gate):
    @tool(approval=True)
    def deploy() -> str:
        """Deploys."""
        gate.append("deployed")
        return "deployed"

    return deploy


async def left_waiting(journal, told) -> str:
    """A conversation whose process is gone while an approval is open; a value is staged."""
    number = Number("n")
    agent = built(
        [add(2)],
        [call("deploy")],
        controllers=[Plain(told, "p"), number],
        tools=[gated([])],
        journal=journal,
        thread_id="t",
    )
    reply = await agent.send("go", id="r1")
    while not (await agent.runs.inspect(reply.id)).requests:
        await asyncio.sleep(0)
    await agent.runs.aclose()  # the run stays as it is, nobody ends it
    return reply.id


async def test_a_run_of_an_earlier_process_goes_on_with_hooks_and_staged_values() -> None:
    """TC-115, proof 12: on_request(resumed=True) before anything runs, values from facts, on_response at the end."""
    journal = MemoryJournal()
    run_id = await left_waiting(journal, Told())
    told, gate = Told(), []
    number, plain = Number("n", told), Plain(told, "p")
    async with built(
        "done", controllers=[plain, number], tools=[gated(gate)], journal=journal, thread_id="t"
    ) as agent:
        told.clear()
        assert number.state is None
        request = (await agent.runs.inspect(run_id)).requests[0]
        ack = await agent.runs.run(run_id).approve(request.id)
        assert ack.state in ("accepted", "applied", "received")
        await agent.runs.wait_for_terminal(run_id)
        await passes(200)
        (event,) = plain.events
        assert (event.resumed, event.reply.id, event.text) == (True, run_id, "go")
        assert number.state == 2
        assert gate == ["deployed"]
        assert [event.ending for event in plain.responses] == ["completed"]
        assert number.responses[0].commits == {"n": "committed"}
        assert texts(agent)[-1] == "done"
        assert agent.shared_state == {"n": 2}


async def test_a_hook_that_refuses_a_resumed_run_leaves_it_as_it_was() -> None:
    """TC-115, RC-54: nothing is written, it can be tried again."""
    journal = MemoryJournal()
    run_id = await left_waiting(journal, Told())
    told, gate = Told(), []
    plain = Plain(told, "p", request=ValueError("locked"))
    async with built(
        "done", controllers=[plain, Number("n", told)], tools=[gated(gate)], journal=journal, thread_id="t"
    ) as agent:
        before = [record.seq for record in await agent.runs.events(run_id)]
        request = (await agent.runs.inspect(run_id)).requests[0]
        ack = await agent.runs.run(run_id).approve(request.id)
        assert (ack.state, ack.code) == ("rejected", "recovery_failed")
        assert [record.seq for record in await agent.runs.events(run_id)] == before
        assert len(plain.responses) == 1
        plain.at.clear()
        await agent.runs.run(run_id).approve(request.id)
        await agent.runs.wait_for_terminal(run_id)
        assert gate == ["deployed"]
