"""The AI SDK's chat (`ai` 6) against our process: its schema reads every part, so an unknown one fails here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodekit import Client, CuttingProxy

pytestmark = pytest.mark.foreign

MAP = {
    "name": "show_map",
    "description": "Shows a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def node() -> Iterator[Client]:
    with Client("aisdk.mjs") as client:
        yield client


@pytest.fixture
def client(node: Client, served, thread: str) -> Client:
    node("open", url=f"{served.url}/aisdk/default", thread=thread)
    return node


def send(client: Client, text: str, **more: Any) -> Any:
    client("send", text=text, **more)
    return client("ended")


def parts(shown: Any, kind: str) -> list[Any]:
    return [
        part
        for message in shown["messages"]
        if message["role"] == "assistant"
        for part in message["parts"]
        if part["type"] == kind
    ]


def texts(shown: Any) -> list[str]:
    return [
        "".join(part.get("text", "") for part in m["parts"] if part["type"] == "text")
        for m in shown["messages"]
    ]


def parts_before_the_gate(served, thread: str) -> int:
    """How many parts a run sends before it waits for the gate."""
    said = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "tidal please"}]}
    url, body, found = f"{served.url}/aisdk/default", {"id": thread, "messages": [said]}, 0
    with httpx2.stream("POST", url, json=body) as answer:
        for line in answer.iter_lines():
            found += line.startswith("data: ")
            if "The answer: " in line:
                served.gate.open()
                return found
    raise AssertionError("it ended before")


def ready(shown: Any) -> None:
    assert (shown["error"], shown["status"]) == (None, "ready")


def test_answers_reasoning_and_tools_are_shown(client: Client) -> None:
    """SV-200, proof 19: text, reasoning and a server tool with its result; one message a run."""
    shown = send(client, "think hard")
    ready(shown)
    assert texts(shown) == ["think hard", "It is clear."]
    assert [part["text"] for part in parts(shown, "reasoning")] == ["Let me see. "]
    assert shown["finished"] == [{"isAbort": False, "isError": False, "finishReason": "stop"}]
    shown = send(client, "tide please")
    ready(shown)
    assert texts(shown)[-1] == "Let me look. The answer: 3.1 m at Bréhat"
    (tool,) = parts(shown, "tool-tide")
    assert (tool["state"], tool["input"], tool["output"]) == (
        "output-available",
        {"place": "Bréhat"},
        "3.1 m at Bréhat",
    )
    assert [part["type"] for part in shown["messages"][-1]["parts"]].count("step-start") == 2
    assert len({message["id"] for message in shown["messages"]}) == 4


WHOLE = "Let me look. The answer: 3.1 m at Bréhat"


def test_cut_behind_every_part_and_resumed_it_shows_the_text_once(node: Client, served, thread: str) -> None:
    """SV-201, SV-202, fixture 182, proof 19: a cut is an error, never an end; `resumeStream` heals it in the same message."""
    for cut in range(1, parts_before_the_gate(served, f"{thread}-counted")):
        chat = f"{thread}-{cut}"
        node("open", url=f"{served.url}/aisdk/default", thread=chat)
        before = send(node, "one")["messages"]
        with CuttingProxy(served.url, cut) as proxy:
            node("open", url=f"{proxy.url}/aisdk/default", thread=chat, messages=before)
            shown = send(node, "tidal please")
            assert shown["status"] == "error"
            node("resume")
            node.wait(text="The answer: ")
            served.gate.open()
            shown = node("ended")
        ready(shown)
        assert texts(shown) == ["one", "You said one.", "tidal please", WHOLE]
        assert shown["messages"][:2] == before
        assert [(part["state"], part["output"]) for part in parts(shown, "tool-tide")] == [
            ("output-available", "3.1 m at Bréhat")
        ]
        assert [part["text"] for part in parts(shown, "reasoning")] == ["I know now. "]


def test_a_new_page_joins_what_is_live_and_nothing_else(node: Client, served, thread: str) -> None:
    """SV-202: the whole message of the live run; 204 where nothing is live, and the page is ready."""
    node("open", url=f"{served.url}/aisdk/default", thread=thread)
    node("resume")
    ready(node("ended"))
    node("send", text="hold on")
    shown = node.wait(text="First half.")
    with Client("aisdk.mjs") as page:
        page("open", url=f"{served.url}/aisdk/default", thread=thread, messages=shown["messages"][:1])
        page("resume")
        page.wait(text="First half.")
        served.gate.open()
        there = page("ended")
    here = node("ended")
    for shown in (here, there):
        ready(shown)
        assert texts(shown) == ["hold on", "First half. Second half."]
    assert httpx2.get(f"{served.url}/aisdk/default/{thread}/stream").status_code == 204


@pytest.mark.parametrize("approved", [True, False])
def test_an_approval_goes_on_in_the_same_message(node: Client, served, thread: str, approved: bool) -> None:
    """SV-203: asked, answered, continued, without a second message; denied it says so."""
    node("open", url=f"{served.url}/aisdk/default", thread=thread, automatic=True)
    shown = send(node, "buy tea")
    ready(shown)
    assert shown["finished"][0]["finishReason"] == "tool-calls"
    (part,) = parts(shown, "tool-buy")
    assert part["state"] == "approval-requested"
    node("approve", request=part["approval"]["id"], approved=approved, reason="I say so")
    shown = node.wait(text="The answer: ", status="ready")
    (part,) = parts(shown, "tool-buy")
    assert part["state"] == ("output-available" if approved else "output-denied")
    assert part["approval"]["approved"] is approved
    if approved:
        assert part["output"] == "bought tea"
    assert len(shown["messages"]) == 2
    ready(send(node, "and now"))


def test_an_approval_survives_a_new_page(node: Client, served, thread: str) -> None:
    """SV-202, SV-203: a waiting run is live: its message, the approval included, is told again and can be answered."""
    node("open", url=f"{served.url}/aisdk/default", thread=thread)
    user = send(node, "buy tea")["messages"][:1]
    node("open", url=f"{served.url}/aisdk/default", thread=thread, automatic=True, messages=user)
    node("resume")
    (part,) = parts(node("ended"), "tool-buy")
    assert part["state"] == "approval-requested"
    node("approve", request=part["approval"]["id"], approved=True)
    shown = node.wait(text="The answer: bought tea", status="ready")
    assert len(shown["messages"]) == 2


def test_a_client_tool_runs_in_the_client_and_goes_on(node: Client, served, thread: str) -> None:
    """SV-203: its output answers the external request; the client's own value stays as it is."""
    node("open", url=f"{served.url}/aisdk/default", thread=thread, tools=True, automatic=True)
    node("send", text="map please", body={"tools": [MAP]})
    shown = node.wait(text="The answer: ", status="ready")
    (part,) = parts(shown, "tool-show_map")
    assert (part["state"], part["output"]) == ("output-available", {"shown": "Bréhat"})
    assert texts(shown)[-1] == 'Here: The answer: {"shown":"Bréhat"}'
    assert len(shown["messages"]) == 2


