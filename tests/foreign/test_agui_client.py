"""The protocol's own client, in the newest version and the two before, against our process (server page §12, §14)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from nodekit import Client, CuttingProxy

pytestmark = pytest.mark.foreign

NEWEST, *OLDER = VERSIONS = ["@ag-ui/client", "ag-ui-client-0.0.59", "ag-ui-client-0.0.58"]
MAP = {
    "name": "show_map",
    "description": "Shows a place.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
}


@pytest.fixture(scope="module", params=VERSIONS)
def node(request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client("agui.mjs", request.param) as client:
        client.version = request.param
        yield client


@pytest.fixture
def client(node: Client, served, thread: str) -> Client:
    node("open", url=f"{served.url}/agui/default", thread=thread)
    return node


def ask(client: Client, run: str, text: str | None = None, **more: Any) -> Any:
    """One run to its end."""
    if text is not None:
        client("say", text=text, message=f"{run}-u")
    client("run", run=run, **more)
    return client("ended")


def went_well(shown: Any) -> None:
    assert (shown["failed"], shown["errors"], shown["rejected"]) == ([], [], None)


def outcome(shown: Any) -> Any:
    (finished,) = shown["finished"]
    return finished["wire"]


def texts(shown: Any, role: str = "assistant") -> list[str]:
    return [message.get("content") for message in shown["messages"] if message["role"] == role]


def test_an_answer_with_reasoning_and_usage(client: Client, thread: str) -> None:
    """SV proof 15.1: text, reasoning and usage arrive; nothing is rejected; the end is a success."""
    shown = ask(client, f"{thread}-1", "think hard")
    went_well(shown)
    assert texts(shown) == ["It is clear."]
    assert texts(shown, "reasoning") == ["Let me see. "]
    assert outcome(shown) in (None, {"type": "success"})
    assert shown["events"].count("RUN_FINISHED") == shown["events"].count("RUN_STARTED") == 1
    if client.version == NEWEST:
        (usage,) = shown["finished"][0]["usage"]
        assert (usage["inputTokens"], usage["outputTokens"]) == (11, 7)


def test_server_tools_one_and_in_parallel(client: Client, thread: str) -> None:
    """SV proof 15.2, fixture 175: text, call, result, text: in legal order, each call with its result."""
    shown = ask(client, f"{thread}-1", "tide please")
    went_well(shown)
    assert [message["role"] for message in shown["messages"] if message["role"] != "reasoning"] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert texts(shown, "tool") == ["3.1 m at Bréhat"]
    assert texts(shown)[-1] == "The answer: 3.1 m at Bréhat"
    shown = ask(client, f"{thread}-2", "both tides")
    went_well(shown)
    calls = [call["id"] for message in shown["messages"] for call in message.get("toolCalls", [])]
    results = [message["toolCallId"] for message in shown["messages"] if message["role"] == "tool"]
    assert len(calls) == 3
    assert calls == results
    assert shown["events"].count("TOOL_CALL_RESULT") == 2


def test_several_turns_are_one_conversation(client: Client, served, thread: str) -> None:
    """SV-100: the client's list and the thread stay the same, message by message, id by id."""
    for number, text in enumerate(("one", "two", "three")):
        shown = ask(client, f"{thread}-{number}", text)
        went_well(shown)
    assert texts(shown) == ["You said one.", "You said two.", "You said three."]
    kept = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").json()["items"]
    assert [message["id"] for message in kept] == [message["id"] for message in shown["messages"]]


def test_a_client_tool_is_run_by_the_client_and_its_result_goes_on(client: Client, thread: str) -> None:
    """SV-91, SV-106, proof 15: a pause for the client; the result continues under a new run id."""
    first = ask(client, f"{thread}-1", "map please", tools=[MAP])
    went_well(first)
    (call,) = [call for message in first["messages"] for call in message.get("toolCalls", [])]
    assert call["function"]["name"] == "show_map"
    assert first["interrupts"] == []
    if client.version != NEWEST:
        assert outcome(first) is None
    client("add", message={"id": "result", "role": "tool", "toolCallId": call["id"], "content": "shown"})
    second = ask(client, f"{thread}-2", tools=[MAP])
    went_well(second)
    assert texts(second)[-1] == "The answer: shown"


