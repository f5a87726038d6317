"""Threads, restarts, siblings, left-over steering, the view, bad input (AC-122 … AC-132, AC-160 … AC-169)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from convkit import Log, SlowJournal, passes, texts
from pilothouse.conversation.controller import AgentController
from pilothouse.conversation.extras import RunExtras
from pilothouse.conversation.view import ConversationView
from pilothouse.core.lifecycle import AgentState
from pilothouse.errors import InvalidSpec, NotOpened, ReplyCancelled, RunUnknown, ThreadConflict, UsageError
from pilothouse.events import Cancelled, Unknown
from pilothouse.journal.memory import MemoryJournal
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.loop.tools import tool
from pilothouse.messages import Image, Message, Text
from pilothouse.records import Parent
from pilothouse.testing.scripted import Cut, Hold, ScriptedProvider, call, failure


class Restarts:
    """The same store, opened again as a restart would."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept = MemoryJournal()

    def __call__(self):
        return self._kept if self._path is None else SQLiteJournal(self._path, durability="off")

    async def end(self, journal) -> None:
        if self._path is not None:
            await journal.aclose()


@pytest.fixture(params=["memory", "sqlite"])
def journals(request: pytest.FixtureRequest, tmp_path: Path) -> Restarts:
    return Restarts(None if request.param == "memory" else tmp_path / "t.db")


async def test_what_was_loaded_while_somebody_else_s_send_ran_is_loaded_again(journals) -> None:
    """AC-33, AC-122: `open()` shows the path as it is now, also where the head is the run that was seen before."""
    journal, hold = journals(), Hold()
    first = AgentController(ScriptedProvider(["1", hold]), journal=journal, thread_id="t")
    second = AgentController(ScriptedProvider("2"), journal=journal, thread_id="t")
    async with first:
        reply = await first.send("a")
        await second.open()
        assert texts(second) == ["a"]
        hold.release()
        await reply.wait_closed()
        await second.open()
        assert texts(second) == ["a", "1"]
        await (await second.send("b")).result()
        assert texts(second) == ["a", "1", "b", "2"]
    await second.aclose()
    await journals.end(journal)


@pytest.mark.parametrize("ending", ["completed", "cancelled", "failed", "unknown"])
async def test_facts_alone_give_messages_outcome_and_partial_again(journals, ending: str) -> None:
    """AC-122: the path to the head; idle, or error if the head is unknown and not settled."""
    hold = Hold()
    last = {"completed": "b", "cancelled": hold, "failed": failure("auth"), "unknown": Cut()}[ending]
    journal = journals()
    async with AgentController(ScriptedProvider("one", ["a", last]), journal=journal, thread_id="t") as agent:
        await (await agent.send("1")).result()
        reply = await agent.send("2")
        if ending == "cancelled":
            await hold.reached()
            agent.abort()
        outcome = await reply.wait()
        await reply.wait_closed(5)
    shown = agent.messages
    await journals.end(journal)
    journal = journals()
    async with AgentController(ScriptedProvider("three"), journal=journal, thread_id="t") as later:
        assert [message.id for message in later.messages] == [message.id for message in shown]
        assert later.state is (AgentState.ERROR if ending == "unknown" else AgentState.IDLE)
        assert isinstance(later.error, RunUnknown) == (ending == "unknown")
        assert type(later.last_reply.outcome) is type(outcome)
        assert (later.partial.text if later.partial else None) == (None if ending == "completed" else "a")
        if ending == "completed":
            await (await later.send("3")).result()
        else:
            again = await later.retry()
            assert (await again.result()).text == "three"
            assert [m.text for m in later.messages if m.role == "user"] == ["1", "2"]
    await journals.end(journal)


async def test_an_existing_thread_must_be_opened() -> None:
    """AC-122, AC-30: NotOpened before anything else but closed."""
    journal = MemoryJournal()
    async with AgentController(ScriptedProvider("x"), journal=journal, thread_id="t") as agent:
        await (await agent.send("hi")).result()
    later = AgentController(ScriptedProvider("x"), journal=journal, thread_id="t")
    for sending in (later.send(b"wrong"), later.retry(), later.regenerate("m")):
        with pytest.raises(NotOpened):
            await sending
    assert later.state is AgentState.IDLE
    await later.aclose()


