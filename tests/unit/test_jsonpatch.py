"""JSON Patch: RFC 6902 by its own examples and rules; all or none; the document stays (AG-203)."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.jsonpatch import PatchError, apply_patch, equal

GOOD = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [{"op": "add", "path": "/foo/1", "value": "qux"}], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
    ({"baz": "qux"}, [{"op": "replace", "path": "/baz", "value": "boo"}], {"baz": "boo"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    ({"foo": ["all", "grass", "cows", "eat"]}, [{"op": "move", "from": "/foo/1", "path": "/foo/3"}], {"foo": ["all", "cows", "eat", "grass"]}),
    ({"baz": "qux", "foo": ["a", 2, "c"]}, [{"op": "test", "path": "/foo/1", "value": 2}], {"baz": "qux", "foo": ["a", 2, "c"]}),
    ({"foo": "bar"}, [{"op": "add", "path": "/child", "value": {"grandchild": {}}}], {"foo": "bar", "child": {"grandchild": {}}}),
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}], {"foo": "bar", "baz": "qux"}),
    ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
    ({"foo": ["bar"]}, [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}], {"foo": ["bar", ["abc", "def"]]}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    ({"a": 1}, [{"op": "add", "path": "", "value": [1]}], [1]),
    ({"": 1}, [{"op": "test", "path": "/", "value": 1}], {"": 1}),
    ({"a": [1, 2]}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/-", "value": 3}], {"a": [1, 2], "b": [1, 2, 3]}),
    ({"a": {"b": 1}}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": {"b": 1}}),
    ({"a": None}, [{"op": "test", "path": "/a", "value": None}], {"a": None}),
]  # fmt: skip

BAD = [
    [{"op": "test", "path": "/foo", "value": 1}],
    [{"op": "test", "path": "/flag", "value": 1}],  # True is not 1
    [{"op": "add", "path": "/no/such", "value": 1}],
    [{"op": "remove", "path": "/none"}],
    [{"op": "replace", "path": "/none", "value": 1}],
    [{"op": "add", "path": "/list/5", "value": 1}],
    [{"op": "add", "path": "/list/01", "value": 1}],
    [{"op": "add", "path": "/list/-1", "value": 1}],
    [{"op": "remove", "path": "/list/-"}],
    [{"op": "remove", "path": "/list/99999999999999999999"}],
    [{"op": "move", "from": "/obj", "path": "/obj/inner"}],
    [{"op": "copy", "from": "/none", "path": "/x"}],
    [{"op": "add", "path": "/x"}],
    [{"op": "add", "path": "x", "value": 1}],
    [{"op": "add", "path": "/a~2b", "value": 1}],
    [{"op": "add", "path": "/a~", "value": 1}],
    [{"op": "fly", "path": "/x"}],
    [{"path": "/x"}],
    [{"op": "add", "path": "/foo/deep", "value": 1}],
    ["no operation"],
    [{"op": "replace", "path": "/foo", "value": 2}, {"op": "remove", "path": "/none"}],
]


@pytest.mark.parametrize(("document", "operations", "after"), GOOD)
def test_operations_apply(document, operations, after) -> None:
    """AG-203, RFC 6902 appendix A: what was given is never changed."""
    before = deepcopy(document)
    assert equal(apply_patch(document, operations), after)
    assert document == before


@pytest.mark.parametrize("operations", BAD)
def test_what_does_not_apply_changes_nothing(operations) -> None:
    """AG-203: all operations or none."""
    document = {"foo": "bar", "flag": True, "list": [1, 2], "obj": {"inner": {}}}
    before = deepcopy(document)
    with pytest.raises(PatchError):
        apply_patch(document, operations)
    assert document == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~", max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~", max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)


def pointers(document, prefix=""):
    yield prefix
    if isinstance(document, dict):
        for key, value in document.items():
            yield from pointers(value, f"{prefix}/{key.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from pointers(value, f"{prefix}/{index}")


@given(JSON, JSON, st.data())
def test_random_patches_touch_only_the_result(document, value, data) -> None:
    """AG-203: whatever is done, the document that was given stays equal to its copy, and `test` sees what `add` did."""
    before = deepcopy(document)
    path = data.draw(st.sampled_from(list(pointers(document))))
    after = apply_patch(
        document,
        [{"op": "replace", "path": path, "value": value}, {"op": "test", "path": path, "value": value}],
    )
    assert document == before
    places = list(pointers(after))
    source, target = data.draw(st.sampled_from(places)), data.draw(st.sampled_from(places))
    try:
        moved = apply_patch(after, [{"op": "copy", "from": source, "path": target}])
    except PatchError:
        return
    assert list(pointers(moved))
    assert document == before
