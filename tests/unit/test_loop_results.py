"""What tools return, as content that a journal keeps and a model reads."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from pilothouse.core.canonical import encode
from pilothouse.loop.results import NO_OUTPUT, BadResult, Content, content_of, to_json
from pilothouse.loop.tools import ToolResult
from pilothouse.messages import Image, Reasoning, Structured, Text


@dataclass
class Tide:
    at: dt.datetime
    heights: set[int]


class Model(BaseModel):
    day: dt.date
    level: float


class Colour(Enum):
    RED = "red"


MOMENT = dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("hi", Content((Text("hi"),))),
        (None, Content((Text(NO_OUTPUT),))),
        ("", Content((Text(NO_OUTPUT),))),
        ([], Content((Text(NO_OUTPUT),))),
        ((), Content((Text(NO_OUTPUT),))),
        (0, Content((Text("0"), Structured(0)))),
        (False, Content((Text("false"), Structured(False)))),
        ({}, Content((Text("{}"), Structured({})))),
        (Text("a"), Content((Text("a"),))),
        ([Text("a"), Text("")], Content((Text("a"),))),
        (Text(""), Content((Text(NO_OUTPUT),))),
        (Image("image/png", data=b"x"), Content((Image("image/png", data=b"x"),))),
        (Structured({"a": {2, 1}}), Content((Structured({"a": [1, 2]}),))),
        (["a", 1], Content((Text('["a", 1]'), Structured(["a", 1])))),
        (
            Tide(MOMENT, {3, 1}),
            Content(
                (
                    Text('{"at": "2026-01-02T03:04:00+00:00", "heights": [1, 3]}'),
                    Structured({"at": "2026-01-02T03:04:00+00:00", "heights": [1, 3]}),
                )
            ),
        ),
        (
            Model(day=dt.date(2026, 1, 2), level=float("nan")),
            Content(
                (
                    Text('{"day": "2026-01-02", "level": null}'),
                    Structured({"day": "2026-01-02", "level": None}),
                )
            ),
        ),
        (ToolResult((Text("no"),), is_error=True), Content((Text("no"),), True)),
        (ToolResult(), Content((Text(NO_OUTPUT),))),
        (
            ToolResult(structured={"a": 1}, terminate=True),
            Content((Text('{"a": 1}'), Structured({"a": 1})), False, True),
        ),
        (ToolResult((Text("t"),), {"a": 1}), Content((Text("t"), Structured({"a": 1})))),
    ],
)
def test_each_kind_of_result_has_its_content(value: Any, content: Content) -> None:
    """TL-13, TL-14"""
    assert content_of(value) == content


@pytest.mark.parametrize(
    ("value", "json"),
    [
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.time(3, 4), "03:04:00"),
        (dt.timedelta(minutes=1), 60.0),
        ({1: "a", None: "b", 2.5: "c"}, {"1": "a", "None": "b", "2.5": "c"}),
        ({"b", "a"}, ["a", "b"]),
        (frozenset({2, "a"}), [2, "a"]),
        ([b"\x00\x01"], ["AAE="]),
        ([float("inf"), float("nan"), 1.5], [None, None, 1.5]),
        ("a\x00b\ud800", "a\ufffdb\ufffd"),
        ({"\ud800": 1}, {"\ufffd": 1}),
        (Colour.RED, "red"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (10**30, 10**30),
        (Reasoning("r"), {"text": "r", "raw": None, "tag": "", "redacted": False, "provider_data": None}),
    ],
)
def test_any_value_becomes_json_that_a_journal_takes(value: Any, json: Any) -> None:
    """TL-13, [100] [101]"""
    assert to_json(value) == json
    encode(to_json(value))


def _circular() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("value", "named"),
    [(b"raw", "Image or a File"), (object(), "object"), ([lambda: 1], "function"), (_circular(), "deeper")],
)
def test_what_has_no_json_form_is_named(value: Any, named: str) -> None:
    """TL-13, [101]"""
    with pytest.raises(BadResult, match=named):
        content_of(value)
