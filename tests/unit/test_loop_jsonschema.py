"""Ready schemas of strangers: checked where that makes sense and ends (TL-18, MC-12)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from pilothouse.loop.jsonschema import problems_of
from pilothouse.loop.patterns import found

HOSTILE = [
    ("(a+)+$", "a" * 40 + "!"),
    ("^(a|aa)+$", "a" * 60 + "!"),
    ("a*a*a*a*a*b", "a" * 3000),
    ("(x?){64}y", "x" * 30),
    ("x?" * 40 + "x" * 40, "x" * 39),
    (".*.*.*.*=.*", "x" * 5000),
    ("((a{1,50}){1,50}){1,50}$", "a" * 60 + "!"),
    ("(?=(a+)+b)a", "a" * 60),
    (r"(a*)\1\1\1b", "a" * 3000),
    ("(", "x"),
    ("a" * 5000, "a"),
]


@pytest.mark.parametrize(("pattern", "text"), HOSTILE)
def test_a_pattern_that_could_take_too_long_is_not_asked(pattern: str, text: str) -> None:
    """It constrains nothing here; the server that wrote it checks it again."""
    began = time.monotonic()
    assert found(pattern, text) is None
    assert problems_of({"a": text}, {"properties": {"a": {"pattern": pattern}}}) == []
    assert time.monotonic() - began < 1


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"^-?\d+(\.\d+)?$", "-12.5", "12.x"),
        (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", "me@x.org", "me at x"),
        (r"^\d{4}-\d{2}-\d{2}$", "2025-01-31", "2025-1-31"),
        ("^(foo|bar)$", "bar", "foobar"),
        ("[a-z]", "x" * 1000, "7"),
        (r"^(\d{3}-){2}\d{4}$", "555-123-4567", "555-1234567"),
        (r"^[])]$", ")", "("),
    ],
)
def test_patterns_as_people_write_them_are_asked(pattern: str, good: str, bad: str) -> None:
    """TL-18."""
    schema: Any = {"properties": {"a": {"pattern": pattern}}}
    assert problems_of({"a": good}, schema) == []
    assert problems_of({"a": bad}, schema) == [f"a: should match {pattern}"]


def test_references_that_multiply_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """MC-12: a small schema of local references alone must not stop the program."""
    began = time.monotonic()
    schema: Any = {"anyOf": [{"$ref": "#"}, {"$ref": "#"}], "type": "object"}
    assert "too many comparisons" in problems_of({"a": 1}, schema)[0]
    assert time.monotonic() - began < 5


def test_large_arguments_are_no_reason() -> None:
    """The limit grows with what is given."""
    item: Any = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcde"}}
    schema: Any = {"properties": {"rows": {"type": "array", "items": item, "uniqueItems": True}}}
    rows: list[Any] = [dict.fromkeys("abcde", at) for at in range(20_000)]
    assert problems_of({"rows": rows}, schema) == []
    assert problems_of({"rows": [*rows, rows[0]]}, schema) == ["rows: should have no item twice"]
    assert problems_of({"rows": [{"a": 1}, {"a": True}]}, schema) == ["rows[1].a: should be integer"]


def test_a_keyword_whose_own_value_makes_no_sense_constrains_nothing() -> None:
    """A server that lies about its schema: nothing raises, the rest of the schema is still asked."""
    schema: Any = {
        "properties": [], "required": 3, "minimum": "x", "enum": 7, "anyOf": {}, "type": 5, "$ref": "#/nowhere",
        "items": 7, "prefixItems": {}, "allOf": 3, "pattern": 5, "maxLength": "a", "patternProperties": [1],
        "const": {"b": 1},
    }  # fmt: skip
    assert problems_of({"a": 1}, schema) == ["arguments: should be {'b': 1}"]
    assert problems_of({"a": [1]}, {"properties": {"a": schema | {"const": [1]}}}) == []
    assert problems_of({"a": "x"}, {"properties": {"a": schema | {"const": "x"}}}) == []