@pytest.mark.parametrize("approved", [True, False])
def test_an_interrupt_is_answered_and_goes_on(client: Client, thread: str, approved: bool) -> None:
    """SV-93, SV-103, fixture 179, P286: one RUN_STARTED a segment; the result comes under the original call id."""
    first = ask(client, f"{thread}-1", "buy tea")
    went_well(first)
    (asked,) = outcome(first)["interrupts"]
    assert [one["id"] for one in first["interrupts"]] == [asked["id"]]
    with pytest.raises(AssertionError):  # the client itself refuses to go on without an answer
        went_well(ask(client, f"{thread}-2", "never mind"))
    client("keep", count=len(first["messages"]))
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": {"approved": approved}}
    second = ask(client, f"{thread}-3", resume=[answer])
    went_well(second)
    assert second["events"].count("RUN_STARTED") == 1
    assert second["events"].count("TOOL_CALL_START") == 0
    (result,) = [message for message in second["messages"] if message["role"] == "tool"]
    assert result["toolCallId"] == asked["toolCallId"]
    assert ("bought tea" in result["content"]) is approved
    assert second["interrupts"] == []


def test_edited_arguments_are_what_is_run(client: Client, thread: str) -> None:
    """SV-103: `editedArgs` replaces all arguments."""
    first = ask(client, f"{thread}-1", "buy tea")
    (asked,) = outcome(first)["interrupts"]
    payload = {"approved": True, "editedArgs": {"what": "coffee"}}
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": payload}
    second = ask(client, f"{thread}-2", resume=[answer])
    went_well(second)
    assert texts(second, "tool") == ["bought coffee"]


def test_a_question_is_answered(client: Client, thread: str) -> None:
    """SV-93: an input request is an interrupt with a schema; its payload is the answer."""
    first = ask(client, f"{thread}-1", "ask me")
    (asked,) = outcome(first)["interrupts"]
    answer = {"interruptId": asked["id"], "status": "resolved", "payload": "blue"}
    second = ask(client, f"{thread}-2", resume=[answer])
    went_well(second)
    assert texts(second, "tool") == ["they said blue"]


def test_a_second_client_stops_the_run(client: Client, served, thread: str) -> None:
    """SV-91, P077: cancelled by somebody else: no failed run, one end, the partial text stays, the next send works."""
    client("say", text="hold on", message="u")
    client("run", run=f"{thread}-1")
    client.wait(text="First half.")
    body = {"threadId": thread, "runId": f"{thread}-1"}
    assert httpx2.post(f"{served.url}/agui/default/stop", json=body).json() == {"stopped": True}
    shown = client("ended")
    went_well(shown)
    assert texts(shown) == ["First half. "]
    if client.version == NEWEST:
        assert outcome(shown) == {"type": "cancelled"}
    else:
        assert outcome(shown) is None
    assert texts(ask(client, f"{thread}-2", "next"))[-1] == "You said next."


def test_its_own_stop_closes_the_connection_and_the_run_goes_on(client: Client, served, thread: str) -> None:
    """SV-60, SV-61, fixture 148: a closed connection is no stop; the next run on the thread supersedes the orphan."""
    client("say", text="hold on", message="u")
    client("run", run=f"{thread}-1")
    client.wait(text="First half.")
    client("abort")
    client("ended")
    view = httpx2.get(f"{served.url}/v1/runs/{thread}-1").json()
    assert view["status"] == "running"
    shown = ask(client, f"{thread}-2", "next")
    went_well(shown)
    assert texts(shown)[-1] == "You said next."
    assert httpx2.get(f"{served.url}/v1/runs/{thread}-1").json()["status"] == "cancelled"