def test_regenerate_and_edit(client: Client, served, thread: str) -> None:
    """SV-205, SV-101: an answer is given again, an earlier message is replaced; the branches stay."""
    send(client, "one")
    first = send(client, "two")
    client("regenerate", messageId=first["messages"][1]["id"])
    shown = client("ended")
    ready(shown)
    assert texts(shown) == ["one", "You said one."]
    assert shown["messages"][1]["id"] != first["messages"][1]["id"]
    client("regenerate")
    assert texts(client("ended")) == ["one", "You said one."]
    send(client, "three")
    shown = send(client, "four", messageId=client("show")["messages"][2]["id"])
    ready(shown)
    assert texts(shown) == ["one", "You said one.", "four", "You said four."]
    assert texts(send(client, "five"))[-1] == "You said five."
    path = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").json()["items"]
    said = [
        "".join(part.get("text", "") for part in item["parts"]) for item in path if item["role"] == "user"
    ]
    assert said == ["one", "four", "five"]
    shown = send(client, "nought", messageId=shown["messages"][0]["id"])
    assert texts(shown) == ["nought", "You said nought."]
    assert len(httpx2.get(f"{served.url}/v1/threads/{thread}/runs").json()["items"]) == 8


def test_an_error_is_shown_and_a_new_try_goes_on(client: Client) -> None:
    """SV-201: the cause, the partial text, and the client can go on."""
    shown = send(client, "broken please")
    assert shown["status"] == "error"
    assert "500" in shown["error"]
    assert texts(shown)[-1] == "Half an "
    assert shown["finished"][-1]["isError"] is True
    ready(send(client, "next"))


def test_a_stop_of_the_server_is_an_abort(client: Client, served, thread: str) -> None:
    """SV-201, SV-204: the stream ends by `abort`, the client is ready and keeps what was said."""
    client("send", text="hold on")
    client.wait(text="First half.")
    stopped = httpx2.post(f"{served.url}/aisdk/default/{thread}/stop")
    assert stopped.json() == {"stopped": True}
    shown = client("ended")
    ready(shown)
    assert texts(shown)[-1] == "First half. "
    ready(send(client, "next"))


def test_its_own_stop_is_a_closed_connection(client: Client, served, thread: str) -> None:
    """SV-61, SV-204: the run goes on until the next send takes its place."""
    client("send", text="hold on")
    client.wait(text="First half.")
    client("stop")
    ready(client("show"))
    assert httpx2.get(f"{served.url}/agui/default?threadId={thread}").json()["activeRun"] is not None
    shown = send(client, "next")
    ready(shown)
    assert texts(shown)[-1] == "You said next."
