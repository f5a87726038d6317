"""Pauses and answers on the AG-UI face: approvals, questions, client tools, and what may not be (server page §6.3, §6.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asgikit import Connection, ask, run_input
from pilothouse.conversation.controller import AgentController
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.verify import Verifier
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.context import ToolContext
from pilothouse.loop.tools import tool
from pilothouse.server.app import Server
from pilothouse.server.settings import AGUIOptions
from pilothouse.testing.scripted import ScriptedProvider, call

VERIFY = AGUIOptions(verify=True)
MAP = {
    "name": "show_map",
    "description": "Shows a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}


class Shop:
    """An agent that may buy after asking, and ask; `bought` has what was really bought."""

    def __init__(self, *script: Any, journal: Any = None) -> None:
        self.bought: list[str] = []
        self.provider = ScriptedProvider(*script)

        @tool(approval=True)
        async def buy(what: str) -> str:
            """Buys."""
            self.bought.append(what)
            return f"bought {what}"

        @tool(effect="human")
        async def question(ctx: ToolContext[Any]) -> str:
            """Asks."""
            return "they said " + str(await ctx.ask("Which colour?", schema=str))

        agent = AgentController(self.provider, tools=[buy, question])
        self.app = Server(
            {"default": agent}, journal=journal or MemoryJournal(), drain_timeout=0.0, agui=VERIFY
        )

    async def post(self, run: str, *said: Any, path: str = "/agui/default", **more: Any) -> Connection:
        return await ask(self.app, "POST", path, run_input("t1", run, *said, **more))

    async def status(self, run: str) -> dict[str, Any]:
        return (await ask(self.app, "GET", f"/v1/runs/{run}")).json()


def verified(connection: Connection, profile: agui.Profile = "1.0") -> list[dict[str, Any]]:
    assert connection.status == 200, connection.body
    Verifier(profile).check_all([agui.decode(frame.data) for frame in connection.frames])
    return connection.events


def interrupts(connection: Connection) -> list[dict[str, Any]]:
    outcome = verified(connection)[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    return outcome["interrupts"]


def resolved(asked: dict[str, Any], payload: Any) -> dict[str, Any]:
    return {"interruptId": asked["id"], "status": "resolved", "payload": payload}


def results(connection: Connection) -> list[str]:
    return [event["content"] for event in connection.events if event["type"] == "TOOL_CALL_RESULT"]


def buying(*items: str) -> list[Any]:
    return [call("buy", {"what": item}, call_id=f"c{n}") for n, item in enumerate(items, 1)]


async def test_an_approval_is_asked_and_the_answer_goes_on_in_a_run_of_its_own() -> None:
    """SV-70, SV-93, fixture 179: the terminal event names the request; resume runs the call once, in a new segment."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        first = await shop.post("r1", "buy tea")
        (asked,) = interrupts(first)
        assert asked["reason"] == "tool_call"
        assert asked["toolCallId"] == "c1"
        assert asked["responseSchema"]["required"] == ["approved"]
        assert asked["metadata"]["tool"] == "buy"
        assert asked["metadata"]["arguments"] == {"what": "tea"}
        assert (await shop.status("r1"))["status"] == "waiting"
        assert not shop.bought
        second = await shop.post("r2", resume=[resolved(asked, {"approved": True})])
        events = verified(second)
        assert (events[0]["runId"], events[-1]["runId"]) == ("r2", "r2")
        assert events[-1]["outcome"] == {"type": "success"}
        assert results(second) == ["bought tea"]
        assert second.text == "Enjoy."
        assert shop.bought == ["tea"]
        assert (await shop.status("r1"))["status"] == "completed"