async def test_the_commit_can_be_waited_for_before_the_hand_over() -> None:
    """AC-122: the id is chosen by the surface, the `Reply` is found from on_state_change(SENDING) on."""
    hold, found = Hold(), []
    async with AgentController(ScriptedProvider([hold, "x"]), journal=SlowJournal()) as agent:
        agent.update_options(on_state_change=lambda _: found.append(agent.reply))
        task = asyncio.ensure_future(agent.send("hi", id="k"))
        await passes(1)
        reply = found[0]
        assert (reply.id, reply.committed) == ("k", False)
        run = await reply.wait_committed()
        assert (run.id, reply.run, reply.committed) == ("k", run, True)
        assert not task.done()
        hold.release()
        assert await task is reply
        await reply.result()
    async with AgentController(ScriptedProvider("x"), journal=SlowJournal()) as agent:
        task = asyncio.ensure_future(agent.send("hi"))
        await passes(1)
        reply = agent.reply
        agent.abort()
        with pytest.raises(ReplyCancelled):
            await reply.wait_committed()
        await task


async def test_siblings_share_configuration_and_runs_and_no_word() -> None:
    """AC-131: two threads at once over one run controller; a rebuilt one joins before first use only."""
    holds = [Hold(), Hold()]
    log = Log()
    provider = ScriptedProvider(
        lambda request: [request.messages[-1].text, holds[len(provider.requests) - 1]]
    )
    provider.add(lambda request: [request.messages[-1].text, holds[1]], "third")
    async with AgentController(provider, system_prompt="be kind", on_error=print) as one:
        one.subscribe(log)
        two = one.sibling("other")
        assert two.runs is one.runs
        assert (two.options["system_prompt"], two.options["on_error"], two.thread_id) == (
            "be kind",
            None,
            "other",
        )
        first, second = await one.send("1"), await two.send("2")
        entries = len(log.entries)
        for hold in holds:
            hold.release()
        await second.result()
        await first.result()
        assert (texts(one), texts(two)) == (["1", "1"], ["2", "2"])
        assert entries
        assert len([entry for entry in log.entries if entry[0] == "chunk"]) == 1
        three = AgentController(ScriptedProvider("mine"))
        three.adopt(one.runs, "third")
        assert (await (await three.send("3")).result()).text == "mine"
        with pytest.raises(UsageError, match="after first use"):
            three.adopt(one.runs, "again")
        await two.aclose()
        await three.aclose()
        await (await one.send("still")).result()


async def test_steering_that_the_cap_left_over_goes_to_the_next_send(journals) -> None:
    """AC-132: once, in order, with its message ids; also after a restart."""
    journal = journals()
    hold = Hold()
    provider = ScriptedProvider(["a", hold], "b", "c")
    async with AgentController(provider, journal=journal, thread_id="t") as agent:
        reply = await agent.send("hi")
        await hold.reached()
        message = Message("s1", "user", (Text("and be brief"),))
        gone = await reply.run.follow_up(message)
        assert gone.state in ("accepted", "received")
        # The run fails before it takes it: nobody stopped it, so it is left over.
        hold.release()
        await reply.wait()
        await reply.wait_closed(5)
        taken = "s1" in [item.id for item in agent.messages]
    await journals.end(journal)
    assert taken
    journal = journals()
    hold = Hold()
    provider = ScriptedProvider(["a", hold, failure("auth")], "b", "c", "d")
    async with AgentController(provider, journal=journal, thread_id="u") as agent:
        reply = await agent.send("hi")
        await hold.reached()
        for number in (1, 2):
            await reply.run.steer(Message(f"s{number}", "user", (Text(f"steer {number}"),)))
        hold.release()
        await reply.wait()
        await reply.wait_closed(5)
        assert [item.id for item in agent.undelivered] == ["s1", "s2"]
        assert agent.view().undelivered == agent.undelivered
    await journals.end(journal)
    journal = journals()
    async with AgentController(ScriptedProvider("b", "c", "d"), journal=journal, thread_id="u") as agent:
        assert [item.text for item in agent.undelivered] == ["steer 1", "steer 2"]
        following = await agent.send("go on")
        assert agent.undelivered == ()
        await following.result()
        await following.wait_closed(5)
        ids = [item.id for item in agent.messages]
        assert [name for name in ids if name in ("s1", "s2")] == ["s1", "s2"]
        assert agent.undelivered == ()
        await (await agent.send("more")).result()
        assert [item.id for item in agent.messages].count("s1") == 1
    await journals.end(journal)


