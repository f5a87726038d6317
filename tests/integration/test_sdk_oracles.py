"""The official SDKs read the bodies that our replay server serves just as we do: same text, calls and figures.

Only well-formed bodies: what compatible servers bend is what the SDKs stumble over.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from dialects import BY_NAME
from pilothouse.core.assembly import Assembly
from pilothouse.messages import Message, Model, Text, Usage
from pilothouse.responses import ModelRequest
from pilothouse.testing import Replay, ReplayServer
from wirekit import WireCase, wire_cases

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

CHAT = ("008", "011", "013", "020", "023", "030", "032", "035", "040", "041", "042")
ANTHROPIC = ("054", "058", "061", "062")
RESPONSES = ("080", "081", "087")
GEMINI = ("070", "072", "076")

Result = tuple[str, list[tuple[str, Any]], dict[str, int | None]]


def cases(dialect: str, numbers: tuple[str, ...]) -> list[WireCase]:
    found = [case for case in wire_cases(dialect) if case.id[:3] in numbers]
    assert len(found) == len(numbers)
    return found


def arguments(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except ValueError:
        return text


async def ours(case: WireCase) -> Result:
    async with ReplayServer(Replay(chunks=case.chunks)) as server:
        provider = BY_NAME[case.dialect].provider("m", base_url=server.url)
        assembly = Assembly("m1")
        async for event in provider.stream(ModelRequest(Model("m"), [Message("u", "user", (Text("hi"),))])):
            assembly.feed(event)
        await provider.aclose()
    message, usage = assembly.message(), assembly.usage or Usage()
    calls = [(one.tool, one.raw_arguments if one.args_error else one.arguments) for one in message.tool_calls]
    return message.text, calls, {"input": usage.input, "output": usage.output, "cached": usage.cache_read}


@pytest.mark.parametrize("case", cases("openai-chat", CHAT), ids=lambda case: case.id)
async def test_openai_chat(case: WireCase) -> None:
    """`openai`, chat completions: its chunks, joined as its documentation says."""
    import openai

    text, calls, usage = "", {}, {"input": None, "output": None, "cached": None}
    async with (
        ReplayServer(Replay(chunks=case.chunks)) as server,
        openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        stream = await client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.usage:
                details = chunk.usage.prompt_tokens_details
                cached = details.cached_tokens if details else None
                usage = {
                    "input": chunk.usage.prompt_tokens,
                    "output": chunk.usage.completion_tokens,
                    "cached": cached,
                }
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, ["", ""])
                    call[0] += piece.function.name or ""
                    call[1] += piece.function.arguments or ""
    theirs = (text, [(name, arguments(raw)) for name, raw in calls.values()], usage)
    assert await ours(case) == theirs


@pytest.mark.parametrize("case", cases("openai-responses", RESPONSES), ids=lambda case: case.id)
async def test_openai_responses(case: WireCase) -> None:
    """`openai`, Responses: the final response as its SDK builds it."""
    import openai

    final: Any = None
    async with (
        ReplayServer(Replay(chunks=case.chunks)) as server,
        openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client,
    ):
        async for event in await client.responses.create(model="m", input="hi", stream=True):
            final = getattr(event, "response", final)
    calls = [(item.name, arguments(item.arguments)) for item in final.output if item.type == "function_call"]
    usage = final.usage
    figures = {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached": usage.input_tokens_details.cached_tokens,
    }
    assert await ours(case) == (final.output_text, calls, figures)


@pytest.mark.parametrize("case", cases("anthropic", ANTHROPIC), ids=lambda case: case.id)
async def test_anthropic(case: WireCase) -> None:
    """`anthropic`: the message that its stream helper accumulates; input without cached tokens there."""
    import anthropic

    async with (
        ReplayServer(Replay(chunks=case.chunks)) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
        client.messages.stream(
            model="m", max_tokens=10, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        final = await stream.get_final_message()
    text = "".join(block.text for block in final.content if block.type == "text")
    calls = [(block.name, block.input) for block in final.content if block.type == "tool_use"]
    usage = final.usage
    cached = usage.cache_read_input_tokens
    whole = usage.input_tokens + (cached or 0) + (usage.cache_creation_input_tokens or 0)
    assert await ours(case) == (
        text,
        calls,
        {"input": whole, "output": usage.output_tokens, "cached": cached},
    )


@pytest.mark.parametrize("case", cases("gemini", GEMINI), ids=lambda case: case.id)
async def test_gemini(case: WireCase) -> None:
    """`google-genai`: its chunks; output there is without the thoughts."""
    from google import genai

    text, calls, usage = "", [], None
    async with ReplayServer(Replay(chunks=case.chunks)) as server:
        client = genai.Client(api_key="k", http_options={"base_url": server.url})
        async for chunk in await client.aio.models.generate_content_stream(model="m", contents="hi"):
            usage = chunk.usage_metadata or usage
            for candidate in chunk.candidates or []:
                for part in (candidate.content.parts if candidate.content else None) or []:
                    if part.function_call:
                        calls.append((part.function_call.name, dict(part.function_call.args or {})))
                    elif part.text and not part.thought:
                        text += part.text
        await client.aio.aclose()
        client.close()
    assert usage is not None
    output = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    figures = {
        "input": usage.prompt_token_count,
        "output": output,
        "cached": usage.cached_content_token_count,
    }
    assert await ours(case) == (text, calls, figures)