@pytest.mark.parametrize("version", ["1.0", None])
async def test_a_reader_leaves_at_a_question_with_state_and_conversation(version: str | None) -> None:
    """RC-86: STATE_SNAPSHOT, MESSAGES_SNAPSHOT, RUN_FINISHED; the open call is in the list, without a result."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        path = "/agui/default" if version else "/agui/default?profile=legacy"
        first = await shop.post("r1", "buy tea", path=path, state={"room": "bridge"})
        *_, state, messages, finished = verified(first, "1.0" if version else "legacy")
        assert (state["type"], state["snapshot"]) == ("STATE_SNAPSHOT", {"room": "bridge"})
        assert messages["type"] == "MESSAGES_SNAPSHOT"
        assert [message["role"] for message in messages["messages"]] == ["user", "assistant"]
        assert [item["id"] for item in messages["messages"][-1]["toolCalls"]] == ["c1"]
        assert finished["type"] == "RUN_FINISHED"
        place = first.frames[
            -4
        ].id  # what stood before them is known: the three are told again, and only they
        body = run_input("t1", "r1", "buy tea", state={"room": "bridge"})
        again = await ask(shop.app, "POST", path, body, headers={"last-event-id": str(place)})
        assert [event["type"] for event in again.events] == [
            "STATE_SNAPSHOT",
            "MESSAGES_SNAPSHOT",
            "RUN_FINISHED",
        ]


async def test_a_whole_transcript_with_the_answer_duplicates_nothing() -> None:
    """SV-104: assistant-ui sends everything again; the thread is the truth."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        hydrated = (await ask(shop.app, "GET", "/agui/default?threadId=t1")).json()
        assert [one["id"] for one in hydrated["interrupts"]["pending"]] == [asked["id"]]
        (call,) = [part for part in hydrated["messages"][1]["parts"] if part["type"] == "tool-call"]
        assert (call["name"], call["arguments"]) == ("buy", '{"what":"tea"}')
        told = (await ask(shop.app, "GET", "/agui/default?threadId=t1&messages=agui")).json()["messages"]
        assert told[1]["toolCalls"][0]["function"] == {"name": "buy", "arguments": '{"what":"tea"}'}
        again = await shop.post("r2", *hydrated["messages"], resume=[resolved(asked, {"approved": True})])
        snapshot = [event for event in verified(again) if event["type"] == "MESSAGES_SNAPSHOT"][-1]
        assert [message["role"] for message in snapshot["messages"]] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip


async def test_a_repeated_answer_follows_and_performs_nothing_twice() -> None:
    """SV-72: the same body again is the same segment, at once and later; another answer to the same is refused."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        resume = [resolved(asked, {"approved": True})]
        both = await asyncio.gather(*[shop.post("r2", resume=resume) for _ in range(2)])
        later = await shop.post("r2", resume=resume)
        for one in (*both, later):
            assert verified(one)[-1]["type"] == "RUN_FINISHED"
            assert one.text == "Enjoy."
        assert shop.bought == ["tea"]


@pytest.mark.parametrize(
    ("entry", "result"),
    [
        ({"status": "resolved", "payload": {"approved": False, "reason": "too dear"}}, "too dear"),
        ({"status": "resolved", "payload": False}, "did not allow"),
        ({"status": "cancelled"}, "cancelled"),
    ],
)
async def test_a_denial_is_told_to_the_model(entry: dict[str, Any], result: str) -> None:
    """SV-103: a denial is a resolved payload; a cancelled interrupt is a denial with that reason."""
    shop = Shop(buying("tea"), "Then not.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        second = await shop.post("r2", resume=[{"interruptId": asked["id"], **entry}])
        verified(second)
        assert result in results(second)[0]
        assert second.text == "Then not."
        assert not shop.bought


async def test_edited_arguments_replace_all() -> None:
    """SV-103: `editedArgs`; such as do not fit are 422, the run waits on."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        wrong = await shop.post(
            "r2", resume=[resolved(asked, {"approved": True, "editedArgs": {"what": {"no": 1}}})]
        )
        assert wrong.status == 422
        assert wrong.json()["code"] == "invalid_arguments"
        assert (await shop.status("r1"))["status"] == "waiting"
        fine = await shop.post(
            "r3", resume=[resolved(asked, {"approved": True, "editedArgs": {"what": "milk"}})]
        )
        verified(fine)
        assert shop.bought == ["milk"]


