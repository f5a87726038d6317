"""Behind real proxies, with the settings that the docs show (SV-40, SV-42, SV-56, SV-60, SV-241)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from test_server_http import Running, events_of, read_until

from asgikit import run_input, served
from pilothouse.server.app import Server
from pilothouse.server.auth import AuthRequest, Principal, TrustedHeader
from pilothouse.server.settings import StreamOptions
from pilothouse.testing.scripted import Hold, ScriptedProvider
from proxykit import Proxy

pytestmark = [pytest.mark.proxy, pytest.mark.parametrize("kind", ["nginx", "haproxy", "caddy"])]


class Anybody:
    """Lets everybody in, and keeps who was seen."""

    def __init__(self) -> None:
        self.seen: list[AuthRequest] = []

    async def __call__(self, request: AuthRequest, /) -> Principal:
        self.seen.append(request)
        return Principal("ann", "ann")


@asynccontextmanager
async def behind(app: Server, kind: str, folder: Path, **options) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that reaches the server through a proxy only."""
    running = Running(app)
    async with running:
        upstream = int(running.url.rpartition(":")[2])
        with Proxy(kind, upstream, folder, **options) as proxy:
            async with httpx2.AsyncClient(base_url=proxy.url, timeout=30) as client:
                yield client


async def test_each_piece_comes_through_as_it_is_told(kind: str, tmp_path: Path) -> None:
    """SV-40, SV-43, fixture 183: nothing is held back, nor packed, though the proxy buffers and packs what it may."""
    hold = Hold()
    app = served(ScriptedProvider(["half ", hold, "done"]), auth=Anybody())
    async with behind(app, kind, tmp_path) as client:
        headers = {"accept-encoding": "gzip"}
        body = run_input("t1", "r1", "hi")
        async with client.stream("POST", "/agui/default", json=body, headers=headers) as stream:
            assert "content-encoding" not in stream.headers
            lines = stream.aiter_lines()
            seen = await read_until(lines, '"delta":"half "')
            hold.release()
            seen += [line async for line in lines]
        assert events_of(seen)[-1]["type"] == "RUN_FINISHED"


async def test_silence_is_shorter_than_what_a_proxy_allows(kind: str, tmp_path: Path) -> None:
    """SV-42, fixture 183: an idle limit of a second, comments each fifth of it, and a run that says nothing for longer."""
    hold = Hold()
    app = served(
        ScriptedProvider(["half ", hold, "done"]), auth=Anybody(), streams=StreamOptions(keepalive=0.2)
    )
    async with (
        behind(app, kind, tmp_path, idle=1) as client,
        client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream,
    ):
        lines = stream.aiter_lines()
        await read_until(lines, '"delta":"half "')
        for _ in range(8):
            await read_until(lines, ": ")
        hold.release()
        seen = [line async for line in lines]
        assert events_of(seen)[-1]["type"] == "RUN_FINISHED"


async def cut_off(kind: str, folder: Path, streams: StreamOptions) -> tuple[list[dict], bool]:
    """What a client got of a stream that was cut, and whether the connection broke off."""
    app = served(ScriptedProvider(["half ", Hold()]), auth=Anybody(), streams=streams)
    seen: list[str] = []
    async with behind(app, kind, folder) as client:
        try:
            async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
                lines = stream.aiter_lines()
                seen += await read_until(lines, '"delta":"half "')
                app.registry.cut_all("max_duration")
                async for line in lines:
                    seen.append(line)
        except httpx2.RemoteProtocolError:
            return events_of(seen), True
    return events_of(seen), False


async def test_a_cut_breaks_off_for_the_client_too(kind: str, tmp_path: Path) -> None:
    """SV-56, SV-57, SV-58: a stream whose run goes on does not end as if all were said. Caddy (2.6) closes cleanly all
    the same, as some middleware does: behind it `cut="error"` is what the docs recommend."""
    events, broke = await cut_off(kind, tmp_path, StreamOptions())
    assert events[-1]["name"] == "pilothouse.cut"
    assert broke is (kind != "caddy")
    folder = tmp_path / "error"
    folder.mkdir()
    events, broke = await cut_off(kind, folder, StreamOptions(cut="error"))
    assert not broke
    assert (events[-1]["type"], events[-1]["code"]) == ("RUN_ERROR", "stream_cut")


