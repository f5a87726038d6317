"""AI controllers around a send: the order of everything, and what each is told (TC §3.1, §3.2)."""

from __future__ import annotations

import pytest

from controlkit import Number, Plain, Told
from pilothouse import AgentController, current_reply
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call


def scripted(*scripts):
    return ScriptedProvider(*scripts)


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_the_order_of_a_send_is_one_list(count: int, is_async: bool) -> None:
    """Proof 1, TC-1, TC-6, TC-22, TC-42, TC-60: each step after the one before, start hooks forward, end hooks backward."""
    told = Told()

    def note(name):
        def sync(event):
            told.append((name, event))

        async def later(event):
            told.append((name, event))

        return later if is_async else sync

    def context(event):
        told.append(("context", event))
        return "it is noon"

    names = ["a", "b", "c"][:count]
    script = [[call(f"{names[0]}__touch")], "done"] if names else ["done"]
    async with AgentController(
        scripted(*script),
        controllers=[Plain(told, name, is_async=is_async) for name in names],
        interceptor=note("interceptor"),
        request_listener=note("request listener"),
        response_listener=note("response listener"),
        send_context=context,
    ) as agent:
        told.clear()  # what registration asked
        reply = await agent.send("hi")
        await reply.wait()
    expected = [
        "interceptor",
        *[f"request {name}" for name in names],
        *[f"tools {name}" for name in names],
        "context",
        "request listener",
        *[f"touch {name}" for name in names[:1]],
        *[f"response {name}" for name in reversed(names)],
        "response listener",
    ]
    assert told.names() == expected
    requests = [entry[1] for entry in told if entry[0].startswith("request")]
    assert all(event is requests[0] for event in requests)  # TC-4: the very same event
    assert reply.ending == "completed"


async def test_a_request_event_says_what_is_being_sent() -> None:
    """TC-4, TC-5, TC-44: the draft stands on the reply, the state is sending, nothing is in the conversation yet."""
    told, seen = Told(), []

    def look(event):
        seen.append((agent.state, agent.messages, event.reply.committed, event.reply.user_message.text))
        assert current_reply() is event.reply

    async with AgentController(scripted("ok"), controllers=[Plain(told, "a", request=look)]) as agent:
        reply = await agent.send("hi")
        await reply.wait()
        (event,) = told.of("request a")
        event = event[1]
        assert seen == [("sending", (), False, "hi")]
        assert (event.text, event.kind, event.resumed, event.original_text, event.state) == (
            "hi",
            "send",
            False,
            None,
            None,
        )
        assert event.reply is reply
        assert event.message_id == reply.user_message.id == agent.messages[0].id
        (ended,) = told.of("response a")
        ended = ended[1]
        assert (ended.text, ended.ending, ended.error, ended.begun) == ("ok", "completed", None, {"a"})


async def test_staged_state_is_committed_with_the_end_of_the_run() -> None:
    """TC-70, TC-74 … TC-77: prepared, one append, applied, told."""
    told = Told()
    number = Number("n", told)
    async with AgentController(scripted([call("n__add", {"by": 2})], "done"), controllers=[number]) as agent:
        reply = await agent.send("add")
        await reply.result()
        assert number.state == 2
        assert agent.controller_states == {"n": 2}
        assert agent.shared_state == {"n": 2}
        assert told.names() == ["prepare n", "apply n", "response n"]
        assert [(c.before, c.after, c.source, c.reply_id) for c in number.changes] == [
            (None, 2, "model", reply.id)
        ]
        assert number.responses[0].commits == {"n": "committed"}
        facts = [record.fact for record in await agent.runs.events(reply.id)]
        assert [getattr(fact, "name", fact.kind) for fact in facts[-3:]] == [
            "controllers/committed",
            "pilothouse/state",
            "run_ended",
        ]


async def test_extensions_and_notes_have_the_names_that_are_reserved_for_them() -> None:
    """RC-81: what our own parts keep beside the facts is found under known names, and nothing under others."""
    known = {"loop/request", "controllers/staged", "controllers/committed", "pilothouse/state"}
    scripts = [call("n__add", {"by": 2})], "done", "nothing to add"
    async with AgentController(scripted(*scripts), controllers=[Number("n")]) as agent:
        names, extensions = [], []
        for text in ("add", "and?"):
            reply = await agent.send(text)
            await reply.result()
            extensions.append(set((await agent.runs.registered(reply.id)).extensions))
            events = await agent.runs.events(reply.id)
            names.append({record.fact.name for record in events if record.fact.kind == "noted"})
        assert names == [known, {"loop/request"}]
        assert extensions == [{"controllers/request"}, {"controllers/request", "controllers/base"}]
