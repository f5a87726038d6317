"""Notes of a shared state (TC-120, TC-121); the operations themselves are tested with `core.jsonpatch`."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.jsonpatch import PatchError
from pilothouse.core.state_notes import escaped, noted

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(), JSON, max_size=4)


@given(OBJECTS, OBJECTS)
def test_keys_replace_whole_branches(state, patch) -> None:
    """TC-121: whatever the keys are called; what was given is not changed."""
    before = deepcopy(state)
    delta = [{"op": "add", "path": f"/{escaped(key)}", "value": value} for key, value in patch.items()]
    assert noted(state, {"delta": delta}) == {**state, **patch}
    assert noted(state, {"snapshot": patch}) == patch
    assert state == before


@pytest.mark.parametrize(
    "note",
    [
        None,
        5,
        {},
        {"snapshot": 5},
        {"delta": "x"},
        [],
        {"delta": [{"op": "replace", "path": "", "value": 5}]},
    ],
)
def test_what_is_no_note(note) -> None:
    """TC-120: a note that does not apply changes nothing."""
    with pytest.raises(PatchError):
        noted({"a": 1}, note)