@pytest.mark.parametrize(("word", "partial"), [("refused", []), ("broken", ["Half an "])])
def test_an_error_is_told_with_its_cause(client: Client, thread: str, word: str, partial: list[str]) -> None:
    """SV-95, fixture 177, P287, P288: one RUN_ERROR with the cause, before the first token and in mid-answer."""
    shown = ask(client, f"{thread}-1", f"{word} please")
    (error,) = shown["errors"]
    assert "provider" in error["message"]
    assert ("401" if word == "refused" else "500") in error["message"]
    assert texts(shown) == partial
    assert shown["events"].count("RUN_FINISHED") == 0
    assert texts(ask(client, f"{thread}-2", "next"))[-1] == "You said next."


def test_an_undeclared_end_is_an_error_and_not_an_answer(client: Client, thread: str) -> None:
    """Design promise 5: a stream of the model that ends without saying so is not shown as finished."""
    shown = ask(client, f"{thread}-1", "undeclared end")
    assert len(shown["errors"]) == 1
    assert shown["finished"] == []
    assert texts(shown) == ["Half an "]


def test_a_cut_rejects_and_keeps_the_text_and_the_run_goes_on(client: Client, served, thread: str) -> None:
    """SV-56, SV-57, fixture 150: a cut is no clean end; a client that missed the answer goes on, merged by id."""
    with CuttingProxy(served.url, 4) as proxy:
        client("open", url=f"{proxy.url}/agui/default", thread=thread)
        client("say", text="count 8", message="u")
        client("run", run=f"{thread}-1")
        shown = client("ended")
        assert shown["finished"] == []
        assert shown["rejected"] is not None or shown["failed"]
        assert httpx2.get(f"{served.url}/v1/runs/{thread}-1?wait=10").json()["status"] == "completed"
        client("keep", count=1)  # as a page that shows only what it trusts
        shown = ask(client, f"{thread}-2", "next")
        went_well(shown)
    kept = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").json()["items"]
    said = ["".join(part["text"] for part in message["parts"]) for message in kept]
    assert said == ["count 8", "0 1 2 3 4 5 6 7 ", "next", "You said next."]


def test_the_same_post_again_follows_from_the_start(client: Client, thread: str) -> None:
    """SV-72: a client that repeats its request after a cut gets the run once more, and nothing runs twice."""
    first = ask(client, f"{thread}-1", "tide please")
    client("keep", count=1)
    second = ask(client, f"{thread}-1")
    went_well(second)
    assert second["messages"] == first["messages"]


def test_regenerate_and_edit(client: Client, served, thread: str) -> None:
    """SV-101: a list without the answer asks for another; a list with another last message is an edit."""
    ask(client, f"{thread}-1", "one")
    client("keep", count=1)
    again = ask(client, f"{thread}-2")
    went_well(again)
    assert texts(again) == ["You said one."]
    runs = httpx2.get(f"{served.url}/v1/threads/{thread}/runs").json()["items"]
    assert len(runs) == 2
    ask(client, f"{thread}-3", "two")
    client("keep", count=2)
    edited = ask(client, f"{thread}-4", "three")
    went_well(edited)
    assert texts(edited)[-1] == "You said three."
    kept = httpx2.get(f"{served.url}/v1/threads/{thread}/messages").text
    assert "three" in kept
    assert "two" not in kept


@pytest.mark.parametrize(
    ("path", "status"), [("/agui/nobody", 404), ("/agui/default?profile=nonsense", 422), ("/nowhere", 404)]
)
def test_a_refusal_is_a_status_and_no_stream(
    client: Client, served, thread: str, path: str, status: int
) -> None:
    """SV-73: what can be refused is refused before the stream opens."""
    client("open", url=f"{served.url}{path}", thread=thread)
    shown = ask(client, f"{thread}-1", "hi")
    assert str(status) in " ".join(shown["failed"] + [shown["rejected"] or ""])
    assert shown["events"] in ([], ["RUN_ERROR"])
