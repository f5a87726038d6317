"""One run, two ways to a reader: its facts (`LocalAgent`) and its AG-UI stream (`AGUIAgent`) show the same (AG-181, AG-200)."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aguikit import NAMES, SPEC, Tape, invent, project
from pilothouse.agents.telling import Telling, told_history
from pilothouse.core.agui.project import Projector
from pilothouse.core.agui.reading import Reader
from pilothouse.core.agui.reduce import Reducer
from pilothouse.core.agui.wire import frame
from pilothouse.core.display import Display
from pilothouse.events import MessageAdded, ModelAttemptEnded, ModelRequested

seeds = st.integers(0, 2**32)


def clock() -> float:
    return 0.0


def told(tape: Tape, items=None) -> Display:
    """What `LocalAgent` shows of it."""
    display = Display(clock)
    display.add_user("u1", "hi")
    display.begin("g", SPEC.run_id)
    telling = Telling(display, SPEC.run_id)
    for item in tape.items if items is None else items:
        telling.take(item)
    display.end("success")
    return display


def streamed(tape: Tape, seed: int) -> Display:
    """What `AGUIAgent` shows of it, from bytes that come in random pieces."""
    frames = tape.fill(project(tape.items, Projector(NAMES, final_snapshot=seed % 2 == 0)))
    tag = tape.records[0].chain[:8]
    data = b"".join(frame(event, place, tag) for event, place in frames)
    reducer, reader, rng = Reducer(clock), Reader(), random.Random(seed)
    reducer.display.add_user("u1", "hi")
    reducer.begin("g", SPEC.run_id, continues=False)
    reducer.display.mark_sent("u1")
    while data:
        size = rng.randint(1, 200)
        for arrived in reader.feed(data[:size]):
            reducer.apply(arrived.event)
        data = data[size:]
    reducer.display.end("success")
    return reducer.display


def discarded(tape: Tape) -> set[str]:
    """Messages of attempts that were asked again."""
    found, asked = set(), ""
    for record in tape.records:
        if isinstance(record.fact, ModelRequested):
            asked = record.fact.message_id
        elif isinstance(record.fact, ModelAttemptEnded) and record.fact.end == "discarded":
            found.add(asked)
    return found


def whole(tape: Tape) -> set[str]:
    """Messages that were told to their end: the calls of others were never made."""
    return {record.fact.message.id for record in tape.records if isinstance(record.fact, MessageAdded)}


def shown(display: Display, tape: Tape) -> list[tuple]:
    found = []
    for item in display.messages:
        ids = tuple(sorted(item.tool_call_ids)) if item.id in whole(tape) else ()
        if item.role != "tool" and (item.text or item.reasoning or ids):
            found.append((item.id, item.role, item.text, item.reasoning or "", ids))
    return found


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_facts_and_stream_show_the_same(seed: int) -> None:
    """Answers, reasoning and calls, under the same ids; what a client was told of a discarded answer it keeps."""
    tape = invent(seed)
    local, remote = told(tape), streamed(tape, seed)
    gone = discarded(tape)
    assert [item for item in shown(remote, tape) if item[0] not in gone] == shown(local, tape)


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_deltas_change_nothing_in_the_end(seed: int) -> None:
    """RC-20: facts alone, facts and deltas, and deltas that come behind their facts: the same."""
    tape = invent(seed)
    expected = shown(told(tape), tape)
    assert shown(told(tape, tape.records), tape) == expected
    deltas = [item for item in tape.items if item not in tape.records]
    assert shown(told(tape, [*tape.records, *deltas]), tape) == expected


@settings(max_examples=200, deadline=None)
@given(seeds)
def test_the_record_shows_the_same(seed: int) -> None:
    """AG-181: what was followed equals what a fresh agent is shown."""
    tape = invent(seed)
    fresh = Display(clock)
    fresh.restore(told_history(tape.path(10**9)))
    assert shown(fresh, tape) == shown(told(tape), tape)