@pytest.mark.parametrize(
    "payload", [None, "yes", {}, {"approved": "yes"}, {"approved": True, "editedArgs": []}]
)
async def test_a_payload_that_does_not_fit_is_refused_with_its_path(payload: Any) -> None:
    """SV-103: checked against the schema, 422; nothing is performed."""
    shop = Shop(buying("tea"))
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        refused = await shop.post("r2", resume=[resolved(asked, payload)])
        assert refused.status == 422
        assert refused.json()["errors"][0]["path"].startswith(f"resume.{asked['id']}")
        assert (await shop.status("r1"))["status"] == "waiting"


async def test_all_open_requests_are_answered_together() -> None:
    """SV-93, SV-103: all in one list; a missing one is 409 that lists it, unknown ones do no harm."""
    shop = Shop(buying("tea", "milk"), "Enjoy.")
    async with shop.app.lifespan():
        asked = interrupts(await shop.post("r1", "buy tea and milk"))
        assert [one["toolCallId"] for one in asked] == ["c1", "c2"]
        half = await shop.post("r2", resume=[resolved(asked[0], {"approved": True})])
        assert half.status == 409
        assert half.json()["code"] == "requests_pending"
        assert [one["id"] for one in half.json()["requests"]] == [asked[1]["id"]]
        assert not shop.bought
        stranger = {"interruptId": "nobody", "status": "cancelled"}
        whole = await shop.post(
            "r3",
            resume=[
                resolved(asked[0], {"approved": True}),
                resolved(asked[1], {"approved": False}),
                stranger,
            ],
        )
        verified(whole)
        assert shop.bought == ["tea"]
        assert whole.text == "Enjoy."


async def test_a_question_is_asked_and_answered() -> None:
    """SV-93: `input_required` with its prompt and schema."""
    shop = Shop([call("question", {}, call_id="c1")], "Blue then.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "ask me"))
        assert asked["reason"] == "input_required"
        assert asked["message"] == "Which colour?"
        wrong = await shop.post("r2", resume=[resolved(asked, 7)])
        assert (wrong.status, wrong.json()["code"]) == (422, "answer_mismatch")
        second = await shop.post("r3", resume=[resolved(asked, "blue")])
        verified(second)
        assert results(second) == ["they said blue"]


async def test_the_older_convention_answers_a_single_request() -> None:
    """SV-109: `forwardedProps.command.resume`; with several it is refused."""
    shop = Shop(buying("tea"), "Enjoy.", buying("a", "b"))
    async with shop.app.lifespan():
        interrupts(await shop.post("r1", "buy tea"))
        second = await shop.post("r2", forwardedProps={"command": {"resume": {"approved": True}}})
        verified(second)
        assert shop.bought == ["tea"]
        interrupts(await shop.post("r3", "two more"))
        both = await shop.post("r4", forwardedProps={"command": {"resume": {"approved": True}}})
        assert (both.status, both.json()["code"]) == (409, "requests_pending")


# Client tools


async def test_a_client_tool_pauses_the_run_and_its_result_goes_on() -> None:
    """SV-100, SV-106, TL-16: told as pending calls; a tool message answers by `toolCallId`."""
    shop = Shop([call("show_map", {"place": "Brest"}, call_id="c1")], "There.")
    async with shop.app.lifespan():
        first = await shop.post("r1", "where?", tools=[MAP])
        outcome = verified(first)[-1]["outcome"]
        assert outcome == {"type": "success", "pendingToolCallIds": ["c1"]}
        answer = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "shown"}
        second = await shop.post("r2", answer, tools=[MAP])
        assert verified(second)[-1]["outcome"] == {"type": "success"}
        assert second.text == "There."
        told = shop.provider.requests[-1].messages[-1]
        assert (told.role, told.call_id, told.parts[0].text) == ("tool", "c1", "shown")


