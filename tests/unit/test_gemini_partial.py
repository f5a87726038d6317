"""Gemini calls whose arguments come in pieces (PV-5, PV-6, PV-7)."""

from __future__ import annotations

import json

import pytest

from pilothouse.providers.decode import assemble, decode
from pilothouse.providers.gemini import to_wire
from pilothouse.testing.fuzz import one_byte_reads


def body(*parts: dict, reason: str | None = "STOP") -> bytes:
    """One chunk a part."""
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}}]} for part in parts]
    if reason:
        chunks.append({"candidates": [{"finishReason": reason}]})
    return "".join(f"data: {json.dumps(item)}\n\n" for item in chunks).encode()


def begins(name: str, **more) -> dict:
    return {"functionCall": {"name": name, "willContinue": True, **more}}


def piece(path: str, *, on: bool = False, call_on: bool = True, **value) -> dict:
    part = {"jsonPath": path, **value, **({"willContinue": True} if on else {})}
    return {"functionCall": {"partialArgs": [part], **({"willContinue": True} if call_on else {})}}


END = {"functionCall": {}}


def test_values_find_their_places() -> None:
    """Strings in parts, numbers, null, lists, quoted keys; whatever the reads."""
    raw = body(
        begins("f", id="w1"),
        piece("$.city", stringValue="New ", on=True),
        piece("$.city", stringValue="Delhi", on=True),
        piece("$.city", stringValue=""),
        piece("$.days[0].n", numberValue=1),
        piece("$.days[0].dry", boolValue=False),
        piece("$.days[1]['a b']", nullValue="NULL_VALUE"),
        piece("$.days[2]", stringValue="x"),
        piece("$.city", stringValue="Delhi"),  # not a part any more: it replaces
        END,
    )
    wanted = {"city": "Delhi", "days": [{"n": 1, "dry": False}, {"a b": None}, "x"]}
    for chunks in ([raw], one_byte_reads(raw)):
        got = decode("gemini", chunks)
        assert got["tool_calls"] == [{"id": "w1", "name": "f", "args": wanted}]
        assert got["terminal"] == "tool_calls"


def test_several_calls_one_after_the_other() -> None:
    """Same names, with and without ids, whole ones between; signatures stay with theirs."""
    raw = body(
        {**begins("f"), "thoughtSignature": "s1"},
        piece("$.n", numberValue=1),
        END,
        {"functionCall": {"name": "f", "args": {"n": 2}}},
        begins("f", id="x"),
        piece("$.n", numberValue=3, call_on=False),
        begins("g"),
        END,
    )
    assembly = assemble("gemini", [raw])
    assert [(call.tool, call.arguments, call.args_error) for call in assembly.message().tool_calls] == [
        ("f", {"n": 1}, None), ("f", {"n": 2}, None), ("f", {"n": 3}, None), ("g", {}, None)
    ]  # fmt: skip
    *_, content = to_wire([assembly.message()], "gemini")
    assert [part.get("thoughtSignature") for part in content["parts"]] == ["s1", None, None, None]


@pytest.mark.parametrize(
    "parts",
    [
        [begins("f"), piece("$.a", stringValue="rm -rf /tmp", on=True)],
        [begins("f")],
        [begins("f"), piece("$.a", numberValue=1), {"functionCall": {"name": "g", "args": {}}}],
        [begins("f"), piece("a.b", numberValue=1), END],
        [begins("f"), piece("$..a", numberValue=1), END],
        [begins("f"), piece("$", stringValue="x"), END],
        [begins("f"), piece("$.a[3]", numberValue=1), END],
        [begins("f"), piece("$.a", numberValue=1), piece("$.a.b", numberValue=1), END],
        [begins("f"), piece("$[0]", numberValue=1), END],
        [begins("f"), piece("$.a"), END],
    ],
    ids=range(10),
)
def test_what_is_cut_or_fits_nowhere_is_never_run(parts: list[dict]) -> None:
    """PV-6: its text is kept, it has no arguments."""
    first = decode("gemini", body(*parts))["tool_calls"][0]
    assert first["name"] == "f"
    assert first.get("args_error") is True


def test_a_long_string_is_joined_once() -> None:
    """In 10-byte parts."""
    parts = [piece("$.a", stringValue="0123456789", on=True) for _ in range(20_000)]
    (call,) = assemble("gemini", [body(begins("f"), *parts, END)]).message().tool_calls
    assert len(call.arguments["a"]) == 200_000


@pytest.mark.parametrize(("reason", "terminal"), [(None, "unknown"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter")])  # fmt: skip
def test_the_end_is_the_dialects_own(reason: str | None, terminal: str) -> None:
    """A call that was cut does not make a finish."""
    got = decode("gemini", body(begins("f"), piece("$.a", stringValue="x", on=True), reason=reason))
    assert got["terminal"] == terminal
