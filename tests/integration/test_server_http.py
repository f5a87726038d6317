"""The server under a real uvicorn on loopback: cuts, leaving, signals (SV-56, SV-57, SV-221, SV-223)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from pathlib import Path

import httpx2
import pytest

from asgikit import run_input, served
from pilothouse.conversation.controller import AgentController
from pilothouse.journal.sqlite import SQLiteJournal
from pilothouse.server import connection
from pilothouse.server.app import Server
from pilothouse.server.run import serve_forever
from pilothouse.server.settings import StreamOptions
from pilothouse.testing.scripted import Hold, ScriptedProvider


class Running:
    """A server on a free port, until the block ends."""

    def __init__(self, app: Server) -> None:
        self.app = app
        self.url = ""

    async def __aenter__(self) -> httpx2.AsyncClient:
        ready = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(serve_forever(self.app, "127.0.0.1", 0, ready=ready.set_result))
        await asyncio.wait({self.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        self.url = ready.result()
        self.client = httpx2.AsyncClient(base_url=self.url, timeout=30)
        return self.client

    async def __aexit__(self, *exc: object) -> None:
        await self.client.aclose()
        if not self.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await self.task


def events_of(lines: list[str]) -> list[dict]:
    return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


async def read_until(lines, text: str) -> list[str]:
    seen: list[str] = []
    async for line in lines:
        seen.append(line)
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came: {seen[-3:]}")


async def test_a_clean_end_and_a_cut_are_different_things_to_a_client(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """SV-56, SV-57: a finished stream closes cleanly, a cut one breaks off; the server's log says no traceback."""
    app = served(ScriptedProvider("done", ["half ", Hold()]), streams=StreamOptions(max_duration=0.3))
    async with Running(app) as client:
        answer = await client.post("/agui/default", json=run_input("t1", "r1", "hi"))
        assert events_of(answer.text.splitlines())[-1]["type"] == "RUN_FINISHED"
        seen: list[str] = []
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("POST", "/agui/default", json=run_input("t2", "r2", "hi")) as stream:
                async for line in stream.aiter_lines():
                    seen.append(line)
        assert events_of(seen)[-1]["name"] == "pilothouse.cut"
        assert (await client.get("/v1/runs/r2")).json()["status"] == "running"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_closed_tab_leaves_the_run_and_frees_the_stream() -> None:
    """SV-60, fixture 148, over a socket."""
    hold = Hold()
    app = served(ScriptedProvider(["a", hold, "b"]))
    async with Running(app) as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            await read_until(stream.aiter_lines(), '"delta":"a"')
        await app.registry.wait_empty()
        assert (await client.get("/v1/runs/r1")).json()["status"] == "running"
        hold.release()
        assert (await client.get("/v1/runs/r1?wait=10")).json()["status"] == "completed"


async def test_a_signal_drains_hands_over_and_the_next_server_goes_on(tmp_path: Path) -> None:
    """SV-221 … SV-224, fixture 138: cut, text kept, recovered on open; the old cursor goes on there."""
    path = tmp_path / "chat.db"
    hold = Hold()
    async with SQLiteJournal(path) as journal:
        provider = ScriptedProvider(["first half, ", hold], "whole answer")
        app = Server({"default": AgentController(provider)}, journal=journal, drain_timeout=0.1)
        running = Running(app)
        async with running as client:
            seen: list[str] = []
            async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
                lines = stream.aiter_lines()
                seen += await read_until(lines, "first half")
                os.kill(os.getpid(), signal.SIGTERM)
                with pytest.raises(httpx2.RemoteProtocolError):
                    async for line in lines:
                        seen.append(line)
            assert "RUN_ERROR" not in "".join(seen)
            await running.task
        cursor = [line[4:] for line in seen if line.startswith("id: ")][-1]
    async with SQLiteJournal(path) as journal:
        app = Server({"default": AgentController(provider)}, journal=journal, drain_timeout=0.1)
        async with Running(app) as client:
            view = (await client.get("/v1/runs/r1?wait=10")).json()
            assert view["status"] == "completed"
            rest = await client.post(
                "/agui/default", json=run_input("t1", "r1", "hi"), headers={"Last-Event-ID": cursor}
            )
            events = events_of(rest.text.splitlines())
            text = "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
            assert text == "whole answer"
            items = (await client.get("/v1/threads/t1/messages")).json()["items"]
            assert [item["delivery"]["outcome"] for item in items] == ["success", "interrupted", "success"]
            assert items[1]["parts"][0]["text"] == "first half, "


