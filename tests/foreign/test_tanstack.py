"""TanStack AI's chat client against our process: it reconnects by itself, so it must show each text once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodekit import Client, CuttingProxy

pytestmark = pytest.mark.foreign


@pytest.fixture(scope="module")
def node() -> Iterator[Client]:
    with Client("tanstack.mjs") as client:
        yield client


@pytest.fixture
def client(node: Client, served, thread: str) -> Client:
    node("open", url=f"{served.url}/agui/default", thread=thread)
    return node


def send(client: Client, text: str) -> Any:
    client("send", text=text)
    return client("ended")


def parts(shown: Any, kind: str, role: str = "assistant") -> list[Any]:
    return [
        part
        for message in shown["messages"]
        if message["role"] == role
        for part in message["parts"]
        if part["type"] == kind
    ]


def texts(shown: Any, role: str = "assistant") -> list[str]:
    return [part["content"] for part in parts(shown, "text", role)]


def ready(shown: Any) -> None:
    assert (shown["error"], shown["status"], shown["loading"]) == (None, "ready", False)


def test_answers_reasoning_and_tools_are_shown(client: Client) -> None:
    """SV proof 18: text, reasoning and a server tool with its result, one run after the other."""
    shown = send(client, "think hard")
    ready(shown)
    assert texts(shown) == ["It is clear."]
    assert [part["content"] for part in parts(shown, "thinking")] == ["Let me see. "]
    shown = send(client, "tide please")
    ready(shown)
    assert "".join(texts(shown)).endswith("The answer: 3.1 m at Bréhat")
    assert [call["name"] for call in parts(shown, "tool-call")] == ["tide"]
    assert [result["content"] for result in parts(shown, "tool-result")] == ["3.1 m at Bréhat"]
    assert texts(shown, "user") == ["think hard", "tide please"]


@pytest.mark.parametrize("word", ["count 6", "tide please", "think hard"])
def test_cut_behind_every_frame_it_shows_the_text_once(node: Client, served, thread: str, word: str) -> None:
    """SV-44, SV-45, proof 18: connections that die behind each frame, one after the other, change nothing."""
    node("open", url=f"{served.url}/agui/default", thread=f"{thread}-whole")
    whole = send(node, word)
    frames = len(whole["chunks"])
    with CuttingProxy(served.url, *[1] * (frames - 1)) as proxy:
        node("open", url=f"{proxy.url}/agui/default", thread=thread)
        shown = send(node, word)
        assert proxy.streams > 3
    ready(shown)
    assert texts(shown) == texts(whole)
    assert [part.get("content") for part in parts(shown, "tool-result")] == [
        part.get("content") for part in parts(whole, "tool-result")
    ]
    assert len(parts(shown, "thinking")) == len(parts(whole, "thinking"))


def test_two_runs_one_cut(node: Client, served, thread: str) -> None:
    """Fixture 182, P079: what comes back after a cut is the new answer, not the previous one again."""
    with CuttingProxy(served.url) as proxy:
        node("open", url=f"{proxy.url}/agui/default", thread=thread)
        ready(send(node, "one"))
        proxy.cuts.extend([2, 3, 4])
        shown = send(node, "count 5")
    ready(shown)
    assert texts(shown) == ["You said one.", "0 1 2 3 4 "]
    assert len({message["id"] for message in shown["messages"]}) == 4


def test_a_new_page_hydrates_and_joins_what_is_live(node: Client, served, thread: str) -> None:
    """SV-156: a reload shows what was said and follows the live run to its end; the text is there once."""
    node("open", url=f"{served.url}/agui/default", thread=thread)
    ready(send(node, "one"))
    node("send", text="hold on")
    node.wait(text="First half.")
    with Client("tanstack.mjs") as page:
        page("open", url=f"{served.url}/agui/default", thread=thread, persistence=True)
        page.wait(text="First half.")
        served.gate.open()
        shown = page.wait(text="Second half.", loading=False)
        # What hydration and the joined run both hold is shown once.
        assert "".join(texts(shown)) == "You said one.First half. Second half."
        assert texts(shown, "user") == ["one", "hold on"]
    ready(node("ended"))


def test_a_client_tool_runs_in_the_client_and_goes_on(node: Client, served, thread: str) -> None:
    """SV §12: this client shows the call; once its result is there it goes on by itself."""
    node("open", url=f"{served.url}/agui/default", thread=thread, tools=True)
    node("send", text="map please")
    node("ended")
    shown = node("show")
    (call,) = parts(shown, "tool-call")
    assert call["name"] == "show_map"


def test_an_approval_is_asked_and_answered(client: Client) -> None:
    """SV-93: what is open is shown; the answer goes on in the same conversation."""
    shown = send(client, "buy tea")
    assert shown["error"] is None
    assert [one["kind"] for one in shown["interrupts"]] == ["generic"]
    client("answer", approved=True)
    shown = client.wait(text="bought tea", loading=False)
    assert shown["interrupts"] == []
    assert [result["content"] for result in parts(shown, "tool-result")] == ["bought tea"]


def test_an_error_is_shown(client: Client) -> None:
    """SV-95: the cause, and the client can go on."""
    shown = send(client, "broken please")
    assert "500" in shown["error"]
    assert texts(shown) == ["Half an "]
    ready(send(client, "next"))


def test_its_stop_is_a_closed_connection(client: Client, served, thread: str) -> None:
    """SV-61: it has no stop message; the run goes on until the next send takes its place."""
    client("send", text="hold on")
    client.wait(text="First half.")
    client("stop")
    shown = client("show")
    assert shown["status"] == "ready"
    live = httpx2.get(f"{served.url}/agui/default?threadId={thread}").json()["activeRun"]
    assert live is not None
    shown = send(client, "next")
    ready(shown)
    assert texts(shown)[-1] == "You said next."


def test_reload_regenerates(client: Client, served, thread: str) -> None:
    """SV-101: its reload drops the answer and asks again: one more branch, nothing deleted."""
    send(client, "one")
    client("reload")
    shown = client("ended")
    ready(shown)
    assert texts(shown) == ["You said one."]
    assert len(httpx2.get(f"{served.url}/v1/threads/{thread}/runs").json()["items"]) == 2
