"""The projector over random runs: every stream is legal, and every cut can be resumed (SV-45, SV-48, SV-55, SV-79)."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aguikit import LEGACY, NAMES, Client, Tape, invent, project
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.ends import Names
from pilothouse.core.agui.frames import StartOver
from pilothouse.core.agui.position import read
from pilothouse.core.agui.project import Projector
from pilothouse.core.agui.verify import Phase, Verifier
from pilothouse.core.agui.wire import frame
from pilothouse.core.sse import SSEReader
from pilothouse.events import Delta, Noted
from pilothouse.records import Record

seeds = st.integers(0, 2**32)


def stream(tape: Tape, items=None, *, legacy: bool = False, full: bool = False, **options):
    """`full`: with everything that is told by option only: steps, the older notice of a pause, sealed reasoning."""
    names = LEGACY if legacy else NAMES
    if full:
        names = Names(
            names.thread_id,
            names.run_id,
            profile=names.profile,
            steps=True,
            on_interrupt=True,
            encrypted=True,
        )
    projector = Projector(names, **options)
    frames = project(tape.items if items is None else items, projector)
    return tape.fill(frames, "legacy" if legacy else "1.0")


@settings(max_examples=300, deadline=None)
@given(seeds, st.booleans(), st.booleans(), st.booleans())
def test_every_stream_is_legal_and_ends_once(seed: int, legacy: bool, joined: bool, full: bool) -> None:
    """Proof 1: legal in both profiles, exactly one terminal event, last, nothing left open; each frame reads back."""
    tape = invent(seed)
    verifier = Verifier("legacy" if legacy else "1.0")
    told = stream(tape, legacy=legacy, joined=joined, full=full)
    for event, _ in told:
        assert agui.decode(agui.encode(event)) == event
        verifier.check(event)
    assert verifier.phase in (Phase.FINISHED, Phase.FAILED)
    assert verifier.open == ()
    ends = [event for event, _ in told if isinstance(event, agui.RunFinished | agui.RunError)]
    assert ends == [told[-1][0]]


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_positions_rise_and_never_repeat(seed: int) -> None:
    """SV-44: ids of one connection rise strictly, and an id reads back as what it was."""
    tape = invent(seed)
    places = [place for _, place in stream(tape) if place is not None]
    assert all(before < after for before, after in itertools.pairwise(places))
    tag = tape.records[0].chain[:8]
    assert [read(place.write(tag)) for place in places] == [(place, tag) for place in places]


@settings(max_examples=300, deadline=None)
@given(seeds)
def test_the_journal_alone_tells_the_same(seed: int) -> None:
    """SV-45: a reader who comes when all is over sees what one saw who was there all the time."""
    tape = invent(seed)
    live = Client().take(event for event, _ in stream(tape))
    later = Client().take(event for event, _ in stream(tape, tape.records))
    assert live.shown() == later.shown()
    assert live.terminal == later.terminal
    assert live.notes == later.notes
    assert live.state == later.state
    if any(isinstance(record.fact, Noted) for record in tape.records):  # SV-80
        assert live.state == tape.shared()


def replay(tape: Tape, rng: random.Random) -> list[Record | Delta]:
    """What a follower gives who subscribes at some moment: facts from the journal, then live."""
    at = rng.randint(0, len(tape.items))
    ahead = rng.randint(at, len(tape.items))  # the journal is read a little later than the subscription
    read_ = [item for item in tape.items[:ahead] if type(item) is Record]
    seen = read_[-1].seq if read_ else 0
    rest = [item for item in tape.items[at:] if type(item) is Delta or item.seq > seen]
    return read_ + rest


@settings(max_examples=250, deadline=None)
@given(seeds, seeds)
def test_a_joiner_at_any_moment_sees_the_same(seed: int, moment: int) -> None:
    """SV-46, SV-48: never wrong, whatever it missed of the deltas; no text twice."""
    tape = invent(seed)
    items = replay(tape, random.Random(moment))
    whole = Client().take(event for event, _ in stream(tape))
    joined = Client().take(event for event, _ in stream(tape, items))
    assert joined.shown() == whole.shown()


@settings(max_examples=120, deadline=None)
@given(seeds, seeds, st.booleans(), st.booleans())
def test_every_cut_is_resumed_without_gap_or_repetition(
    seed: int, moment: int, joined: bool, full: bool
) -> None:
    """Proof 2: cut behind each frame and go on from its id: what was shown before and after is the whole stream."""
    tape, rng = invent(seed), random.Random(moment)
    told = stream(tape, joined=joined, full=full)
    whole = Client().take(event for event, _ in told)
    for number, (_, place) in enumerate(told):
        if place is None:
            continue
        before = [event for event, _ in told[: number + 1]]
        tag = tape.records[0].chain[:8]
        items = replay(tape, rng)
        try:
            after = stream(tape, items, cursor=place, tag=tag, joined=joined, full=full)
        except StartOver:
            # Only a reader who was told of a loss that was mended later.
            assert isinstance(told[number][0], agui.RunError)
            continue
        rest = [p for _, p in after if p is not None]
        if number + 1 < len(told):
            assert all(p > place for p in rest)
        both = Client().take([*before, *[event for event, _ in after]])
        assert both.shown() == whole.shown(), f"cut behind {place}"
        assert both.state == whole.state, f"cut behind {place}"
        assert both.terminal == whole.terminal
        if number + 1 < len(told):
            verifier = Verifier()
            for event in [*before, *[event for event, _ in after]]:
                verifier.check(event)


@settings(max_examples=150, deadline=None)
@given(seeds, st.booleans())
def test_what_a_reader_has_sent_itself_is_left_out_and_nothing_else_moves(seed: int, every: bool) -> None:
    """SV-44, SV-100: frames without the reader's own messages have the places that they have for all others."""
    tape = invent(seed)
    known = {f"s{turn}" for turn in range(1, 20) if every or turn % 2}
    mine = [frame for frame in project(tape.items, Projector(NAMES, known=known))]
    others = [frame for frame in project(tape.items) if getattr(frame.event, "message_id", "") not in known]
    assert mine == others


