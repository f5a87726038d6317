"""JSON Patch over a shared state (RFC 6902): all or nothing, nothing given is changed."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.state_patch import PatchError, noted, patched


@pytest.mark.parametrize(
    ("document", "operations", "expected"),
    [
        # RFC 6902, appendix A
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["a", "b"]}, [{"op": "add", "path": "/foo/1", "value": "q"}], {"foo": ["a", "q", "b"]}),
        ({"a": 1, "foo": "b"}, [{"op": "remove", "path": "/a"}], {"foo": "b"}),
        ({"foo": ["a", "q", "b"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["a", "b"]}),
        ({"a": 1, "b": 2}, [{"op": "replace", "path": "/a", "value": "x"}], {"a": "x", "b": 2}),
        (
            {"foo": {"bar": "baz", "w": "f"}, "qux": {"c": "g"}},
            [{"op": "move", "from": "/foo/w", "path": "/qux/t"}],
            {"foo": {"bar": "baz"}, "qux": {"c": "g", "t": "f"}},
        ),
        ({"foo": [1, 2, 3, 4]}, [{"op": "move", "from": "/foo/1", "path": "/foo/3"}], {"foo": [1, 3, 4, 2]}),
        ({"baz": "qux", "foo": ["a", 2, "c"]}, [{"op": "test", "path": "/foo/1", "value": 2}], None),
        (
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"g": {}}}],
            {"foo": "bar", "child": {"g": {}}},
        ),
        ({"foo": "bar"}, [{"op": "add", "path": "/b", "value": 1, "xyz": 123}], {"foo": "bar", "b": 1}),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], None),
        ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["a"]}], {"foo": ["bar", ["a"]]}),
        ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    ],
)
def test_operations(document, operations, expected) -> None:
    before = deepcopy(document)
    assert patched(document, operations) == (before if expected is None else expected)
    assert document == before


@pytest.mark.parametrize(
    ("document", "operation"),
    [
        ({"a": 1}, {"op": "test", "path": "/a", "value": 2}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": True}),
        ({"a": 1}, {"op": "test", "path": "/a", "value": "1"}),
        ({"a": 1}, {"op": "remove", "path": "/b"}),
        ({"a": 1}, {"op": "replace", "path": "/b", "value": 1}),
        ({"a": 1}, {"op": "add", "path": "/b/c", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/3", "value": 1}),
        ({"a": [1]}, {"op": "add", "path": "/a/01", "value": 1}),
        ({"a": [1]}, {"op": "remove", "path": "/a/-"}),
        ({"a": {"b": 1}}, {"op": "move", "from": "/a", "path": "/a/b/c"}),
        ({"a": 1}, {"op": "add", "path": "/b"}),
        ({"a": 1}, {"op": "spin", "path": "/b"}),
        ({"a": 1}, {"path": "/b"}),
        ({"a": 1}, {"op": "remove", "path": "b"}),
        ({"a": 1}, {"op": "remove", "path": 5}),
        ({"a": 1}, {"op": "replace", "path": "", "value": 5}),
        ({"a": 1}, "remove"),
    ],
)
def test_what_cannot_be_applied(document, operation) -> None:
    """The error names the operation; nothing was changed, earlier operations included."""
    before = deepcopy(document)
    with pytest.raises(PatchError):
        patched(document, [{"op": "add", "path": "/first", "value": 1}, operation])
    assert document == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_keys_replace_whole_branches(state, patch) -> None:
    """TC-121: whatever the keys are called."""
    operations = [
        {"op": "add", "path": "/" + key.replace("~", "~0").replace("/", "~1"), "value": value}
        for key, value in patch.items()
    ]
    assert noted(state, {"delta": operations}) == {**state, **patch}
    assert noted(state, {"snapshot": patch}) == patch


@pytest.mark.parametrize("note", [None, 5, {}, {"snapshot": 5}, {"delta": "x"}, []])
def test_what_is_no_note(note) -> None:
    with pytest.raises(PatchError):
        noted({}, note)