async def test_a_second_signal_hurries() -> None:
    """SV-223: what is left of the drain is cut short."""
    app = served(ScriptedProvider(["a", Hold()]), drain_timeout=3600.0)
    running = Running(app)
    async with running as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            lines = stream.aiter_lines()
            await read_until(lines, '"delta":"a"')
            os.kill(os.getpid(), signal.SIGTERM)
            while (await client.get("/readyz")).status_code != 503:
                pass
            refused = await client.post("/agui/default", json=run_input("t2", "r2", "hi"))
            assert refused.json()["code"] == "draining"
            assert (await client.get("/v1/runs/r1")).json()["status"] == "running"  # views go on
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(httpx2.HTTPError):
                await read_until(lines, "never")
        await running.task


class Deaf:
    """A client on a plain socket that asks once and never reads; a context manager."""

    def __init__(self, url: str, method: str, path: str, body: dict | None = None) -> None:
        self._address = ("127.0.0.1", int(url.rpartition(":")[2]))
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._request = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.setblocking(False)
        await loop.sock_connect(self._socket, self._address)
        await loop.sock_sendall(self._socket, self._request)

    async def __aexit__(self, *exc: object) -> None:
        self._socket.close()


def connections(port: int) -> int:
    """Sockets of the machine that the server's port has with somebody: established, or closing with data left."""
    table = Path("/proc/net/tcp").read_text().splitlines()[1:]
    mine = f":{port:04X}"
    return sum(line.split()[1].endswith(mine) and line.split()[3] in ("01", "04", "05") for line in table)


async def test_a_client_that_stops_reading_costs_nothing_for_long() -> None:
    """SV-50, SV-51: over sockets: the run goes on, the stream is cut, and socket and buffers are given up; so is an
    answer that nobody takes."""
    hold = Hold()
    app = served(
        ScriptedProvider(["x" * 100_000] * 150 + [hold, "end"]),
        streams=StreamOptions(write_timeout=0.3, keepalive=0.1),
    )
    running = Running(app)
    async with running as client:
        port = int(running.url.rpartition(":")[2])
        async with Deaf(running.url, "POST", "/agui/default", run_input("t1", "r1", "hi")):
            async with asyncio.timeout(20):
                while not app.registry.cuts:
                    await client.get("/healthz")
                while connections(port) > 1:  # the client's own stays
                    await client.get("/healthz")
            assert dict(app.registry.cuts) == {"write_timeout": 1}
            assert (await client.get("/v1/runs/r1")).json()["status"] == "running"
        hold.release()
        assert (await client.get("/v1/runs/r1?wait=10")).json()["status"] == "completed"
        (artifact,) = (await client.get("/v1/runs/r1/artifacts")).json()["items"]
        assert artifact["size"] > 10_000_000
        path = f"/v1/runs/r1/artifacts/{artifact['digest']}"
        async with Deaf(running.url, "GET", path), asyncio.timeout(20):
            while connections(port) < 2:
                await client.get("/healthz")
            while connections(port) > 1:
                await client.get("/healthz")


async def said(port: int, *pieces: bytes) -> bytes:
    """What a connection answers, until it is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(20):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("parser", ["httptools", "h11"])
async def test_a_head_without_end_is_not_kept(parser: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SV-10: before anybody is known: a head has a size, also in pieces and behind another request; a body is another
    matter, and so is a refusal in its midst."""
    if parser == "h11":
        monkeypatch.setitem(sys.modules, "httptools", None)
        monkeypatch.delitem(sys.modules, "uvicorn.protocols.http.httptools_impl", raising=False)
    app = served(ScriptedProvider())
    running = Running(app)
    async with running as client:
        port = int(running.url.rpartition(":")[2])
        start = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        for pieces in (
            [start + b"X: " + b"a" * 200_000 + b"\r\n"],
            [start, *[b"X%d: %b\r\n" % (number, b"a" * 1_000) for number in range(100)]],
            [start + b"\r\n" + start, b"X: " + b"a" * 200_000 + b"\r\n"],
        ):
            answer = await said(port, *pieces)
            assert b" 431 " in answer or b" 400 " in answer or not answer
        large = "x" * 5_000_000
        refused = await client.post("/v1/runs", json={"input": large})
        assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
        assert (await client.post("/v1/runs", json={"input": "x" * 100_000})).status_code == 201
        assert (await client.get("/healthz")).status_code == 200


async def test_a_head_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """SV-10: who connects and does not ask has a time; who asked may rest as long as uvicorn lets him."""
    monkeypatch.setattr(connection, "HEAD_S", 0.3)
    app = served(ScriptedProvider(["half ", Hold()]))
    running = Running(app)
    async with running as client:
        port = int(running.url.rpartition(":")[2])
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            lines = stream.aiter_lines()
            await read_until(lines, '"delta":"half "')
            assert await said(port) == b""
            assert await said(port, b"GET /healthz HT") == b""
            await client.post("/v1/runs/r1/cancel")
            assert events_of([line async for line in lines])[-1]["type"] == "RUN_FINISHED"
