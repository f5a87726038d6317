"""Who comes from another library and guesses a name is told the way here: the error itself says what to write."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from pilothouse import (
    AgentController,
    AgentLoop,
    Limits,
    LocalAgent,
    LoopConfig,
    MemoryJournal,
    RunController,
    UsageError,
    tool,
)
from pilothouse.controllers import MCPController
from pilothouse.errors import ConfigError, ReplyFailed, ReplyIncomplete, ToolDefinitionError
from pilothouse.server import HostUser, Server
from pilothouse.server.settings import CORS
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import call


class Port(BaseModel):
    name: str


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("instructions", "say system_prompt=…;"),
        ("output_type", "say AgentController(AgentLoop(provider, output_type=…));"),
        ("response_format", "say AgentController(AgentLoop(provider, output_type=…));"),
        ("deps", "say AgentController(AgentLoop(provider, deps=…));"),
        ("limits", "say config=LoopConfig(limits=…);"),
        ("max_turns", "say config=LoopConfig(limits=Limits(turns=…));"),
        ("temperature", "say params={'temperature': …};"),
        ("max_tokens", "say params={'max_output_tokens': …};"),
        ("session_id", "say thread_id=…;"),
        ("checkpointer", "say journal=SQLiteJournal(path);"),
        ("mcp_servers", "say controllers=[MCPController(…)];"),
        ("timeout", "say reply_timeout=…"),
        ("thread_ids", "did you mean 'thread_id'?"),
        ("quite_something_else", "valid names: model, params"),
    ],
)
def test_an_option_that_stands_elsewhere(name: str, said: str) -> None:
    """AC-163: where it is said instead, before the list of what there is."""
    with pytest.raises(ConfigError) as caught:
        AgentController(ScriptedProvider(), **{name: None})
    assert said in str(caught.value)


def test_a_provider_that_is_something_else() -> None:
    """AC-104: another library's object is named in full, and how it is wrapped."""
    with pytest.raises(
        TypeError, match=r"got PosixPath of pathlib.*; another library's agent goes into an async generator"
    ):
        AgentController(Path())
    with pytest.raises(TypeError, match=r"got str; for a model by its name: pilothouse\.provider\('gpt'\)$"):
        AgentController("gpt")
    with pytest.raises(TypeError, match=r"got NoneType$"):
        AgentController(None)


def test_an_agent_among_the_tools() -> None:
    """AgentLoop §tools: the way to make one of an agent is named."""
    with pytest.raises(ToolDefinitionError, match=r"agent_tool\(agent, name=…, description=…\)"):
        AgentController(ScriptedProvider(), tools=[AgentLoop(ScriptedProvider())])
    with pytest.raises(ToolDefinitionError, match=r"@tool\(name=…\)"):
        tool("name")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("needs_approval", "did you mean 'approval'?"),
        ("time_out", "did you mean 'timeout'?"),
        ("x", "there are effect"),
    ],
)
def test_an_option_of_a_tool_that_there_is_not(option: str, said: str) -> None:
    """AgentLoop §tools: what there is instead."""
    with pytest.raises(ToolDefinitionError) as caught:
        tool(lambda: "fog", name="look", **{option: True})  # type: ignore[call-overload]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("content", "attachments", "said"),
    [
        ("see", [Path("a.png")], "Attachment.from_path(it)"),
        ("see", [b"png"], "Attachment(data=it, mime_type=…)"),
        ("see", ["https://example.org/a.png"], "Attachment(url=it, mime_type=…)"),
        (["see"], [], "Text(it)"),
    ],
)
async def test_what_is_sent_along_in_another_form(
    content: object, attachments: list[object], said: str
) -> None:
    """AC-115: how a part is made of it."""
    async with AgentController(ScriptedProvider()) as agent:
        with pytest.raises(TypeError) as caught:
            await agent.send(content, attachments)  # type: ignore[arg-type]
        assert said in str(caught.value)
        with pytest.raises(ConfigError, match=r"await reply\.run\.steer\(text\)"):
            await agent.send("see", when_busy="steer")  # type: ignore[arg-type]


@pytest.mark.parametrize("server", ["server.py", "localhost:8000/mcp", ["python", "server.py"], 5, None])
def test_an_mcp_server_that_is_none(server: object) -> None:
    """MC-3: refused where it is written, not when a send first needs it."""
    with pytest.raises(ConfigError, match=r"StdioServerParameters\(command=…, args=\[…\]\)"):
        MCPController(server, namespace="t")  # type: ignore[arg-type]


async def test_a_script_that_is_too_short_says_so() -> None:
    """The send fails with the reason that a test's author needs, not with a fault of an adapter."""
    look = tool(lambda: "fog", name="look", description="Looks.", effect="read")
    async with AgentController(ScriptedProvider([call("look")]), tools=[look]) as agent:
        reply = await agent.send("Weather?")
        with pytest.raises(ReplyFailed, match="request 2 has no script after the 1 written; add one"):
            await reply.result()


async def test_an_answer_that_never_fits_says_so() -> None:
    """Loop §output: not only the name of the limit."""
    loop = AgentLoop(
        ScriptedProvider("no", "still no"), output_type=Port, config=LoopConfig(output_retries=1)
    )
    async with AgentController(loop) as agent:
        reply = await agent.send("A port?")
        with pytest.raises(ReplyIncomplete, match="no answer was of the wanted type"):
            await reply.output(Port)
        assert reply.messages[-1].text == "still no"


