"""The handed wire fixtures as test cases: bodies, how they are delivered, what must come out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from pilothouse.testing.fuzz import one_byte_reads, random_split

FIXTURES = Path(__file__).parent / "fixtures"
INDEX = {entry["id"]: entry for entry in json.loads((FIXTURES / "index.json").read_text("utf-8"))["fixtures"]}

ENDS = {"clean_eof": "eof", "reset": "reset", "held_open": "held-open"}
THINK = {"think_tag_parser": "explicit", "think_tag_parser_implicit_open": "implicit"}


class WireCase(NamedTuple):
    id: str
    dialect: str
    chunks: list[bytes]
    end: str
    status: int
    content_type: str
    think_tags: str
    expect: dict[str, Any]

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def options(self) -> dict[str, Any]:
        """How `decode` must be told about it."""
        return {"status": self.status, "end": self.end, "think_tags": self.think_tags}

    def compare(self, got: dict[str, Any]) -> None:
        """Asserts that a summary is what the fixture wants."""
        want = self.expect
        for word in ("terminal", "text", "reasoning"):
            assert got[word] == want[word], word
        assert got.get("error_kind") == want.get("error_kind")
        wanted = [dict(call) for call in want["tool_calls"]]
        calls = [dict(call) for call in got["tool_calls"]]
        for call, like in zip(calls, wanted, strict=True):
            assert call["id"]
            if like["id"] == "*":
                like["id"] = call["id"]
        assert calls == wanted
        assert len({call["id"] for call in calls}) == len(calls)
        for figure, value in want.get("usage", {}).items():
            assert got["usage"][figure] == value, figure


def wire_cases(*dialects: str) -> list[WireCase]:
    """All fixtures of kind wire and wire_chunks of some dialects."""
    cases = []
    for entry in INDEX.values():
        if entry["kind"] not in ("wire", "wire_chunks") or entry["dialect"] not in dialects:
            continue
        raw = (FIXTURES / entry["input"]).read_bytes()
        chunks = [raw]
        if entry["kind"] == "wire_chunks":
            chunks = [bytes.fromhex(item) for item in json.loads(raw)["chunks"]]
        cases.append(
            WireCase(
                f"{entry['id']}-{entry['name']}",
                entry["dialect"],
                chunks,
                ENDS[entry["transport_end"]],
                entry.get("http_status", 200),
                entry.get("content_type", "text/event-stream"),
                THINK.get(entry["expect"].get("needs", ""), "off"),
                entry["expect"],
            )
        )
    return cases


def deliveries(case: WireCase, *, splits: int, seed: int) -> Iterator[tuple[str, list[bytes]]]:
    """The ways in which a body may arrive: all must give the same result."""
    yield "own chunks", case.chunks
    yield "one read", [case.body]
    yield "1-byte reads", one_byte_reads(case.body)
    for number in range(splits):
        yield f"split with seed {seed + number}", random_split(case.body, seed + number)


class HistoryCase(NamedTuple):
    id: str
    dialect: str
    stored: list[dict[str, Any]]
    refused: bool  # as it is stored
    expect: dict[str, Any]


def history_cases(*dialects: str) -> list[HistoryCase]:
    """All fixtures of kind history that hold a stored conversation of some dialects."""
    cases = []
    for entry in INDEX.values():
        if entry["kind"] != "history" or entry["dialect"] not in dialects:
            continue
        held = json.loads((FIXTURES / entry["input"]).read_text("utf-8"))
        (stored,) = held["stored"].values()
        name = f"{entry['id']}-{entry['name']}"
        cases.append(
            HistoryCase(name, held["dialect"], stored, held["input_is_invalid_for_provider"], entry["expect"])
        )
    return cases


def problems(dialect: str, messages: list[Any]) -> list[str]:
    """What a strict provider would refuse: the handed judge."""
    return _judge().problems(dialect, messages)


@cache
def _judge() -> Any:
    spec = spec_from_file_location("valid_history", FIXTURES / "valid_history.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
