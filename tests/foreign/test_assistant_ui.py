"""assistant-ui's AG-UI runtime against our process: it sends the whole transcript each time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodekit import Client, CuttingProxy

pytestmark = pytest.mark.foreign


@pytest.fixture
def client(served, thread: str) -> Iterator[Client]:
    with Client("assistant.mjs") as node:
        node("open", url=f"{served.url}/agui/default", thread=thread)
        yield node


def send(client: Client, text: str) -> Any:
    client("send", text=text)
    return client("ended")


def last(shown: Any) -> Any:
    return [message for message in shown["messages"] if message["role"] == "assistant"][-1]


def text(message: Any) -> str:
    return "".join(part["text"] for part in message["content"] if part["type"] == "text")


def test_an_answer_is_complete(client: Client, served, thread: str) -> None:
    """SV proof 20: text, reasoning, a tool; nothing twice over several turns."""
    shown = send(client, "think hard")
    assert last(shown)["status"]["type"] == "complete"
    assert text(last(shown)) == "It is clear."
    shown = send(client, "tide please")
    assert shown["errors"] == []
    assert last(shown)["status"]["type"] == "complete"
    assert "The answer: 3.1 m at Bréhat" in text(last(shown))
    shown = send(client, "next")
    assert text(last(shown)) == "You said next."
    kept = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").json()["items"]
    assert [message["role"] for message in kept].count("user") == 3


def test_a_client_tool_is_answered_and_goes_on(client: Client) -> None:
    """SV-91: without an outcome in the finish its result can be given, and the run goes on."""
    client("tools")
    shown = send(client, "map please")
    (call,) = shown["calls"]
    client("result", call=call, value="shown")
    shown = client.wait(text="The answer: shown", running=False)
    assert shown["errors"] == []


@pytest.mark.parametrize("approved", [True, False])
def test_an_interrupt_is_answered(client: Client, served, thread: str, approved: bool) -> None:
    """SV-104: it answers with the whole transcript: applied once, duplicated nowhere."""
    shown = send(client, "buy tea")
    (asked,) = shown["interrupts"]
    response = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": approved}}
    client("answer", responses=[response])
    shown = client("ended")
    assert shown["errors"] == []
    assert shown["interrupts"] == []
    assert last(shown)["status"]["type"] == "complete"
    kept = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").json()["items"]
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]


def test_an_error_is_shown_as_incomplete(client: Client) -> None:
    """SV-95: the text stays, the error is told, the next send works."""
    shown = send(client, "broken please")
    assert last(shown)["status"]["type"] == "incomplete"
    assert text(last(shown)) == "Half an "
    assert "500" in str(shown)
    assert text(last(send(client, "next"))) == "You said next."


def test_a_cut_is_shown_as_incomplete(served, thread: str) -> None:
    """SV-57: a cut is never shown as a complete answer."""
    with CuttingProxy(served.url, 4) as proxy, Client("assistant.mjs") as client:
        client("open", url=f"{proxy.url}/agui/default", thread=thread)
        shown = send(client, "count 8")
        assert last(shown)["status"]["type"] == "incomplete"
        assert text(last(send(client, "next"))) == "You said next."


def test_stop(client: Client) -> None:
    """SV-61: its stop closes the connection, which it shows as it likes; the next send works."""
    client("send", text="hold on")
    client.wait(text="First half.")
    client("stop")
    shown = client("ended")
    assert last(shown)["status"]["type"] == "incomplete"
    assert text(last(shown)) == "First half. "
    assert text(last(send(client, "next"))) == "You said next."
