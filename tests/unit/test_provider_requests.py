"""Stored conversations to requests that a strict provider takes, in every dialect (PV-6, PV-13)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from dialects import BY_NAME, DIALECTS, Dialect
from pilothouse.core.canonical import encode
from pilothouse.core.pairing import MADE_TEXT, repair
from pilothouse.messages import (
    ArtifactRef,
    Audio,
    Context,
    File,
    Image,
    Message,
    Reasoning,
    Structured,
    Text,
    ToolCall,
    Video,
)
from wirekit import FIXTURES, INDEX, HistoryCase, history_cases, problems

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)


def user(*parts: Any) -> Message:
    return Message("u", "user", tuple(Text(part) if isinstance(part, str) else part for part in parts))


def calls(*named: ToolCall, text: str = "") -> Message:
    return Message("a", "assistant", (*([Text(text)] if text else []), *named), stop_reason="tool_calls")


def result(call_id: str, *parts: Any, **options: Any) -> Message:
    return Message(
        "r",
        "tool",
        tuple(Text(part) if isinstance(part, str) else part for part in parts),
        call_id=call_id,
        **options,
    )


@pytest.mark.parametrize("case", history_cases(*BY_NAME), ids=lambda case: case.id)
def test_handed_histories_become_valid_requests(case: HistoryCase) -> None:
    """Read by from_wire, repaired, written by to_wire: the judge takes it, twice the same; the stored stays."""
    dialect = BY_NAME[case.dialect]
    before = json.dumps(case.stored)
    assert bool(problems(case.dialect, case.stored)) is case.refused
    messages, done = repair(dialect.from_wire(case.stored), dialect.rules)
    request = dialect.to_wire(messages)
    assert problems(case.dialect, request) == []
    assert json.dumps(
        dialect.to_wire(repair(dialect.from_wire(case.stored), dialect.rules)[0])
    ) == json.dumps(request)
    again = dialect.to_wire(repair(dialect.from_wire(request), dialect.rules)[0])
    assert again == request, "what was repaired once is stable"
    assert json.dumps(case.stored) == before
    text = json.dumps(request)
    want = case.expect
    if "synthetic_results_for" in want:
        assert list(done.made) == want["synthetic_results_for"]
        assert text.count(MADE_TEXT) == len(want["synthetic_results_for"])
    for kept in want.get("keeps", []):
        assert text.count(kept) == 2
    for gone in want.get("dropped", []):
        assert f'"{gone}"' not in text
    if "order_kept" in want:
        places = [text.index(word) for word in want["order_kept"]]
        assert places == sorted(places)


@every_dialect
def test_messages_survive_the_wire(dialect: Dialect) -> None:
    """What is written is read back as the same conversation."""
    messages = [
        user("hi"),
        calls(ToolCall("c1", "f", {"x": 1}, '{"x":1}'), ToolCall("c2", "g"), text="Looking."),
        result("c1", "one"),
        result("c2", "two"),
        Message("b", "assistant", (Text("done"),)),
        user("more"),
    ]
    back = dialect.from_wire(dialect.to_wire(messages))
    assert [(m.role, m.text, [(c.tool, c.arguments) for c in m.tool_calls]) for m in back] == [
        (m.role, m.text, [(c.tool, c.arguments) for c in m.tool_calls]) for m in messages
    ]
    assert repair(back, dialect.rules)[1] is None


@every_dialect
def test_broken_characters_never_reach_a_request(dialect: Dialect) -> None:
    """[100]: NUL and lone surrogates are replaced, whole emoji untouched, the stored texts stay."""
    told = json.loads((FIXTURES / INDEX["100"]["input"]).read_text())["tool_results"]
    texts = {
        item["call_id"]: item["text"] if "text" in item else json.loads(f'"{item["text_json_escaped"]}"')
        for item in told
    }
    messages = [
        user("a\0b\ud83d"),
        calls(
            *[ToolCall(call_id, "f", {"s": "\ud83d"}, '{"s":"\\ud83d"}') for call_id in texts], text="x\udc00"
        ),
        *[result(call_id, text) for call_id, text in texts.items()],
        user("go"),
    ]
    request = dialect.to_wire(messages)
    assert problems(dialect.name, request) == []
    text = json.dumps(request, ensure_ascii=False)
    assert "\0" not in text
    assert "\\u0000" not in text
    assert "fine 😀" in text
    assert "broken \ufffd emoji" in text
    for message in messages[2:5]:
        encode(message)
    assert messages[0].text == "a\0b\ud83d"


@every_dialect
def test_bad_arguments_go_back_as_an_object(dialect: Dialect) -> None:
    """PV-6 [103]: the raw text under one key; nothing at all is {}."""
    bad = ToolCall("c1", "f", {}, '{"path":"a', "not JSON")
    request = dialect.to_wire(
        [user("go"), calls(bad, ToolCall("c2", "f", {}, "null")), result("c1", "e"), result("c2", "e")]
    )
    assert problems(dialect.name, request) == []
    assert "raw_arguments" in json.dumps(request)


@every_dialect
def test_no_block_is_ever_empty(dialect: Dialect) -> None:
    """PV-13 [095]: blank texts and messages are left out, silent tools say so."""
    messages = [
        user("hi", "", " \n"),
        Message("blank", "assistant", (Text(""), Reasoning("hm"))),
        user("\t"),
        calls(ToolCall("c1", "f"), text=" "),
        result("c1", ""),
        Message("end", "assistant", (Text("ok"), Text(""))),
        user("go"),
    ]
    request = dialect.to_wire(messages)
    assert problems(dialect.name, request) == []
    assert "(no output)" in json.dumps(request)
    assert '""' not in json.dumps(request)


@every_dialect
def test_what_the_application_added_is_rendered(dialect: Dialect) -> None:
    """Context parts and previews of artifacts are text; a structured part speaks only where no text does."""
    messages = [
        user("q", Context("today is Monday")),
        calls(ToolCall("c1", "f"), ToolCall("c2", "f")),
        result("c1", Structured({"n": 1})),
        result("c2", "n is 2", Structured({"n": 2}), ArtifactRef("d1", 9, "text/plain", "pre")),
        user("go"),
    ]
    text = json.dumps(dialect.to_wire(messages))
    assert "today is Monday" in text
    assert '{\\"n\\":1}' in text or '{"n": 1}' in text
    assert "n is 2" in text
    assert "pre" in text
    assert '{\\"n\\":2}' not in text


@every_dialect
def test_images_are_sent_and_those_of_results_find_a_place(dialect: Dialect) -> None:
    """PV-13: inline bytes and addresses; an image of a result goes where the API has a place for it."""
    png = Image("image/png", data=b"\x89PNG")
    messages = [
        user("look", png, Image("image/png", url="https://example.invalid/a.png")),
        calls(ToolCall("c1", "f"), ToolCall("c2", "f")),
        result("c1", "shot", png),
        result("c2", "none"),
        user("go"),
    ]
    request = dialect.to_wire(messages)
    assert problems(dialect.name, request) == []
    text = json.dumps(request)
    assert text.count("iVBORw==") + text.count("iVBORw") >= 2
    assert "example.invalid/a.png" in text


@every_dialect
def test_what_cannot_be_carried_is_an_error_and_not_left_out(dialect: Dialect) -> None:
    """AC-116: bytes that are not loaded, kinds that the dialect has no place for."""
    from pilothouse.providers.content import CannotCarry

    held = ArtifactRef("d", 3, "image/png")
    for part in (Image("image/png", artifact=held), File("application/x-unknown", artifact=held)):
        with pytest.raises(CannotCarry, match=part.mime_type):
            dialect.to_wire([user("see", part)])


@every_dialect
def test_text_files_are_sent(dialect: Dialect) -> None:
    """A small text file needs no file API."""
    request = dialect.to_wire([user("read", File("text/csv", data=b"a,b\n1,2", filename="t.csv"))])
    assert "t.csv" in json.dumps(request)


@every_dialect
def test_writing_does_not_change_the_messages(dialect: Dialect) -> None:
    """LP-2: payload is not transcript."""
    messages = [user("a"), calls(ToolCall("c1", "f", {"x": [1]})), result("c1", "r"), user("b")]
    before = msgspec.json.encode(messages)
    dialect.to_wire(messages)
    assert msgspec.json.encode(messages) == before


PDF = File("application/pdf", data=b"%PDF", filename="a.pdf")
WAV = Audio("audio/wav", data=b"RIFF")
FILM = Video("video/mp4", url="https://example.invalid/a.mp4")


@pytest.mark.parametrize(
    ("dialect", "part", "sent"),
    [
        ("openai-chat", PDF, {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}}),
        ("openai-chat", WAV, {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}),
        ("openai-chat", FILM, None),
        ("openai-chat", Audio("audio/ogg", data=b"x"), None),
        ("openai-responses", PDF, {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}),
        ("openai-responses", File("application/pdf", url="https://x.invalid/a"), {"type": "input_file", "file_url": "https://x.invalid/a"}),
        ("openai-responses", WAV, None),
        ("anthropic", PDF, {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}, "title": "a.pdf"}),
        ("anthropic", Image("image/png", url="https://x.invalid/a"), {"type": "image", "source": {"type": "url", "url": "https://x.invalid/a"}}),
        ("anthropic", WAV, None),
        ("gemini", PDF, {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}}),
        ("gemini", WAV, {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}),
        ("gemini", FILM, {"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.invalid/a.mp4"}}),
        ("gemini", File("application/zip", data=b"x"), None),
    ],
)  # fmt: skip
def test_media_find_their_place_or_are_refused(dialect: str, part: Any, sent: Any) -> None:
    """AC-116: what a dialect has no place for is an error that names it, in questions and in results."""
    from pilothouse.providers.content import CannotCarry

    messages = [user("see", part)]
    if sent is None:
        with pytest.raises(CannotCarry, match=part.mime_type):
            BY_NAME[dialect].to_wire(messages)
        with pytest.raises(CannotCarry, match=part.mime_type):
            BY_NAME[dialect].to_wire([user("q"), calls(ToolCall("c", "f")), result("c", "x", part)])
    else:
        (message,) = BY_NAME[dialect].to_wire(messages)
        assert sent in (message.get("content") or message["parts"])


@every_dialect
def test_what_a_model_made_is_told_where_it_cannot_be_sent(dialect: Dialect) -> None:
    """An image that a model answered with has no place in its message: it is named, the send does not fail."""
    made = Message("a", "assistant", (Text("here"), Image("image/png", data=b"x", filename="cat.png")))
    request = dialect.to_wire([user("draw"), made, user("again")])
    assert problems(dialect.name, request) == []
    assert "cat.png" in json.dumps(request)