async def test_a_legacy_client_sees_the_pause_as_a_plain_finish() -> None:
    """SV-91: no `pendingToolCallIds`, no outcome; the calls without results say it."""
    shop = Shop([call("show_map", {"place": "Brest"}, call_id="c1")], "There.")
    async with shop.app.lifespan():
        first = await shop.post("r1", "where?", tools=[MAP], protocolVersion=None)
        assert "outcome" not in verified(first, "legacy")[-1]
        answer = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "", "error": "no map here"}
        second = await shop.post("r2", answer, tools=[MAP], protocolVersion=None)
        verified(second, "legacy")
        assert second.text == "There."
        assert shop.provider.requests[-1].messages[-1].parts[0].text == "no map here"


async def test_a_resume_entry_wins_over_a_tool_message() -> None:
    """SV-104: CopilotKit sends both; it is applied once."""
    shop = Shop([call("show_map", {"place": "Brest"}, call_id="c1")], "There.")
    async with shop.app.lifespan():
        await shop.post("r1", "where?", tools=[MAP])
        view = await shop.status("r1")
        (request,) = view["requests"]
        message = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "of the message"}
        second = await shop.post(
            "r2", message, resume=[{"interruptId": request["id"], "status": "resolved", "payload": "of the entry"}]
        )  # fmt: skip
        verified(second)
        assert results(second) == ["of the entry"]


async def test_a_client_tool_with_the_agents_own_name_is_refused() -> None:
    """SV-106: 422 before the stream opens."""
    shop = Shop("unused")
    async with shop.app.lifespan():
        answer = await shop.post("r1", "hi", tools=[{**MAP, "name": "buy"}])
        assert answer.status == 422
        assert (await ask(shop.app, "GET", "/v1/runs/r1")).status == 404


