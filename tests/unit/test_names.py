"""Names that a run has used up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.names import Names

TEXTS = st.text(max_size=8)


@given(
    st.lists(st.tuples(st.sampled_from(["message", "call"]), TEXTS)),
    st.sampled_from(["message", "call"]),
    TEXTS,
)
def test_it_has_what_was_added_and_nothing_else(added: list[tuple[str, str]], kind: str, name: str) -> None:
    """A set of pairs of kind and name, each counted once."""
    names = Names()
    for pair in added:
        names.add(*pair)
    assert len(names) == len(set(added))
    assert names.has(kind, name) == ((kind, name) in added)
    assert all(names.has(*pair) for pair in added)


def test_a_copy_goes_its_own_way() -> None:
    """The look-ahead of a writer is thrown away when its append fails."""
    names = Names()
    names.add("message", "m1")
    twin = names.copy()
    twin.add("message", "m2")
    names.add("message", "m3")
    assert [names.has("message", name) for name in ("m1", "m2", "m3")] == [True, False, True]
    assert [twin.has("message", name) for name in ("m1", "m2", "m3")] == [True, True, False]


def test_a_lone_surrogate_is_a_name_like_any_other() -> None:
    """RC-4: no text makes a check fail."""
    names = Names()
    names.add("message", "\ud800")
    assert names.has("message", "\ud800")
