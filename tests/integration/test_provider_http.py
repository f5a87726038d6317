"""Providers over real sockets: ends, stops, limits, proxies (PV-1 … PV-3, PV-11, PV-12)."""

from __future__ import annotations

import asyncio
import gc
import json
import ssl
import time
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import httpx2
import pytest

from dialects import BY_NAME
from pilothouse.core.assembly import Assembly
from pilothouse.messages import Message, Model, Price, Text
from pilothouse.providers.decode import DECODERS, summary
from pilothouse.providers.openai_chat import CompatProfile
from pilothouse.responses import (
    ModelRequest,
    ModelSettings,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    Timeouts,
)
from pilothouse.testing import Replay, ReplayServer
from wirekit import FIXTURES, INDEX, WireCase, wire_cases

HELLO = b'data: {"id":"c1","model":"m","choices":[{"index":0,"delta":{"content":"Hello "}}]}\n\n'
WORLD = b'data: {"choices":[{"index":0,"delta":{"content":"world"}}]}\n\n'
STOP = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def provider_for(dialect: str, url: str, case: WireCase | None = None, **options):
    if dialect == "openai-chat":
        options["profile"] = CompatProfile(think_tags=case.think_tags if case else "off")
    return BY_NAME[dialect].provider("m", base_url=url, **options)


def ask(**options) -> ModelRequest:
    return ModelRequest(Model("m"), [Message("u", "user", (Text("hi"),))], **options)


async def read(provider, request=None) -> list:
    return [event async for event in provider.stream(request or ask())]


@pytest.mark.parametrize("case", wire_cases(*DECODERS), ids=lambda case: case.id)
async def test_handed_bodies_come_out_of_the_network_as_they_should(case: WireCase) -> None:
    """Every wire fixture through a socket, in own chunks, with its own end; the loop would see just this."""
    end = {"eof": "eof", "reset": "reset", "held-open": "held-open"}[case.end]
    replay = Replay(chunks=case.chunks, status=case.status, content_type=case.content_type, end=end)
    async with ReplayServer(replay) as server, provider_for(case.dialect, server.url, case) as provider:
        assembly = Assembly("m1", tag=provider.tag)
        events = await read(provider)
        for event in events:
            assembly.feed(event)
        case.compare(summary(case.dialect, assembly))
        assert [type(event) for event in events].count(StreamEnd) == 1
        if case.status == 200:
            assert isinstance(events[0], ResponseStarted)


@pytest.mark.parametrize(
    ("replay", "end"),
    [
        (Replay(chunks=HELLO + STOP + DONE), StreamEnd("complete", "stop")),
        (Replay(chunks=HELLO, end="eof"), StreamEnd("unknown", cause="eof")),
        (Replay(chunks=HELLO, end="cut"), StreamEnd("unknown", cause="reset")),
        (Replay(chunks=HELLO, end="reset"), StreamEnd("unknown", cause="reset")),
        (Replay(chunks=b"", end="eof"), StreamEnd("unknown", cause="eof")),
        (Replay(chunks=b"", end="reset"), StreamEnd("unknown", cause="reset")),
    ],
    ids=["finished", "silent end", "cut", "reset", "nothing", "nothing and reset"],
)
async def test_each_end_stays_what_it_is(replay: Replay, end: StreamEnd) -> None:
    """PV-2: a response that began and stopped without a sign is unknown, never an error, never finished."""
    async with ReplayServer(replay) as server, provider_for("openai-chat", server.url) as provider:
        assert (await read(provider))[-1] == end


