"""The real llama.cpp server through the Chat Completions provider (issue 4, *Shown by*)."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilothouse.core.assembly import Assembly
from pilothouse.local import LocalServer, find_or_fetch
from pilothouse.local.provider import LocalProvider
from pilothouse.messages import Message, Model, Reasoning, Text
from pilothouse.providers import OpenAIChatProvider
from pilothouse.responses import ModelRequest, ModelSettings, TextDelta

pytestmark = pytest.mark.local_model

PROMPTLY_S = 8.0


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    cache = Path(os.environ.get("PILOTHOUSE_CACHE") or Path(__file__).parents[2] / ".cache" / "pilothouse")
    server = LocalServer(
        find_or_fetch(cache=cache), alias="smol", context=512, slots=2, sampling={"temp": 0.2}
    )
    server.start()
    yield server
    server.close()


def provider_of(server: LocalServer) -> OpenAIChatProvider:
    return OpenAIChatProvider(
        Model(server.model, context_window=server.context_window),
        base_url=server.base_url,
        api_key=server.api_key,
    )


def ask(provider: OpenAIChatProvider, text: str, **settings) -> ModelRequest:
    return ModelRequest(
        provider.default_model, [Message("u", "user", (Text(text),))], settings=ModelSettings(**settings)
    )


async def answer(provider: OpenAIChatProvider, request: ModelRequest) -> Assembly:
    assembly = Assembly("m")
    async for event in provider.stream(request):
        assembly.feed(event)
    return assembly


async def test_an_answer_has_text_figures_and_its_end(server: LocalServer) -> None:
    """Streamed, with usage; a limit is a truncation."""
    async with provider_of(server) as provider:
        got = await answer(provider, ask(provider, "Why is the sky blue?", max_output_tokens=12))
    assert got.message().text.strip()
    assert got.end is not None
    assert got.end.reason in ("length", "complete")
    assert got.usage is not None
    assert got.usage.input
    assert got.usage.output
    assert got.notices == []


async def test_a_stop_frees_the_slot(server: LocalServer) -> None:
    """PV-3: both slots are stopped in mid-answer; the next question is answered at once."""
    async with provider_of(server) as provider:
        for _ in range(3):
            streams = [
                provider.stream(ask(provider, "Tell a long story.", max_output_tokens=400)) for _ in range(2)
            ]
            for stream in streams:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        break
            began = time.monotonic()
            await asyncio.gather(*[stream.aclose() for stream in streams])
            assert (await answer(provider, ask(provider, "Hi", max_output_tokens=2))).visible
            assert time.monotonic() - began < PROMPTLY_S


async def test_answers_come_beside_each_other(server: LocalServer) -> None:
    """Parallel requests over one provider."""
    async with provider_of(server) as provider:
        questions = [ask(provider, f"Count to {number}.", max_output_tokens=8) for number in range(4)]
        got = await asyncio.gather(*[answer(provider, question) for question in questions])
    assert all(one.visible and one.end is not None and one.end.error is None for one in got)


async def test_a_prompt_that_does_not_fit_is_an_overflow(server: LocalServer) -> None:
    """PV-9 in the server's own words."""
    async with provider_of(server) as provider:
        got = await answer(provider, ask(provider, "word " * 2000, max_output_tokens=2))
    assert got.end is not None
    assert got.end.error is not None
    assert got.end.error.kind == "context_overflow"


async def test_a_schema_is_kept_to(server: LocalServer) -> None:
    """Structured output by `response_schema`."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    async with provider_of(server) as provider:
        got = await answer(provider, ask(provider, "A number.", max_output_tokens=40, response_schema=schema))
    assert isinstance(json.loads(got.message().text)["n"], int)


async def test_a_wrong_key_is_an_auth_error(server: LocalServer) -> None:
    """PV-9."""
    async with OpenAIChatProvider(server.model, base_url=server.base_url, api_key="wrong") as provider:
        got = await answer(provider, ask(provider, "Hi"))
    assert got.end is not None
    assert got.end.error is not None
    assert got.end.error.kind == "auth"


async def test_the_local_provider_speaks_as_its_server_wants() -> None:
    """One tag throughout, so that reasoning goes back; turns that do not alternate and late system words are taken."""
    cache = Path(os.environ.get("PILOTHOUSE_CACHE") or Path(__file__).parents[2] / ".cache" / "pilothouse")
    async with LocalProvider(f"local:{find_or_fetch(cache=cache)}") as provider:
        inner = await provider.start()
        assert provider.tag == inner.tag == inner.profile.tag == "local"
        assert provider.wire_rules == inner.wire_rules
        messages = [
            Message("u1", "user", (Text("Hi."),)),
            Message("u2", "user", (Text("Are you there?"),)),
            Message("a1", "assistant", (Reasoning("They ask.", None, "local"), Text("Yes."))),
            Message("s", "system", (Text("Be brief."),)),
            Message("u3", "user", (Text("Good."),)),
        ]
        request = ModelRequest(
            provider.default_model,
            messages,
            "You are kind.",
            settings=ModelSettings(max_output_tokens=4),
        )
        sent = inner.body(request)["messages"]
        assert [one["role"] for one in sent] == ["system", "user", "assistant", "user"]
        assert sent[2]["reasoning_content"] == "They ask."
        assembly = Assembly("m", tag=provider.tag)
        async for event in provider.stream(request):
            assembly.feed(event)
    assert assembly.end is not None
    assert assembly.end.reason in ("length", "complete")
    assert assembly.visible
