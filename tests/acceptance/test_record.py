"""`pilothouse record` and `pilothouse decode`: a provider's wire in a file, and read from it (issue 4, item 7)."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from dialects import BY_NAME
from pilothouse.testing import Replay, ReplayServer
from served import pilothouse
from wirekit import FIXTURES, WireCase, wire_cases

CASES = {case.id[:3]: case for case in wire_cases(*BY_NAME)}
KEY = "key-of-mine-0123456789"
MODELS = {
    "openai-chat": ("openai-chat:m", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "openai-responses": ("openai-responses:m", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "anthropic": ("anthropic:m", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "gemini": ("gemini:m", "GEMINI_API_KEY", "GEMINI_BASE_URL"),
}


async def record(
    server: ReplayServer, dialect: str, folder: Path, *args: str
) -> subprocess.CompletedProcess[str]:
    """The command beside the server that it talks to."""
    model, key, address = MODELS[dialect]
    env = {key: KEY, address: server.url}
    return await asyncio.to_thread(pilothouse, "record", *args, "-m", model, cwd=folder, env=env)


@pytest.mark.parametrize("number", ["013", "087", "058", "070"])
async def test_a_recorded_answer_decodes_to_what_was_shown(number: str, tmp_path: Path) -> None:
    """All four dialects; the file alone says dialect, reads and status; the question and the tools were sent."""
    case: WireCase = CASES[number]
    (tmp_path / "tools.json").write_text('[{"name": "f", "parameters": {"type": "object"}}]')
    async with ReplayServer(Replay(chunks=case.chunks)) as server:
        result = await record(
            server, case.dialect, tmp_path, "a.json", "-M", "What now?", "--tools", "tools.json"
        )
    assert result.returncode == 0, result.stderr
    case.compare(json.loads(result.stdout))
    (request,) = server.requests
    assert b"What now?" in request.body
    assert b'"f"' in request.body
    again = await asyncio.to_thread(pilothouse, "decode", "a.json", cwd=tmp_path)
    assert again.stdout == result.stdout
    byte_by_byte = await asyncio.to_thread(pilothouse, "decode", "a.json", "--chunks", "1", cwd=tmp_path)
    assert byte_by_byte.stdout == result.stdout


async def test_no_key_is_in_the_file(tmp_path: Path) -> None:
    """A gateway quotes the key in its error: status and words are kept, the key is not."""
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}})
    replay = Replay(
        chunks=body.encode(),
        status=401,
        content_type="application/json",
        headers={"set-cookie": "session=1", "openai-organization": "mine"},
    )
    async with ReplayServer(replay) as server:
        result = await record(server, "openai-chat", tmp_path, "a.json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["error_kind"] == "auth"
    held = json.loads((tmp_path / "a.json").read_text())
    whole = b"".join(bytes.fromhex(chunk) for chunk in held["chunks"]).decode()
    assert "Incorrect API key provided: xxxx" in whole
    assert held["status"] == 401
    for secret in (KEY, "session", "mine"):
        assert secret not in whole + json.dumps(held["headers"]) + result.stdout + result.stderr


async def test_a_secret_that_the_model_spells_is_not_recorded(tmp_path: Path) -> None:
    """Over several deltas it cannot be overwritten: nothing is written, and it is said."""
    pieces = [
        f"data: {json.dumps({'choices': [{'delta': {'content': part}}]})}\n\n".encode()
        for part in ("It is ", KEY[:7], KEY[7:], ".")
    ]
    async with ReplayServer(Replay(chunks=[*pieces, b"data: [DONE]\n\n"])) as server:
        result = await record(server, "openai-chat", tmp_path, "a.json")
    assert result.returncode == 1
    assert "spells out a secret" in result.stderr
    assert KEY not in result.stderr
    assert not (tmp_path / "a.json").exists()


async def test_what_cannot_be_recorded_is_told_in_one_line(tmp_path: Path) -> None:
    """No answer, no wire, files that cannot be used; nothing is overwritten unasked."""

    async def run(*args: str, **env: str) -> str:
        result = await asyncio.to_thread(pilothouse, "record", *args, cwd=tmp_path, env=env)
        assert (result.returncode, result.stdout) == (1, "")
        assert "Traceback" not in result.stderr
        return result.stderr

    (tmp_path / "old.json").write_text("mine")
    assert "--force" in await run("old.json", "-m", "openai:m", OPENAI_API_KEY=KEY)
    assert (tmp_path / "old.json").read_text() == "mine"
    assert "no folder" in await run("no/where.json", "-m", "openai:m")
    assert "set OPENAI_API_KEY" in await run("a.json", "-m", "openai:m")
    assert "did not answer" in await run("a.json", "-m", "http://127.0.0.1:9/v1#m")
    assert "no wire of its own" in await run("a.json", "-m", "pydantic-ai:test")
    assert "cannot read none.json" in await run(
        "a.json", "-m", "http://127.0.0.1:9/v1#m", "--tools", "none.json"
    )
    assert "no list of tools" in await run("a.json", "-m", "http://127.0.0.1:9/v1#m", "--tools", "old.json")
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("number", ["008", "019", "060", "081", "040"])
def test_decode_prints_what_a_fixture_wants(number: str, tmp_path: Path) -> None:
    """Bodies and files of reads; how the connection ended is an option where the file does not say it."""
    case = CASES[number]
    (file,) = FIXTURES.glob(f"{number}-*")
    if number == "040":
        result = pilothouse("decode", str(file), cwd=tmp_path)
    else:
        result = pilothouse(
            "decode", str(file), "--dialect", case.dialect, "--end", case.end, "--chunks", "3", cwd=tmp_path
        )
    assert result.returncode == 0, result.stderr
    case.compare(json.loads(result.stdout))


def test_decode_asks_for_a_dialect_that_nothing_says(tmp_path: Path) -> None:
    """One line, with the choices."""
    (file,) = FIXTURES.glob("008-*")
    result = pilothouse("decode", str(file), cwd=tmp_path)
    assert result.returncode == 1
    assert "openai-responses" in result.stderr
