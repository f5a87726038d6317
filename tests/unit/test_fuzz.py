"""The fuzzer of recorded bodies: the same damage for the same seed, and all dialects end exactly once."""

from __future__ import annotations

import random

import pytest

from pilothouse.providers.decode import DECODERS, decode, decoder_for
from pilothouse.responses import StreamEnd
from pilothouse.testing.fuzz import corruptions, cuts, deliveries, frame_borders
from wirekit import WireCase, wire_cases

SEED = random.randrange(10**6)
CASES = wire_cases(*DECODERS)


def test_the_same_seed_does_the_same_damage() -> None:
    """A failure can be played again."""
    body = CASES[0].body
    for make in (deliveries, cuts, corruptions):
        assert list(make(body, 7)) == list(make(body, 7))
        assert list(make(body, 7)) != list(make(body, 8))
    for variant in deliveries(body, 7):
        assert b"".join(variant.chunks).replace(b"\r\n", b"\n").replace(b"\r", b"\n") == body


def test_borders_are_where_frames_end() -> None:
    """All three line ends."""
    assert frame_borders(b"a\n\nb\r\n\r\nc\r\rd") == [3, 8, 11]
    assert next(iter(cuts(b"", 1))).chunks == [b""]
    assert list(corruptions(b"", 1, count=3))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_rubbish_is_a_typed_end(case: WireCase) -> None:
    """PV-1: whatever is damaged, there is one end, last, and nothing is raised."""
    print(f"seed {SEED}")
    for variant in (*cuts(case.body, SEED), *corruptions(case.body, SEED, count=60)):
        for cause in ("eof", "reset"):
            decoder = decoder_for(case.dialect, think_tags=case.think_tags)
            events = [event for chunk in variant.chunks for event in decoder.feed(chunk)]
            events += decoder.finish(cause)
            assert [type(event) for event in events].count(StreamEnd) == 1, variant.name
            assert isinstance(events[-1], StreamEnd), variant.name
        decode(case.dialect, variant.chunks, think_tags=case.think_tags)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_line_ends_and_reads_change_nothing(case: WireCase) -> None:
    """PV-12, with CRLF and CR too."""
    for variant in deliveries(case.body, SEED):
        case.compare(decode(case.dialect, variant.chunks, **case.options))