@pytest.mark.parametrize("tag", ["00000000", "ffffffff"])
def test_a_cursor_of_another_lifetime_starts_over(tag: str) -> None:
    """SV-47, fixture 151: an id that is used again is no false match."""
    tape = invent(1)
    with pytest.raises(StartOver):
        stream(tape, cursor=read(f"3~{tag}")[0], tag=tag)


def test_a_cursor_ahead_of_the_run_starts_over() -> None:
    """SV-47: a journal that lost its end."""
    tape = invent(1)
    with pytest.raises(StartOver):
        stream(tape, cursor=read("99999~00000000")[0])


def wire(tape: Tape, items, batch: random.Random | None, shared: dict | None = None) -> list[bytes]:
    """Frames as the pump writes them: flowing text the short way, what is there at once as one piece."""
    projector = Projector(NAMES)
    tag = tape.records[0].chain[:8]
    out: list[bytes] = []
    for item in items:
        flow = projector.flow
        if type(item) is Delta and flow is not None and flow.take(item):
            if batch is None or batch.random() < 0.5:
                out.append(flow.write(shared))
            continue
        if flow is not None:
            out.append(flow.write(shared))
        out += [frame(event, place, tag) for event, place in tape.fill(projector.feed(item))]
    if projector.flow is not None:
        out.append(projector.flow.write(shared))
    return [data for data in out if data]


@settings(max_examples=150, deadline=None)
@given(seeds)
def test_flowing_text_is_written_the_same_the_short_way(seed: int) -> None:
    """The bytes are those of the long way, also where another reader wrote them first."""
    tape = invent(seed)
    tag = tape.records[0].chain[:8]
    long: list[bytes] = []
    projector = Projector(NAMES)
    for item in tape.items:
        long += [frame(event, place, tag) for event, place in tape.fill(projector.feed(item))]
    shared: dict = {}
    assert wire(tape, tape.items, None) == long
    assert wire(tape, tape.items, None, shared) == long
    assert wire(tape, tape.items, None, shared) == long


@settings(max_examples=150, deadline=None)
@given(seeds, seeds)
def test_neighbouring_pieces_of_one_part_are_merged(seed: int, moment: int) -> None:
    """SV-43: after a slow write what is there is taken as one; nothing is lost, ids rise."""
    tape = invent(seed)

    def read_all(frames: list[bytes]) -> tuple[list[agui.Event], list]:
        found = SSEReader().feed(b"".join(frames))
        return [agui.decode(one.data) for one in found], [read(one.id)[0] for one in found if one.id]

    events, places = read_all(wire(tape, tape.items, random.Random(moment)))
    whole, _ = read_all(wire(tape, tape.items, None))
    assert Client().take(events).shown() == Client().take(whole).shown()
    assert all(before <= after for before, after in itertools.pairwise(places))
