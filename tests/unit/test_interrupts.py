"""The phases of an interrupt batch: the whole table, and what an answer must be (AG-130 … AG-139)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from msgspec import UNSET

from pilothouse.agent_errors import RequestPending, ResumeInvalid, StaleInterrupt
from pilothouse.core.interrupts import MOVES, RESTORED, Decision, IllegalStep, Interrupts, Step
from pilothouse.loop.jsonschema import problems_of
from pilothouse.projection import Interrupt, InterruptAnswer

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def pending(*items: Interrupt) -> Interrupts:
    book = Interrupts()
    book.see(items or (Interrupt("i1"),), "run", native=True)
    book.step(Step.BOUNDARY)
    return book


def check(book: Interrupts, value: object, **more):
    return book.check(value, now=NOW, problems_of=problems_of, **more)


@pytest.mark.parametrize("phase", list(MOVES))
@pytest.mark.parametrize("step", list(Step))
def test_each_step_is_in_the_table_or_refused(phase, step) -> None:
    """§3.9: absent means illegal, and nothing changed."""
    book = pending()
    book.phase = phase
    if step in MOVES[phase]:
        assert book.admits(step)
        book.step(step)
        assert book.phase == MOVES[phase][step]
        assert (book.batch == ()) == (book.phase == "none")
    else:
        assert not book.admits(step)
        with pytest.raises(IllegalStep, match=step.name):
            book.step(step)
        assert book.phase == phase


def test_every_phase_is_reached_and_left() -> None:
    """§3.9: no phase is a dead end, none is out of reach."""
    reached = {after for row in MOVES.values() for after in row.values()}
    assert reached == set(MOVES)
    assert all(MOVES[phase] for phase in MOVES)
    assert set(RESTORED.values()) <= set(MOVES)


def test_uncertain_is_left_by_evidence_only() -> None:
    """AG-102, §3.9: no claim, no retry."""
    for phase in ("uncertain", "recovery-required"):
        assert set(MOVES[phase]) == {Step.RESTORED_DONE, Step.RESTORED_PENDING, Step.CLOSED}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], "empty"),
        ([InterruptAnswer("i1")], "i2: not answered"),
        (
            [InterruptAnswer("i1"), InterruptAnswer("i1"), InterruptAnswer("i2")],
            "i1: answered more than once",
        ),
        ([InterruptAnswer("i1"), InterruptAnswer("i2"), InterruptAnswer("x")], "x: no such request"),
        (
            [InterruptAnswer("i1", "cancelled", 1), InterruptAnswer("i2")],
            "i1: a cancelled answer has no payload",
        ),
        ([InterruptAnswer("i1"), InterruptAnswer("i2", payload=5)], "i2: payload"),
        (True, "2 requests are open"),
        ("text", "2 requests are open"),
    ],
)
def test_answers_that_do_not_fit(value, said) -> None:
    """AG-131, AG-132: one line for each id and why; the batch stays."""
    book = pending(Interrupt("i1"), Interrupt("i2", response_schema={"type": "string"}))
    with pytest.raises(ResumeInvalid) as error:
        check(book, value)
    assert said in str(error.value)
    assert book.phase == "pending"
    assert len(book.batch) == 2


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_null_like_answers_are_answers(value) -> None:
    """AG-71: given is not truthy; only an empty *list of answers* is none."""
    book = pending()
    if value == []:
        with pytest.raises(ResumeInvalid):
            check(book, value)
    else:
        (answer,) = check(book, value)
        assert answer.payload == value
        assert answer.payload is not UNSET


def test_what_has_expired_can_only_be_cancelled() -> None:
    """AG-131: also one whose expiry could not be read, which is in the past."""
    book = pending(Interrupt("i1", expires_at=NOW), Interrupt("i2", expires_at=NOW + timedelta(seconds=1)))
    with pytest.raises(ResumeInvalid, match="i1: it has expired"):
        check(book, [InterruptAnswer("i1"), InterruptAnswer("i2")])
    assert len(check(book, [InterruptAnswer("i1", "cancelled"), InterruptAnswer("i2")])) == 2


def test_answers_to_another_batch_are_stale() -> None:
    """AG-133, AG-135: the generation rises even if ids repeat."""
    book = pending()
    first = book.generation
    for step in (Step.CLAIM, Step.SENT, Step.STARTED):
        book.step(step)
    book.see((Interrupt("i1"),), "run2", native=True)
    book.step(Step.BOUNDARY)
    assert book.generation == first + 1
    with pytest.raises(StaleInterrupt) as error:
        check(book, True, generation=first)
    assert (error.value.expected, error.value.actual) == (first, first + 1)
    assert check(book, True, generation=first + 1)


def test_one_decision_owns_a_batch() -> None:
    """AG-130: while it is on its way, and while an unsent one is kept."""
    book = pending()
    book.step(Step.CLAIM)
    with pytest.raises(RequestPending):
        check(book, True)
    book.decision = Decision("d", "run", "{}")
    book.step(Step.UNSENT)
    with pytest.raises(RequestPending, match="retry"):
        check(book, True)
    with pytest.raises(RequestPending, match="i1"):
        book.check_open("submit")


def test_two_tellings_of_one_pause_are_one() -> None:
    """AG-136: in both orders the native one wins, the generation rises once."""
    for first, second in ((True, False), (False, True)):
        book = Interrupts()
        for native in (first, second):
            book.see((Interrupt("native" if native else "notice"),), "run", native=native)
        assert book.batch == (Interrupt("native"),)
        assert book.generation == 1
        book.step(Step.BOUNDARY)
        book.see((Interrupt("late"),), "run", native=False)
        assert book.batch == (Interrupt("native"),)


def test_late_sightings_of_a_claimed_batch_mean_nothing() -> None:
    """AG-135."""
    book = pending()
    book.step(Step.CLAIM)
    book.see((Interrupt("late"),), "run", native=True)
    assert (book.phase, book.batch, book.generation) == ("claimed", (Interrupt("i1"),), 1)


@pytest.mark.parametrize("batch", [(), (Interrupt("a"), Interrupt("a"))])
def test_an_impossible_batch_is_refused(batch) -> None:
    """AG-134."""
    with pytest.raises(ValueError, match="at least one"):
        Interrupts().see(batch, "run", native=True)


def test_true_and_false_answer_an_approval() -> None:
    """AG-142: where the answer is an object with `approved`."""
    schema = {"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]}
    book = pending(Interrupt("i1", response_schema=schema))
    (answer,) = check(book, False)
    assert answer.payload == {"approved": False}


@pytest.mark.parametrize("phase", list(MOVES))
def test_a_record_survives_and_is_read_with_care(phase) -> None:
    """AG-139: whoever was at work when it was written is gone."""
    book = pending(Interrupt("i1", expires_at=NOW, metadata={"a": [1]}))
    book.decision = Decision("d", "run", "{}")
    book.phase = phase
    if phase == "none":
        book.batch = ()
    fresh = Interrupts()
    fresh.load(book.dump())
    assert fresh.phase == RESTORED.get(phase, phase)
    assert (fresh.batch, fresh.generation, fresh.decision) == (book.batch, book.generation, book.decision)


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"phase": "dancing"}, {"extra": 1}, {"batch": []}, {"generation": "one"}],
)
def test_records_of_unknown_shape_are_refused(change) -> None:
    """AG-139: not guessed."""
    record = msgspec.json.decode(pending().dump()) | change
    book = Interrupts()
    with pytest.raises(ValueError, match="unknown shape"):
        book.load(msgspec.json.encode(record))
    assert book.phase == "none"