async def test_a_client_that_leaves_is_missed(kind: str, tmp_path: Path) -> None:
    """SV-60: the proxy passes on that nobody reads any more."""
    options = StreamOptions(keepalive=0.2)  # some find out when there is something to write
    app = served(ScriptedProvider(["half ", Hold()]), auth=Anybody(), on_disconnect="cancel", streams=options)
    async with behind(app, kind, tmp_path) as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            await read_until(stream.aiter_lines(), '"delta":"half "')
        view = (await client.get("/v1/runs/r1?wait=20")).json()
        assert view["status"] == "cancelled"


async def test_who_asks_is_read_from_a_trusted_proxy_alone(kind: str, tmp_path: Path) -> None:
    """SV-241: client, scheme and host as the proxy says; what the client itself claims stays a claim."""
    claims = {"x-forwarded-for": "6.6.6.6", "x-forwarded-host": "evil.example", "host": "chat.example"}
    for trusted in ((), ("127.0.0.0/8",)):
        auth = Anybody()
        app = served(ScriptedProvider(), auth=auth, trusted_proxies=trusted)
        folder = tmp_path / str(len(trusted))
        folder.mkdir()
        async with behind(app, kind, folder) as client:
            if kind == "caddy":  # its address is its name
                claims = {name: value for name, value in claims.items() if name != "host"}
            assert (await client.get("/v1/agents", headers=claims)).status_code == 200
        (asked,) = auth.seen
        if trusted:
            # What stands before the proxy's own entry is a claim: this machine's address is a proxy, so the claim is next.
            assert asked.proxy == "127.0.0.1"
            assert asked.peer in ("6.6.6.6", None)
            assert asked.headers["host"].startswith("127.0.0.1" if kind == "caddy" else "chat.example")
        else:
            assert (asked.peer, asked.proxy) == ("127.0.0.1", None)


async def test_a_proxy_signs_people_in(kind: str, tmp_path: Path) -> None:
    """SV-18, SV-241: its header counts from it alone; from anybody else nobody is named."""
    app = served(ScriptedProvider(), auth=TrustedHeader("x-user"), trusted_proxies=("127.0.0.1",))
    async with behind(app, kind, tmp_path) as client:
        assert (await client.get("/v1/agents", headers={"x-user": "ann"})).status_code == 200
    stranger = served(ScriptedProvider(), auth=TrustedHeader("x-user"))
    folder = tmp_path / "stranger"
    folder.mkdir()
    async with behind(stranger, kind, folder) as client:
        assert (await client.get("/v1/agents", headers={"x-user": "ann"})).status_code == 401
    loopback = served(ScriptedProvider(), trusted_proxies=("127.0.0.1",))
    folder = tmp_path / "loopback"
    folder.mkdir()
    async with behind(
        loopback, kind, folder
    ) as client:  # SV-17: who comes through a proxy is not this machine
        assert (await client.get("/v1/agents")).status_code == 401


async def test_a_proxy_that_buffers_all_the_same_gets_filled(kind: str, tmp_path: Path) -> None:
    """SV-42: where the header is not honoured, padded comments push what was said through its buffers."""
    more = (
        "proxy_ignore_headers X-Accel-Buffering; proxy_buffer_size 4k; proxy_buffers 4 4k;"
        if kind == "nginx"
        else ""
    )
    app = served(ScriptedProvider(["half ", Hold()]), auth=Anybody(), streams=StreamOptions(keepalive=0.05))
    async with behind(app, kind, tmp_path, more=more) as client:
        async with client.stream("POST", "/agui/default", json=run_input("t1", "r1", "hi")) as stream:
            async with asyncio.timeout(20):
                await read_until(stream.aiter_lines(), '"delta":"half "')
