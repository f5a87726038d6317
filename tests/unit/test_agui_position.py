"""Positions in a projected stream (server page §5)."""

from __future__ import annotations

import pytest

from pilothouse.core.agui.position import Position, read

TAG = "9f2c01ab"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("18", Position(18)),
        ("17.1-57", Position(17, 1, 57)),
        ("17.1-57e", Position(17, 1, 57, True)),
        ("18:2", Position(18, nth=2)),
        ("17.0-0:1", Position(17, 0, 0, False, 1)),
        ("17.0-57e:1", Position(17, 0, 57, True, 1)),
    ],
)
def test_every_form_reads_back(text: str, place: Position) -> None:
    """The forms of the page, both ways."""
    assert read(f"{text}~{TAG}") == (place, TAG)
    assert place.write(TAG) == f"{text}~{TAG}"


def test_positions_compare_as_a_stream_passes_them() -> None:
    """SV-44: strictly rising."""
    forms = [
        "17:1",
        "17:2",
        "17",
        "17.0-0:1",
        "17.0-0:2",
        "17.0-5",
        "17.0-57",
        "17.0-57e:1",
        "17.0-57e",
        "17.1-0:1",
    ]
    forms += ["17.1-3", "18.1-9", "18.1-9e", "19:1", "19"]
    places = [read(f"{form}~{TAG}")[0] for form in forms]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "text", ["", "x", "18", "18~", "18~xyz", "-1~9f2c01ab", "18.1~9f2c01ab", "1٣~9f2c01ab", "18~9f2c01ab\n18"]
)
def test_what_is_no_position_is_none(text: str) -> None:
    """SV-47: malformed means start over, never an error."""
    assert read(text) is None