async def test_after_a_stop_nothing_is_carried_over() -> None:
    """AC-132: the sender's ack says `returned`."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["a", hold], "b")) as agent:
        reply = await agent.send("hi")
        await hold.reached()
        await reply.run.steer("steer", id="c1")
        agent.abort()
        await reply.wait_closed(5)
        assert agent.undelivered == ()
        assert (await agent.runs.command_ack(reply.id, "c1")).state == "returned"
        await (await agent.send("more")).result()
        assert texts(agent) == ["hi", "more", "b"]


async def test_a_late_interface_starts_from_the_view() -> None:
    """AC-126: frozen, consistent, JSON-able."""
    hold = Hold()
    async with AgentController(ScriptedProvider(["Hel", hold, failure("auth", "no key")])) as agent:
        reply = await agent.send("hi")
        await hold.reached()
        view = agent.view()
        assert (view.state, view.text, view.reply_id, view.phase) == (
            AgentState.STREAMING,
            "Hel",
            reply.id,
            "reading",
        )
        hold.release()
        await reply.wait()
        assert (view.state, view.text) == (AgentState.STREAMING, "Hel")
        view = agent.view()
        assert (view.state, view.error, view.partial.text) == ("error", "ProviderError: no key", "Hel")
        again = msgspec.json.decode(msgspec.json.encode(view), type=ConversationView)
        assert again == view
        with pytest.raises(AttributeError):
            view.text = "x"


@pytest.mark.parametrize(
    ("content", "attachments", "match"),
    [
        (b"x", (), "content must be str, parts or None, got bytes"),
        (3, (), "content must be str, parts or None, got int"),
        ([Text("a"), "b"], (), r"content\[1\] must be"),
        ("a", [3], r"attachments\[0\] must be"),
        (None, [Image("image/png", url="https://x.org/a.png")], "attachments need a message"),
    ],
)
async def test_wrong_content_is_a_type_error_with_its_place(content, attachments, match: str) -> None:
    """AC-160: nothing else changes."""
    provider = ScriptedProvider("x")
    async with AgentController(provider) as agent:
        with pytest.raises(TypeError, match=match):
            await agent.send(content, attachments)
        with pytest.raises(ValueError, match=r"attachments\[0\].*url and data"):
            await agent.send("x", [Image("image/png")])
        assert (agent.state, agent.messages, agent.last_reply, provider.requests) == (
            AgentState.IDLE,
            (),
            None,
            [],
        )


async def test_attachments_that_are_no_sequence_are_named() -> None:
    """AC-160: as any wrong type is."""
    async with AgentController(ScriptedProvider("1")) as agent:
        for bad in (None, 5, Image("image/png", url="https://a/b")):
            with pytest.raises(TypeError, match="attachments must be a sequence of media parts"):
                await agent.send("x", bad)  # type: ignore[arg-type]
        assert agent.state is AgentState.IDLE


async def test_extras_that_cannot_be_are_refused_before_the_commit() -> None:
    """AC-168: pre-commit, nothing changed."""
    async with AgentController(ScriptedProvider("x")) as agent:
        for extras in (
            RunExtras(extensions={"big": "x" * 2_000_000}),
            RunExtras(message_id=""),
        ):
            try:
                await (await agent.send("hi", extras=extras)).wait()
            except InvalidSpec:
                assert (agent.state, agent.messages) == (AgentState.IDLE, ())


async def test_half_characters_of_content_and_filenames_are_mended() -> None:
    """AC-110: U+FFFD."""
    async with AgentController(ScriptedProvider("x", "y")) as agent:
        odd = Image("image/png", url="https://x.org/a.png", filename="a\ud83d.png")
        await (await agent.send("hi \ud83d", [odd])).result()
        assert agent.messages[0].text == "hi \ufffd"
        assert agent.messages[0].attachments[0].filename == "a\ufffd.png"


async def test_calls_of_a_stopped_tool_batch_are_answered_in_the_messages_of_a_reopened_thread(
    journals,
) -> None:
    """AC-89, AC-122: what is shown before and after a restart is the same."""
    from pilothouse.loop.tools import tool

    gate = Hold()

    @tool
    async def slow() -> str:
        """Slow."""
        await gate.wait()
        return "seen"

    journal = journals()
    script = [call("slow"), call("slow")]
    async with AgentController(
        ScriptedProvider(script), tools=[slow], journal=journal, thread_id="t"
    ) as agent:
        reply = await agent.send("hi")
        await gate.reached()
        agent.abort()
        assert await reply.wait() == Cancelled("aborted")
        await reply.wait_closed(5)
        shown = [message.id for message in agent.messages]
    await journals.end(journal)
    journal = journals()
    async with AgentController(ScriptedProvider(), tools=[slow], journal=journal, thread_id="t") as later:
        assert [message.id for message in later.messages] == shown
        assert [message.role for message in later.messages] == ["user", "assistant", "tool", "tool"]
    await journals.end(journal)
    assert not isinstance(reply.outcome, Unknown)


@pytest.mark.parametrize(
    "bad",
    [
        Message("m", "robot", (Text("x"),)),  # type: ignore[arg-type]
        Message("m", "user", "hello"),  # type: ignore[arg-type]
        Message("m", "user", ("hello",)),  # type: ignore[arg-type]
        Message("m", "user", (Text(None),)),  # type: ignore[arg-type]
        Message(5, "user", (Text("x"),)),  # type: ignore[arg-type]
        {"id": "m", "role": "user", "content": "hello"},
        {"id": "m", "role": "user", "parts": {1, 2}},
    ],
)
async def test_a_message_that_cannot_be_stored_is_refused_when_it_is_set(bad) -> None:
    """AC-165, AC-85: with its index; the conversation stays, and goes on."""
    async with AgentController(ScriptedProvider("1")) as agent:
        agent.set_messages([Message("u", "user", (Text("before"),))])
        with pytest.raises(ValueError, match=r"messages\[1\]"):
            agent.set_messages([Message("v", "user", (Text("x"),)), bad])
        await (await agent.send("a")).result()
        assert texts(agent) == ["before", "a", "1"]


async def test_a_subclass_of_str_is_its_text() -> None:
    """AC-160: what template libraries make is text, too."""

    class Markup(str):
        __slots__ = ()

    async with AgentController(ScriptedProvider("1")) as agent:
        await (await agent.send(Markup("<b>"))).result()
        assert texts(agent) == ["<b>", "1"]
        assert type(agent.messages[0].text) is str


async def test_who_comes_second_on_a_thread_is_told_what_to_do_and_that_helps() -> None:
    """Two conversations over one thread: the second is refused, nothing of it is kept, and `open()` heals it."""
    journal = MemoryJournal()
    provider = ScriptedProvider("one", "two")
    async with (
        AgentController(provider, journal=journal, thread_id="t") as first,
        AgentController(provider, journal=journal, thread_id="t") as second,
    ):
        await (await first.send("1")).result()
        with pytest.raises(ThreadConflict, match=r"load it again \(`open\(\)`"):
            await second.send("2")
        await second.open()
        assert (await (await second.send("2")).result()).text == "two"
        assert [message.text for message in second.messages] == ["1", "one", "2", "two"]


@pytest.mark.parametrize("through", ["the answer", "its first result"])
async def test_a_call_that_is_kept_is_kept_with_what_it_came_to(journals, through: str) -> None:
    """RC-68, AC-168, promise 6: an edit behind an answer, or between the results of its calls, loses no result on record."""

    @tool
    async def work(n: int) -> str:
        """Works."""
        return f"result {n}"

    journal = journals()
    calls = [call("work", {"n": 1}, call_id="c1"), call("work", {"n": 2}, call_id="c2")]
    provider = ScriptedProvider(["Well.", *calls], "first", "second", "third")
    async with AgentController(provider, tools=[work], journal=journal, thread_id="t") as agent:
        reply = await agent.send("1")
        await reply.result()
        _, answer, result, *_ = agent.messages
        parent = Parent(reply.id, answer.id if through == "the answer" else result.id)
        for _ in range(2):  # the same again is the same send, wherever it was said to hang
            edited = await agent.send("other", id="k", extras=RunExtras(parent=parent))
            await edited.result()
        assert texts(agent) == ["1", "Well.", "result 1", "result 2", "other", "second"]
        assert [m.text for m in provider.requests[2].messages] == texts(agent)[:-1]
        assert (await agent.runs.registered("k")).parent == Parent(reply.id, "result:c2")
    async with AgentController(provider, tools=[work], journal=journal, thread_id="t") as later:
        assert texts(later) == ["1", "Well.", "result 1", "result 2", "other", "second"]
        again = await later.send("other", id="k", extras=RunExtras(parent=parent))
        assert (await again.result()).text == "second"
    await journals.end(journal)
    assert len(provider.requests) == 3
