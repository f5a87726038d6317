"""A provider's wire, captured without secrets, gives the same answer when it is decoded again (issue 4, item 7)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dialects import BY_NAME
from pilothouse.errors import ConfigError
from pilothouse.messages import Message, Model, Text
from pilothouse.providers.decode import decode
from pilothouse.providers.recording import capture, load, rechunked, redacted, save
from pilothouse.responses import ModelRequest, StreamEnd
from pilothouse.testing import Replay, ReplayServer
from wirekit import FIXTURES, WireCase, wire_cases

REQUEST = ModelRequest(Model("m"), [Message("u", "user", (Text("hi"),))])
KEY = "sk-test-0123456789abcdef"


@pytest.mark.parametrize("case", [case for case in wire_cases(*BY_NAME) if case.id[:3] in ("013", "060", "070", "078", "087")], ids=lambda case: case.id)  # fmt: skip
async def test_what_was_captured_decodes_to_the_same(case: WireCase, tmp_path: Path) -> None:
    """Status, reads and end are in the file; so is the raw body under another suffix."""
    replay = Replay(chunks=case.chunks, status=case.status, content_type=case.content_type, end=case.end)
    async with (
        ReplayServer(replay) as server,
        BY_NAME[case.dialect].provider("m", base_url=server.url) as provider,
    ):
        recording, events = await capture(provider, REQUEST)
        assert provider.tap is None
    assert isinstance(events[-1], StreamEnd)
    assert recording.body == case.body
    save(recording, tmp_path / "answer.json")
    save(recording, tmp_path / "answer.sse")
    loaded = load(tmp_path / "answer.json")
    assert loaded.dialect == case.dialect
    case.compare(
        decode(case.dialect, loaded.chunks, status=loaded.status, end=loaded.end, headers=loaded.headers)
    )
    assert load(tmp_path / "answer.sse").body == case.body
    assert rechunked(loaded.chunks, 7) == [case.body[at : at + 7] for at in range(0, len(case.body), 7)]


async def test_no_secret_is_in_a_recording(tmp_path: Path) -> None:
    """Keys in bodies and headers, given ones and those that look like one, also across two reads."""
    body = f'data: {{"echo":"{KEY}","mine":"hush","auth":"Bearer abcdefghijklmnop"}}\n\ndata: [DONE]\n\n'.encode()
    replay = Replay(chunks=[body[:20], body[20:]], headers={"set-cookie": "session=1", "x-request-id": "r"})
    async with (
        ReplayServer(replay) as server,
        BY_NAME["openai-chat"].provider("m", base_url=server.url, api_key=KEY) as provider,
    ):
        recording, _ = await capture(provider, REQUEST, secrets=["hush"])
    save(recording, tmp_path / "a.json")
    text = recording.body.decode()
    assert len(text) == len(body)
    for secret in (KEY, "hush", "abcdefghijklmnop"):
        assert secret not in text
    assert "session" not in (tmp_path / "a.json").read_text()
    assert redacted([b"sk-abcdefg", b"hijklmnopqr."]) == [b"x" * 10, b"x" * 11 + b"."]


def test_files_that_cannot_be_used_say_so(tmp_path: Path) -> None:
    """One line each."""
    (tmp_path / "bad.json").write_text(json.dumps({"kind": "wire_chunks", "chunks": ["zz"]}))
    for path in (tmp_path / "none.sse", tmp_path / "bad.json"):
        with pytest.raises(ConfigError, match=path.name):
            load(path)
    with pytest.raises(ConfigError, match="cannot write"):
        save(load(FIXTURES / "008-chat-tool-finish-stop.sse"), tmp_path / "no" / "where.sse")
    (tmp_path / "body.json").write_text('[{"error":{}}]')
    assert load(tmp_path / "body.json").body == b'[{"error":{}}]'
