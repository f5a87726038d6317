"""Any Pydantic AI model as a provider (issue 4, item 6): its events, ends, errors and stops become ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pilothouse.contracts import Provider
from pilothouse.core.assembly import Assembly
from pilothouse.errors import ConfigError
from pilothouse.messages import Image, Message, Model, Reasoning, Text, ToolCall, ToolSpec
from pilothouse.providers.decode import summary
from pilothouse.providers.pydantic_ai import PydanticAIProvider
from pilothouse.providers.resolve import provider
from pilothouse.responses import ModelRequest, ModelSettings, ResponseStarted, StreamEnd
from pilothouse.testing import Replay, ReplayServer
from wirekit import WireCase, wire_cases

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

HI = (Message("u", "user", (Text("hi"),)),)


def function_model(*pieces):
    from pydantic_ai.models.function import FunctionModel

    seen: list = []

    async def play(messages, info):
        seen.append((messages, info))
        for piece in pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    return FunctionModel(stream_function=play), seen


async def read(provider: PydanticAIProvider, request: ModelRequest | None = None) -> tuple[list, Assembly]:
    assembly = Assembly("m1", tag=provider.tag)
    events = [event async for event in provider.stream(request or ModelRequest(provider.default_model, HI))]
    for event in events:
        assembly.feed(event)
    assert [type(event) for event in events].count(StreamEnd) == 1
    return events, assembly


async def test_text_thoughts_and_calls_become_ours() -> None:
    """Pieces in order, arguments joined, ids kept; calls decide over the end."""
    from pydantic_ai.models.function import DeltaThinkingPart, DeltaToolCall

    model, _ = function_model(
        {0: DeltaThinkingPart(content="hm", signature="sig")},
        "Hel",
        "lo",
        {1: DeltaToolCall(name="f", json_args='{"x":', tool_call_id="c1")},
        {1: DeltaToolCall(json_args="1}")},
    )
    bridge = PydanticAIProvider(model)
    assert isinstance(bridge, Provider)
    events, assembly = await read(bridge)
    assert isinstance(events[0], ResponseStarted)
    message = assembly.message()
    assert (message.text, message.reasoning, assembly.end.reason) == ("Hello", "hm", "tool_calls")
    assert [(call.call_id, call.tool, call.arguments) for call in message.tool_calls] == [
        ("c1", "f", {"x": 1})
    ]
    assert assembly.usage is not None


async def test_a_conversation_goes_over_whole() -> None:
    """System prompt, text, media, calls and their results, settings and tools; foreign thoughts stay behind."""
    model, seen = function_model("ok")
    bridge = PydanticAIProvider(model)
    messages = [
        *HI,
        Message("a", "assistant", (Reasoning("x", {"signature": "s"}, "anthropic"), Reasoning("y", {"signature": "s2", "provider_name": "p"}, bridge.tag), Text("calling"), ToolCall("c1", "f", {"x": 1}))),
        Message("r", "tool", (Text("done"),), call_id="c1"),
        Message("v", "user", (Text("look"), Image("image/png", data=b"png"))),
    ]  # fmt: skip
    request = ModelRequest(
        Model("m"),
        messages,
        "Be brief.",
        [ToolSpec("f", "d", {"type": "object"})],
        ModelSettings(temperature=0.5),
    )
    _, assembly = await read(bridge, request)
    assert assembly.end == StreamEnd("complete")
    sent, info = seen[0]
    kinds = [[part.part_kind for part in message.parts] for message in sent]
    assert kinds == [
        ["system-prompt", "user-prompt"],
        ["thinking", "text", "tool-call"],
        ["tool-return", "user-prompt"],
    ]
    assert sent[2].parts[0].tool_name == "f"
    assert sent[2].parts[1].content[1].data == b"png"
    assert (info.function_tools[0].name, info.model_settings) == ("f", {"temperature": 0.5})


@pytest.mark.parametrize("case", [case for case in wire_cases("openai-chat") if case.id[:3] in ("013", "017", "020", "032")], ids=lambda case: case.id)  # fmt: skip
async def test_a_real_model_of_theirs_over_the_wire(case: WireCase) -> None:
    """Their OpenAI model on our replay server: finished, filtered, and a silent end that stays unknown."""
    async with ReplayServer(Replay(chunks=case.chunks)) as server, openai_bridge(server.url) as bridge:
        _, assembly = await read(bridge)
    got = summary(case.dialect, assembly)
    assert (got["terminal"], got["text"]) == (case.expect["terminal"], case.expect["text"])
    assert [call["name"] for call in got["tool_calls"]] == [
        call["name"] for call in case.expect["tool_calls"]
    ]


@asynccontextmanager
async def openai_bridge(url: str) -> AsyncIterator[PydanticAIProvider]:
    import openai
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
        yield PydanticAIProvider(OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client)))


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, b'{"error":{"message":"slow down","code":"rate_limit_exceeded"}}', "rate_limit"),
        (401, b'{"error":{"message":"no"}}', "auth"),
        (400, b'{"error":{"message":"maximum context length is 5 tokens","code":"context_length_exceeded"}}', "context_overflow"),
        (503, b"{}", "overloaded"),
    ],
)  # fmt: skip
async def test_their_errors_have_our_kinds(status: int, body: bytes, kind: str) -> None:
    """PV-9 by status and body where the exception has them."""
    replay = Replay(chunks=body, status=status, content_type="application/json")
    async with ReplayServer(replay) as server, openai_bridge(server.url) as bridge:
        _, assembly = await read(bridge)
    assert assembly.end.error.kind == kind


async def test_no_answer_and_strange_exceptions_are_ends_too() -> None:
    """PV-1: nothing is raised."""
    async with ReplayServer() as server:
        url = server.url
    async with openai_bridge(url) as bridge:
        _, assembly = await read(bridge)
    assert assembly.end.error.kind == "transport"
    model, _ = function_model("par", RuntimeError("boom"))
    _, assembly = await read(PydanticAIProvider(model))
    assert (assembly.end.error.kind, assembly.message().text) == ("provider", "par")


async def test_leaving_closes_their_connection() -> None:
    """PV-3."""
    chunk = b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    async with (
        ReplayServer(Replay(chunks=[chunk], end="held-open")) as server,
        openai_bridge(server.url) as bridge,
    ):
        stream = bridge.stream(ModelRequest(bridge.default_model, HI))
        await anext(stream)
        await anext(stream)
        await stream.aclose()
        await server.until(lambda server: server.busy == 0)


def test_names_are_resolved_by_pydantic_ai() -> None:
    """`pydantic-ai:NAME` for whatever it knows; what it does not is one line."""
    assert provider("pydantic-ai:test").tag == "pydantic-ai/test"
    with pytest.raises(ConfigError, match="nonsense"):
        provider("pydantic-ai:nonsense:x")
