"""`python -m benchmarks.wire`: decoding of each dialect beside `json.loads` and the official SDKs, in one run.

The same bytes for all: a text of 2,000 pieces, in reads of 4 KiB. `json.loads` reads the data lines only; an SDK reads
the body through its own client with a transport in memory, and its events are consumed. Best of several rounds.
"""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2

from pilothouse.core.assembly import Assembly
from pilothouse.providers.decode import decoder_for

PIECES = 2000
READ = 4096
ROUNDS = 7


def frame(data: object, event: str = "") -> bytes:
    line = f"data: {json.dumps(data, separators=(',', ':'))}\n\n"
    return (f"event: {event}\n{line}" if event else line).encode()


def openai_chat() -> list[bytes]:
    def chunk(delta: dict, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1750000000, "model": "m"}
        return frame({**head, "choices": [choice]})

    return [
        *[chunk({"content": f" token{at}"}) for at in range(PIECES)],
        chunk({}, "stop"),
        b"data: [DONE]\n\n",
    ]


def openai_responses() -> list[bytes]:
    response = {"id": "r", "object": "response", "created_at": 1, "model": "m", "output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}  # fmt: skip
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "logprobs": []}
    kind = "response.output_text.delta"
    pieces = [
        frame({"type": kind, "sequence_number": at, "delta": f" token{at}", **where}, kind)
        for at in range(PIECES)
    ]
    end = frame(
        {"type": "response.completed", "sequence_number": PIECES, "response": response}, "response.completed"
    )
    return [*pieces, end]


def anthropic() -> list[bytes]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 4, "output_tokens": 1}}  # fmt: skip
    kind = "content_block_delta"
    pieces = [
        frame({"type": kind, "index": 0, "delta": {"type": "text_delta", "text": f" token{at}"}}, kind)
        for at in range(PIECES)
    ]
    return [
        frame({"type": "message_start", "message": message}, "message_start"),
        frame({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}, "content_block_start"),
        *pieces,
        frame({"type": "content_block_stop", "index": 0}, "content_block_stop"),
        frame({"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 9}}, "message_delta"),
        frame({"type": "message_stop"}, "message_stop"),
    ]  # fmt: skip


def gemini() -> list[bytes]:
    usage = {"promptTokenCount": 40, "candidatesTokenCount": 9, "totalTokenCount": 49}

    def chunk(text: str, **more: str) -> bytes:
        candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0, **more}
        return frame(
            {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}
        )

    return [*[chunk(f" token{at}") for at in range(PIECES)], chunk("", finishReason="STOP")]


class _Body(httpx2.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self.body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for at in range(0, len(self.body), READ):
            yield self.body[at : at + READ]


def client_over(body: bytes) -> httpx2.AsyncClient:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=_Body(body))

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


async def sdk_openai_chat(body: bytes) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key="k", http_client=client_over(body))
    async for _ in await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}], stream=True
    ):
        pass


async def sdk_openai_responses(body: bytes) -> None:
    import openai

    client = openai.AsyncOpenAI(api_key="k", http_client=client_over(body))
    async for _ in await client.responses.create(model="m", input="x", stream=True):
        pass


async def sdk_anthropic(body: bytes) -> None:
    import anthropic

    client = anthropic.AsyncAnthropic(api_key="k", http_client=client_over(body))
    message = {"role": "user", "content": "x"}
    async for _ in await client.messages.create(model="m", max_tokens=9, messages=[message], stream=True):
        pass


async def sdk_gemini(body: bytes) -> None:
    from google import genai

    options = genai.types.HttpOptions(httpx_async_client=client_over(body))
    client = genai.Client(api_key="k", http_options=options)
    async for _ in await client.aio.models.generate_content_stream(model="m", contents="x"):
        pass


BODIES = {
    "openai-chat": openai_chat,
    "openai-responses": openai_responses,
    "anthropic": anthropic,
    "gemini": gemini,
}
SDKS: dict[str, Callable[[bytes], Awaitable[None]]] = {
    "openai-chat": sdk_openai_chat,
    "openai-responses": sdk_openai_responses,
    "anthropic": sdk_anthropic,
    "gemini": sdk_gemini,
}


async def ours(dialect: str, body: bytes) -> None:
    decoder, assembly = decoder_for(dialect), Assembly("m")
    for at in range(0, len(body), READ):
        for event in decoder.feed(body[at : at + READ]):
            assembly.feed(event)
    assert len(assembly.message().text) > PIECES


async def loads(datas: list[bytes]) -> None:
    for data in datas:
        json.loads(data)


async def best(run: Callable[[], Awaitable[None]]) -> float:
    """Microseconds a piece."""
    took = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        await run()
        took.append(time.perf_counter() - begin)
    return min(took) / PIECES * 1e6


async def main() -> None:
    print(f"CPython {platform.python_version()}, {platform.machine()}; µs a chunk, budget 5\n")
    print("| dialect | ours, to the message | json.loads | ratio | official SDK | times faster |")
    print("|---|---:|---:|---:|---:|---:|")
    for dialect, make in BODIES.items():
        frames = make()
        body = b"".join(frames)
        datas = [item[item.index(b"data: ") + 6 : -2] for item in frames if b"[DONE]" not in item]
        mine = await best(lambda dialect=dialect, body=body: ours(dialect, body))
        base = await best(lambda datas=datas: loads(datas))
        theirs = await best(lambda dialect=dialect, body=body: SDKS[dialect](body))
        print(
            f"| {dialect} | {mine:.2f} | {base:.2f} | {mine / base:.2f} | {theirs:.1f} | {theirs / mine:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    asyncio.run(main())