async def test_a_mounted_server_that_nobody_started_says_where_to(caplog: pytest.LogCaptureFixture) -> None:
    """SV-2: a mounted application's lifespan is not entered by the one that mounts it."""
    app = Server({"default": AgentController(ScriptedProvider())}, journal=MemoryJournal())

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(message: object) -> None:
        pass

    scope = {"type": "http", "method": "GET", "path": "/healthz", "headers": [], "query_string": b""}
    with caplog.at_level(logging.WARNING):
        await app({**scope, "client": ("127.0.0.1", 1), "scheme": "http"}, receive, send)
    assert "enter its lifespan() in that of the application" in caplog.text
    await app.drain(0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"agents": AgentController(ScriptedProvider())},
            'agents must be a mapping, such as {"default": agent}',
        ),
        ({"agents": {"d": ScriptedProvider()}}, "agents['d'] must be an AgentController"),
        ({"journal": "chat.db"}, 'for example SQLiteJournal("chat.db")'),
        ({"auth": "secret"}, "auth must be an authenticator"),
        ({"cors": ["https://page.example"]}, "cors must be CORS(…), got list"),
        ({"limits": {"body": 3}}, "limits must be ServerLimits(…), got dict"),
        ({"allowed_hosts": "pi.local"}, "allowed_hosts must be a list of texts, got one: ['pi.local']"),
        (
            {"trusted_proxies": "10.0.0.0/8"},
            "trusted_proxies must be a list of texts, got one: ['10.0.0.0/8']",
        ),
        ({"faces": "page"}, "faces must be a list of texts, got one: ['page']"),
        ({"faces": ["web"]}, "there is no face 'web'; there are agui"),
        ({"on_disconnect": "stop"}, "on_disconnect is continue, cancel or CancelAfter(seconds), not 'stop'"),
        ({"on_disconnect": {"agui": "stop"}}, "on_disconnect is continue, cancel or CancelAfter"),
        ({"when_busy": "wait"}, "when_busy is raise or steer or queue"),
        ({"auto_recover": True}, "auto_recover is never or on_command or on_open, not True"),
        ({"error_detail": "all"}, "error_detail is safe or full, not 'all'"),
        ({"drain_timeout": "5"}, "drain_timeout must be a number of seconds, got '5'"),
    ],
)
def test_a_server_that_is_told_what_it_cannot_be(options: dict[str, object], said: str) -> None:
    """SV-1: in the constructor; a policy that nobody knows is not taken for another one."""
    usual = {"agents": {"d": AgentController(ScriptedProvider())}, "journal": MemoryJournal()}
    with pytest.raises(ConfigError) as caught:
        Server(**{**usual, **options})  # type: ignore[arg-type]
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "origins",
    ["https://page.example", "*", ("https://page.example/",), ("page.example",), ("https://Page.example",)],
)
def test_an_origin_that_no_page_has(origins: object) -> None:
    """SV-240: one text is not a list of its parts, and what never matches is told."""
    with pytest.raises((TypeError, ValueError), match=r"CORS origins are a list|an origin is scheme://host"):
        CORS(origins)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="list of texts"):
        HostUser("https://page.example")


def test_an_origin_in_a_list_of_any_kind() -> None:
    """SV-240: a list counts as the tuple that it should be."""
    assert CORS(["*"]).allows("https://page.example")  # type: ignore[arg-type]
    assert CORS(["https://page.example:8443"]).allows("https://page.example:8443")  # type: ignore[arg-type]
    assert not CORS(("https://page.example",)).allows("https://page.example.org")


def test_one_thing_where_a_list_is_wanted() -> None:
    """AC-163: a tool, a controller; and an agent in an interface's place."""

    def look() -> str:
        """Looks."""
        return "fog"

    with pytest.raises(ConfigError, match=r"tools must be a list, got look alone: tools=\[look\]"):
        AgentController(ScriptedProvider(), tools=look)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"controllers must be a list, got MCPController alone"):
        AgentController(ScriptedProvider(), controllers=MCPController)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="LocalAgent holds an AgentController, got ScriptedProvider"):
        LocalAgent(ScriptedProvider())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AgentLoop("openai:gpt"), "got str: pilothouse.provider('openai:gpt')"),
        (
            lambda: AgentLoop({"openai": "gpt"}),
            "a loop needs a Provider (tag, default_model, stream, aclose), got str",
        ),
        (lambda: AgentLoop(ScriptedProvider(), config=Limits()), "config must be a LoopConfig, got Limits"),
        (
            lambda: AgentLoop(ScriptedProvider(), output_type={"type": "object"}),
            "output_type must be a type that",
        ),
        (lambda: RunController(ScriptedProvider()), "got ScriptedProvider: AgentLoop(it)"),
        (lambda: RunController("runs"), "a RunController drives a Runtime (describe, run), got str"),
    ],
)
def test_a_loop_or_a_host_of_runs_over_something_else(make: Callable[[], object], said: str) -> None:
    """AC-164: in the constructor, in words."""
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)