async def test_no_response_at_all_is_a_transport_error() -> None:
    """PV-2 [118]: refused, closed before a head, or an address that is none: nothing began."""
    async with (
        ReplayServer(Replay(head="refused")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        events = await read(provider)
    gone = provider_for("openai-chat", server.url)
    for more in (
        await read(gone),
        await read(provider_for("openai-chat", "nonsense")),
        await read(provider_for("openai-chat", "http://[bad")),
    ):
        assert [type(event) for event in more] == [StreamEnd]
        assert more[0].error.kind == "transport"
    assert [type(event) for event in events] == [StreamEnd]
    assert events[0].error.kind == "transport"
    assert server.url.partition("//")[2] in events[0].error.message


async def test_a_connection_that_is_not_there_in_time_is_a_transport_error() -> None:
    """PV-11: `connect` bounds it; a listener whose queue is full accepts nobody."""
    import socket

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        settings = ModelSettings(timeouts=Timeouts(connect=0.1))
        async with provider_for("openai-chat", f"http://127.0.0.1:{address[1]}") as provider:
            events = await read(provider, ask(settings=settings))
        for filler in fillers:
            filler.close()
    assert events[-1].error.kind == "transport"


async def test_an_error_body_that_never_ends_is_not_waited_for() -> None:
    """PV-11 [108]: its reading is bounded; the status alone classifies."""
    (ops,) = [json.loads((FIXTURES / INDEX["108"]["input"]).read_text())["ops"]]
    told = next(op for op in ops if op["op"] == "provider")
    replay = Replay(
        chunks=told["body_prefix"].encode(),
        status=told["status"],
        content_type="application/json",
        end="held-open",
    )
    async with ReplayServer(replay) as server, provider_for("openai-chat", server.url) as provider:
        (end,) = await read(provider, ask(settings=ModelSettings(timeouts=Timeouts(error_body=0.05))))
        await server.until(lambda server: server.open_connections == 0)
    assert (end.reason, end.error.kind, end.error.status) == ("error", "rate_limit", 429)


async def test_an_endless_error_body_is_cut() -> None:
    """PV-11: 64 KiB are enough."""
    replay = Replay(chunks=[b"x" * 60_000] * 5, status=500, content_type="text/plain", end="held-open")
    async with ReplayServer(replay) as server, provider_for("openai-chat", server.url) as provider:
        (end,) = await read(provider)
    assert (end.error.kind, len(end.error.message)) == ("server_error", 2048)


async def test_hints_and_words_of_an_error_are_kept() -> None:
    """PV-9, PV-10: typed, with the provider's own words and when to come back."""
    body = json.dumps({"error": {"message": "Slow down", "type": "requests", "code": "rate_limit_exceeded"}})
    replay = Replay(
        chunks=body.encode(), status=429, content_type="application/json", headers={"Retry-After": "7"}
    )
    async with ReplayServer(replay) as server, provider_for("openai-chat", server.url) as provider:
        (end,) = await read(provider)
    error = end.error
    assert (error.kind, error.message, error.code, error.status, error.retry_after_ms) == (
        "rate_limit", "Slow down", "rate_limit_exceeded", 429, 7000,
    )  # fmt: skip
    assert error.retryable


async def test_done_settles_although_the_socket_stays_open() -> None:
    """[019]: within 100 ms of the last event, and the connection is closed."""
    async with (
        ReplayServer(Replay(chunks=HELLO + STOP + DONE, end="held-open")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        await read(provider)  # the first request also imports and connects
        began = time.perf_counter()
        await read(provider)
        assert time.perf_counter() - began < 0.1
        await server.until(lambda server: server.busy == 0)


async def test_figures_after_the_reason_are_waited_for_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """[020]: without [DONE] on an open socket the reason stands after the linger time."""
    async with (
        ReplayServer(Replay(chunks=HELLO + STOP, end="held-open")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        provider.linger_s = 0.05
        assert (await read(provider))[-1] == StreamEnd("complete", "stop")


async def test_a_connection_is_used_again_after_a_whole_answer() -> None:
    """A turn does not pay for a new connection."""
    async with (
        ReplayServer(Replay(chunks=[HELLO, STOP, DONE])) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        for _ in range(5):
            await read(provider)
        assert len(server.requests) == 5
        assert server.open_connections == 1


# Stops


async def stop_by_closing(provider, request, after: int) -> None:
    stream = provider.stream(request)
    for _ in range(after):
        await anext(stream)
    await stream.aclose()
    await stream.aclose()


async def stop_by_break(provider, request, after: int) -> None:
    count = 0
    stream = provider.stream(request)
    async for _ in stream:
        count += 1
        if count >= after:
            break
    await stream.aclose()


async def stop_by_cancel(provider, request, after: int) -> None:
    seen = asyncio.Event()

    async def consume() -> None:
        count = 0
        async for _ in provider.stream(request):
            count += 1
            if count >= after:
                seen.set()

    task = asyncio.create_task(consume())
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def stop_by_timeout(provider, request, after: int) -> None:
    seen = 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            async for _ in provider.stream(request):
                seen += 1
                if seen == after:  # its time is over then, however busy the machine is
                    limit.reschedule(asyncio.get_running_loop().time())


@pytest.mark.parametrize("stop", [stop_by_closing, stop_by_break, stop_by_cancel, stop_by_timeout])
async def test_200_stops_leave_no_connection_and_no_task(stop) -> None:
    """PV-3 [110] [161]: each way of leaving closes the socket; the next request works."""
    async with (
        ReplayServer(Replay(chunks=[HELLO, WORLD], end="held-open")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        before = asyncio.all_tasks()
        for number in range(50):
            await stop(provider, ask(), 1 + number % 3)
        await server.until(lambda server: server.open_connections == 0)
        assert len(server.requests) == 50
        gc.collect()
        assert len(asyncio.all_tasks() - before) == 0


@pytest.mark.parametrize("how", ["cancel", "wait_for"])
async def test_a_stop_before_the_first_byte_closes_the_connection(how: str) -> None:
    """PV-3: the server never answers; leaving does not wait for it."""
    async with (
        ReplayServer(Replay(head="never")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        for number in range(20):
            task = asyncio.create_task(read(provider))
            await server.until(lambda server: server.busy == 1)
            if how == "cancel":
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(task, 0.001)
            await server.until(lambda server: server.open_connections == 0)
            assert len(server.requests) == number + 1


async def test_a_stop_is_seen_by_the_server_within_half_a_second() -> None:
    """LP-43 [110]: the server's slot is free again at once."""
    async with (
        ReplayServer(Replay(chunks=[HELLO], end="held-open")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        stream = provider.stream(ask())
        async for event in stream:
            if isinstance(event, TextDelta):
                break
        began = time.perf_counter()
        await stream.aclose()
        await server.until(lambda server: server.open_connections == 0)
        assert time.perf_counter() - began < 0.5


async def test_requests_run_beside_each_other() -> None:
    """No pool limit makes one response wait for another."""
    async with (
        ReplayServer(Replay(chunks=[HELLO], end="held-open")) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        streams = [provider.stream(ask()) for _ in range(120)]
        await asyncio.gather(*[anext(stream) for stream in streams])
        assert server.busy == 120
        await asyncio.gather(*[stream.aclose() for stream in streams])
        await server.until(lambda server: server.open_connections == 0)


# Keys, clients, proxies


async def test_the_key_is_asked_for_before_each_request() -> None:
    """An async function gives a fresh key; if it fails, that is an auth error and nothing is sent."""
    keys = iter(["one", "two"])

    async def key() -> str:
        return next(keys)

    async with (
        ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as server,
        provider_for("openai-chat", server.url, api_key=key) as provider,
    ):
        await read(provider)
        await read(provider)
        assert [request.headers["authorization"] for request in server.requests] == [
            "Bearer one",
            "Bearer two",
        ]
        (end,) = await read(provider)
        assert end.error.kind == "auth"
        assert len(server.requests) == 2


@pytest.mark.parametrize("key", ["sk-secret\nx-evil: 1", "sk-sécret", "sk-\x00secret"])
async def test_a_broken_key_is_an_auth_error_that_does_not_tell_it(key: str) -> None:
    """A key with a line end forges no header and stands in no error; blanks around one are not part of it."""
    async with ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as server:
        async with provider_for("openai-chat", server.url, api_key=key) as provider:
            (end,) = await read(provider)
            assert end.error.kind == "auth"
            assert "cret" not in end.error.message
            assert server.requests == []
        async with provider_for("openai-chat", server.url, api_key=" sk-good\n") as provider:
            await read(provider)
            assert server.requests[0].headers["authorization"] == "Bearer sk-good"


async def test_a_users_own_client_is_used_and_stays_open() -> None:
    """Issue 4, item 4; closing the provider does not close it, and one that is closed is an error of transport."""
    async with (
        httpx2.AsyncClient(headers={"x-mine": "1"}) as client,
        ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as server,
    ):
        async with provider_for("openai-chat", server.url, client=client) as provider:
            await read(provider)
        assert server.requests[0].headers["x-mine"] == "1"
        assert not client.is_closed
    assert (await read(provider))[-1].error.kind == "transport"


async def test_proxies_of_the_environment_are_used_except_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Issue 4, item 4: HTTP_PROXY takes foreign hosts; a local server is asked directly."""
    async with (
        ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as proxy,
        ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as local,
    ):
        for name in ("NO_PROXY", "no_proxy", "HTTP_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", proxy.url)
        async with provider_for("openai-chat", "http://models.invalid/v1") as provider:
            assert (await read(provider))[-1].reason == "complete"
        async with provider_for("openai-chat", local.url) as provider:
            assert (await read(provider))[-1].reason == "complete"
        assert proxy.requests[0].path == "http://models.invalid/v1/chat/completions"
        assert len(proxy.requests) == len(local.requests) == 1


def own_authority(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate that only who trusts the returned file accepts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pilothouse test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    trusted, private = directory / "ca.pem", directory / "key.pem"
    trusted.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(trusted, private)
    return context, trusted


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", None])
async def test_certificates_of_the_environment_are_trusted(
    variable: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Issue 4, item 4: a custom authority by the usual variables; without it the connection is refused."""
    tls, trusted = own_authority(tmp_path)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, str(trusted))
    async with (
        ReplayServer(Replay(chunks=HELLO + STOP + DONE), tls=tls) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        end = (await read(provider))[-1]
    if variable is None:
        assert end.error.kind == "transport"
        assert "certificate" in end.error.message.lower()
    else:
        assert end.reason == "complete"


def test_one_provider_serves_several_event_loops() -> None:
    """A client of one loop is of no use in the next; a new one is made."""

    async def once() -> str:
        async with ReplayServer(Replay(chunks=HELLO + STOP + DONE)) as server:
            provider.base_url = server.url
            async with provider:
                return (await read(provider))[-1].reason

    provider = provider_for("openai-chat", "http://127.0.0.1:1")
    assert [asyncio.run(once()) for _ in range(2)] == ["complete", "complete"]


async def test_a_full_window_that_was_cut_to_nothing_is_an_overflow() -> None:
    """PV-9, silent overflow: `length` with no output at 99 % of the window."""
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":995,"completion_tokens":0}}\n\n'
    length = STOP.replace(b"stop", b"length")
    async with (
        ReplayServer(Replay(chunks=length + usage + DONE)) as server,
        provider_for("openai-chat", server.url) as provider,
    ):
        small = ModelRequest(Model("m", context_window=1000), ask().messages)
        large = ModelRequest(Model("m", context_window=2000), ask().messages)
        assert (await read(provider, small))[-1].error.kind == "context_overflow"
        assert (await read(provider, large))[-1] == StreamEnd("length", "length")


@pytest.mark.parametrize(("told", "wanted"), [({}, "0.013"), ({"cost": 0.5}, "0.5")])
async def test_the_cost_is_told_or_follows_from_the_prices(told: dict, wanted: str) -> None:
    """PV-8: the provider's own word before ours; without prices and a word there is none."""
    figures = {
        "prompt_tokens": 1000,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 500},
    }
    early = json.dumps({"choices": [], "usage": {**figures, "completion_tokens": 1, **told}})
    late = json.dumps({"choices": [], "usage": figures})
    replay = Replay(chunks=f"data: {early}\n\n".encode() + HELLO + STOP + f"data: {late}\n\n".encode() + DONE)
    prices = Price("20", "50", cache_read="4")
    async with ReplayServer(replay) as server, provider_for("openai-chat", server.url) as provider:
        for model, cost in ((Model("m", prices=prices), wanted), (Model("m"), (told and wanted) or None)):
            assembly = Assembly("m")
            for event in await read(provider, ModelRequest(model, ask().messages)):
                assembly.feed(event)
            assert assembly.usage is not None
            assert assembly.usage.cost == cost


async def test_the_http_library_is_imported_at_the_first_request_only() -> None:
    """performance.md, rule 6: making a provider costs no HTTP client."""
    code = (
        "import sys; from pilothouse.providers import OpenAIChatProvider; OpenAIChatProvider('m');"
        "print(sorted({'httpx2','pydantic','anyio','httpcore2'} & set(sys.modules)))"
    )
    process = await asyncio.create_subprocess_exec(
        __import__("sys").executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out.strip() == b"[]"
