"""Under another ASGI server, over HTTP/1.1 and HTTP/2 (SV-57, SV-242)."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from hypercorn.asyncio import serve
from hypercorn.config import Config
from test_server_http import events_of, read_until

from asgikit import run_input, served
from pilothouse.server.app import Server
from pilothouse.testing.scripted import Hold, ScriptedProvider

both = pytest.mark.parametrize("http2", [False, True], ids=["http1", "http2"])


@asynccontextmanager
async def running(app: Server, *, http2: bool) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of hypercorn on a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = logging.getLogger("hypercorn.test")
    config.graceful_timeout = 1.0
    over = asyncio.Event()
    serving = asyncio.create_task(serve(app, config, shutdown_trigger=over.wait))  # type: ignore[arg-type]
    client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, http1=not http2, http2=http2)
    async with client:
        while True:
            try:
                await client.get("/healthz")
                break
            except httpx2.ConnectError:
                await asyncio.sleep(0)
        try:
            yield client
        finally:
            over.set()
    await serving


@both
async def test_a_stream_ends_cleanly_and_a_cut_breaks_off(http2: bool) -> None:
    """SV-56, SV-57: whatever the server and the protocol, half an answer is not taken for a whole one."""
    app = served(ScriptedProvider("done", ["half ", Hold()]))
    async with running(app, http2=http2) as client:
        answer = await client.post("/agui/default", json=run_input("t1", "r1", "hi"))
        assert answer.http_version == ("HTTP/2" if http2 else "HTTP/1.1")
        assert events_of(answer.text.splitlines())[-1]["type"] == "RUN_FINISHED"
        seen: list[str] = []
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("POST", "/agui/default", json=run_input("t2", "r2", "hi")) as stream:
                lines = stream.aiter_lines()
                seen += await read_until(lines, '"delta":"half "')
                app.registry.cut_all("max_duration")
                async for line in lines:
                    seen.append(line)
        assert events_of(seen)[-1]["name"] == "pilothouse.cut"
        assert (await client.get("/v1/runs/r2")).json()["status"] == "running"


async def test_a_closed_tab_leaves_the_run() -> None:
    """SV-60. Over HTTP/1.1: this client resets no stream of HTTP/2."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"]))
    async with running(app, http2=False) as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            await read_until(stream.aiter_lines(), '"delta":"a"')
        await app.registry.wait_empty()
        hold.release()
        assert (await client.get("/v1/runs/r1?wait=10")).json()["status"] == "completed"


@both
async def test_many_streams_share_a_connection(http2: bool) -> None:
    """SV-242: six is the limit of a browser for HTTP/1.1; over HTTP/2 there is none that matters."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"]))
    async with running(app, http2=http2) as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            lines = stream.aiter_lines()
            await read_until(lines, '"delta":"a"')

            async def follow() -> str:
                return (await client.get("/agui?runId=r1&offset=-1")).text

            reading = [asyncio.create_task(follow()) for _ in range(20)]
            while app.registry.followers("r1") < 21:
                await asyncio.sleep(0)
            hold.release()
            rest = [line async for line in lines]
            assert events_of(rest)[-1]["type"] == "RUN_FINISHED"
            assert all("RUN_FINISHED" in text for text in await asyncio.gather(*reading))
