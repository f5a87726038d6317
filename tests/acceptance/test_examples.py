"""The examples that wire a conversation to an interface: a script, Textual, FastAPI with SSE; all without a key."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asgikit import Connection, ask
from pilothouse.conversation.controller import AgentController
from pilothouse.testing.scripted import Hold, ScriptedProvider, failure

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An example as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names: list[str] = []

    def import_it(name: str) -> Any:
        names.append(name)
        return importlib.import_module(name)

    yield import_it
    for name in names:
        sys.modules.pop(name, None)


def test_the_script_runs_as_it_stands() -> None:
    """A plain script: what it prints."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "callbacks.py"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "you: Hello there\n" in done.stdout
    assert "You said: Hello there" in done.stdout
    assert done.stdout.count("[sending]") == 3
    assert done.stdout.count("[complete]") == 2
    assert done.stdout.rstrip().endswith("stopped after: You said: Tell me something")
    assert done.stderr == ""


async def test_the_callbacks_draw_finished_messages_and_one_live_item(load: Any) -> None:
    """Proof of the seed's wiring: states by name, pieces as they come."""
    screen = await load("callbacks").main(("one",))
    assert screen.lines[:4] == ["[sending]\n", "you: one\n", "[streaming]\n", "You "]
    assert screen.lines.count("[idle]\n") == 1


async def test_textual_sends_streams_stops_and_retries(load: Any) -> None:
    """The app in its own test driver: composer, live item, stop, error, retry, new conversation."""
    chat = load("textual_chat")
    holds = [Hold(), Hold()]
    provider = ScriptedProvider(
        ["Hel", holds[0], "lo"], ["half", holds[1]], failure("auth", "no key"), "again"
    )
    app = chat.Chat(AgentController(provider, max_message_length=20))
    async with app.run_test() as pilot:
        agent = app.agent
        composer = app.query_one("#composer")

        async def say(text: str) -> None:
            composer.value = text
            await pilot.press("enter")
            await pilot.pause()

        await say("hi")
        await holds[0].reached()
        await pilot.pause()
        assert (agent.state.value, agent.current_response_text) == ("streaming", "Hel")
        holds[0].release()
        await agent.reply.wait()
        await pilot.pause()
        assert len(app.query("#messages > *")) == 2

        await say("stop me")
        await holds[1].reached()
        await pilot.press("escape")
        assert (agent.state.value, agent.partial.text) == ("idle", "half")

        await say("fail")
        await pilot.pause()
        assert agent.state.value == "error"
        await pilot.press("ctrl+r")
        for _ in range(100):
            await pilot.pause()
            if agent.state.value == "complete":
                break
        assert agent.messages[-1].text == "again"

        await say("much too long for the limit of twenty")
        await pilot.pause()
        assert composer.value == "much too long for the limit of twenty"
        await pilot.press("ctrl+n")
        await pilot.pause()
        assert len(app.query("#messages > *")) == 0
        assert agent.messages == ()


async def test_a_fastapi_page_follows_by_sse(load: Any) -> None:
    """The page, its events, sends, refusals and stops over ASGI."""
    page = load("sse_page")
    hold = Hold()
    page.tabs["c"] = page.Tab(ScriptedProvider(["Hel", hold, "lo"], failure("auth", "no key"), "again"))
    async with page.lifespan(page.app):
        assert b"EventSource" in (await ask(page.app, "GET", "/")).body
        async with Connection(page.app, "GET", "/chats/c/events") as events:
            await events.started()

            def last() -> dict[str, Any]:
                return json.loads(events.frames[-1].data)

            async def until(state: str) -> dict[str, Any]:
                await events.until(lambda: events.frames and last()["state"] == state)
                return last()

            assert (await until("idle"))["messages"] == []
            assert (await ask(page.app, "POST", "/chats/c/send", raw=b"hi")).status == 202
            await events.until(lambda: last()["text"] == "Hel")
            assert (await ask(page.app, "POST", "/chats/c/send", raw=b"more")).status == 409
            hold.release()
            view = await until("complete")
            assert [message["parts"][0]["text"] for message in view["messages"]] == ["hi", "Hello"]
            await ask(page.app, "POST", "/chats/c/send", raw=b"fail")
            assert (await until("error"))["error"] == "ProviderError: no key"
            assert (await ask(page.app, "POST", "/chats/c/retry")).status == 202
            await until("complete")
            assert (await ask(page.app, "POST", "/chats/c/nonsense")).status == 404
            assert (await ask(page.app, "POST", "/chats/c/abort")).json() == {"state": "complete"}
        assert events.headers["content-type"].startswith("text/event-stream")
    assert page.tabs == {}
    await asyncio.sleep(0)