async def test_approvals_come_before_client_tools() -> None:
    """SV-92: a client tool is announced when the approvals of its turn are settled, and not refused for them."""
    shop = Shop([*buying("tea"), call("show_map", {"place": "Brest"}, call_id="c9")], "There.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "both", tools=[MAP]))
        assert asked["toolCallId"] == "c1"
        second = await shop.post("r2", resume=[resolved(asked, {"approved": True})], tools=[MAP])
        assert verified(second)[-1]["outcome"] == {"type": "success", "pendingToolCallIds": ["c9"]}
        answer = {"id": "m9", "role": "tool", "toolCallId": "c9", "content": "shown"}
        third = await shop.post("r3", answer, tools=[MAP])
        verified(third)
        assert third.text == "There."
        assert shop.bought == ["tea"]


# Going on without an answer


async def test_a_new_message_ends_what_waits_for_a_client_tool() -> None:
    """SV-105: the call is settled, the run ends, the new one starts."""
    shop = Shop([call("show_map", {"place": "Brest"}, call_id="c1")], "Something else.")
    async with shop.app.lifespan():
        await shop.post("r1", "where?", tools=[MAP])
        second = await shop.post("r2", "never mind")
        verified(second)
        assert second.text == "Something else."
        assert (await shop.status("r1"))["status"] == "cancelled"
        late = await shop.post("r3", {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "late"})
        assert (late.status, late.json()["code"]) == (422, "nothing_to_do")


async def test_a_new_message_does_not_pass_over_a_person_who_is_asked() -> None:
    """SV-105: 409 `requests_pending`; `supersede` says it is meant, and a late answer is refused."""
    shop = Shop(buying("tea"), "Something else.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        refused = await shop.post("r2", "never mind")
        assert (refused.status, refused.json()["code"]) == (409, "requests_pending")
        assert (await shop.status("r1"))["status"] == "waiting"
        meant = await shop.post("r3", "never mind", forwardedProps={"pilothouse": {"when_busy": "supersede"}})
        verified(meant)
        assert meant.text == "Something else."
        late = await shop.post("r4", resume=[resolved(asked, {"approved": True})])
        assert late.status == 409
        assert not shop.bought


async def test_results_and_a_new_message_together() -> None:
    """SV-100: the result goes on with the run, and what the user says with it is not lost."""
    shop = Shop([call("show_map", {"place": "Brest"}, call_id="c1")], "There, and hello.")
    async with shop.app.lifespan():
        await shop.post("r1", "where?", tools=[MAP])
        answer = {"id": "m9", "role": "tool", "toolCallId": "c1", "content": "shown"}
        second = await shop.post("r2", answer, "and hello", tools=[MAP])
        verified(second)
        assert second.text == "There, and hello."
        said = [message.parts[0].text for message in shop.provider.requests[-1].messages[-2:]]
        assert said == ["shown", "and hello"]


# Others who look on, and restarts


async def test_joining_a_run_that_waits_shows_what_is_asked() -> None:
    """SV-70: a reload sees the question and the answer's segment after it."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        joined = await ask(shop.app, "GET", "/agui/default?runId=r1&offset=-1")
        assert [one["id"] for one in interrupts(joined)] == [asked["id"]]
        await shop.post("r2", resume=[resolved(asked, {"approved": True})])
        whole = await ask(shop.app, "GET", "/agui/default?runId=r1&offset=-1")
        assert verified(whole)[-1]["outcome"] == {"type": "success"}
        assert whole.text == "Enjoy."
        segment = await ask(shop.app, "GET", "/agui/default?runId=r2&threadId=t1&offset=-1")
        events = verified(segment)
        assert events[0]["runId"] == "r2"
        assert [message["role"] for message in events[1]["messages"]] == ["user", "assistant"]
        assert results(segment) == ["bought tea"]


async def test_an_answer_after_a_restart_goes_on() -> None:
    """RC-60, LP-36: the request is still open in the journal; the new process takes the run up and runs the call once."""
    journal = MemoryJournal()
    before = Shop(buying("tea"), journal=journal)
    async with before.app.lifespan():
        (asked,) = interrupts(await before.post("r1", "buy tea"))
    after = Shop("Enjoy.", journal=journal)
    async with after.app.lifespan():
        hydrated = (await ask(after.app, "GET", "/agui/default?threadId=t1")).json()
        assert hydrated["interrupts"]["pending"][0]["id"] == asked["id"]
        second = await after.post("r2", resume=[resolved(asked, {"approved": True})])
        verified(second)
        assert second.text == "Enjoy."
        assert after.bought == ["tea"]


async def test_stop_ends_a_run_that_waits() -> None:
    """SV-183: its requests close; an answer comes too late."""
    shop = Shop(buying("tea"))
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        stopped = await ask(shop.app, "POST", "/agui/default/stop", {"threadId": "t1"})
        assert stopped.json() == {"stopped": True}
        late = await shop.post("r2", resume=[resolved(asked, {"approved": True})])
        assert late.status == 409
        assert not shop.bought


async def test_one_answer_of_two_clients_counts() -> None:
    """SV-72, RC-50: two people answer at once, differently: one decides, the other is told so."""
    shop = Shop(buying("tea"), "Enjoy.")
    async with shop.app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
        yes, no = await asyncio.gather(
            shop.post("r2", resume=[resolved(asked, {"approved": True})]),
            shop.post("r3", resume=[resolved(asked, {"approved": False})]),
        )
        assert sorted([yes.status, no.status]) == [200, 409]
        assert shop.bought == (["tea"] if yes.status == 200 else [])


@pytest.mark.parametrize("face", ["runs", "delete"])
async def test_who_is_refused_because_a_run_waits_is_told_how_to_go_on(face: str) -> None:
    """SV-116, RC-35: also after a restart the answer names the run, what it waits for, and the two ways out."""
    journal = MemoryJournal()
    async with (shop := Shop(buying("tea"), journal=journal)).app.lifespan():
        (asked,) = interrupts(await shop.post("r1", "buy tea"))
    async with (shop := Shop("Enjoy.", "Bye.", journal=journal)).app.lifespan():
        if face == "runs":
            body = {"thread_id": "t1", "input": "and milk", "when_busy": "raise"}
            refused = await ask(shop.app, "POST", "/v1/runs", body)
        else:
            refused = await ask(shop.app, "DELETE", "/v1/threads/t1")
        problem = refused.json()
        assert (refused.status, problem["code"], problem["run_id"]) == (409, "thread_busy", "r1")
        assert asked["id"] in problem["detail"]
        assert "answer it, or cancel the run" in problem["detail"]
        assert shop.bought == []
