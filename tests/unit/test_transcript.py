"""A run's messages from its facts: order, partial ones, where a retry goes on, what a runtime is given (RC-19, RC-68, RC-82)."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilothouse.core.transcript import (
    Compaction,
    Transcript,
    cut_after,
    for_runtime,
    last_exchange,
    wants_answer,
    with_results,
)
from pilothouse.events import (
    AnyFact,
    CallFinished,
    CallProposed,
    Cancelled,
    Completed,
    ContinuityLost,
    ContinuityRestored,
    Failed,
    HistoryCompacted,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    PartialSaved,
    RunAbandoned,
    RunEnded,
    TurnStarted,
)
from pilothouse.messages import Message, Reasoning, Text, ToolCall
from pilothouse.records import HistoryMessage, Record, RunSpec

INPUT = Message("u1", "user", (Text("hello"),))
SPEC = RunSpec("run", "thread", (INPUT,))


def told(*facts: AnyFact) -> Transcript:
    """The transcript after these facts, numbered from 2."""
    transcript = Transcript(SPEC)
    for seq, fact in enumerate(facts, 2):
        transcript.add(Record("run", seq, 0, "runtime", 1, f"e{seq}", fact, "", ""))
    return transcript


def said(message_id: str, text: str = "", *calls: str) -> MessageAdded:
    parts = (*([Text(text)] if text else []), *[ToolCall(call, "tool") for call in calls])
    return MessageAdded(Message(message_id, "assistant", parts), 1)


def asked(message_id: str) -> MessageAdded:
    return MessageAdded(Message(message_id, "user", (Text(message_id),)))


def result(call_id: str) -> CallFinished:
    return CallFinished(call_id, "succeeded", (Text(f"of {call_id}"),), attempt=1)


def piece(
    text: str, offset: int = 0, *, message_id: str = "a1", part: str = "text", index: int = 0, **more: str
) -> PartialSaved:
    return PartialSaved(message_id, part, index, offset, text, **more)


def ids(transcript: Transcript) -> list[str]:
    return [entry.message.id for entry in transcript.messages()]


# Order


@pytest.mark.parametrize("order", list(permutations(["c1", "c2", "c3", "c4"])))
def test_results_stand_in_call_order_whatever_the_finishing_order(order: tuple[str, ...]) -> None:
    """EF-2: behind the message that asked for them, also where others came in between."""
    first, *rest = order
    transcript = told(
        said("a1", "I call.", "c1", "c2"),
        said("a2", "More.", "c3", "c4"),
        result(first),
        asked("u2"),
        *map(result, rest),
    )
    assert ids(transcript) == ["u1", "a1", "result:c1", "result:c2", "a2", "result:c3", "result:c4", "u2"]
    found = {entry.message.id: entry for entry in transcript.messages()}
    assert found["result:c3"].message == Message("result:c3", "tool", (Text("of c3"),), call_id="c3")
    assert found["result:c3"].call_outcome == "succeeded"


def test_a_call_without_a_result_leaves_no_gap() -> None:
    """EF-2: its place is kept, nothing is shown in it."""
    assert ids(told(said("a1", "", "c1", "c2"), result("c2"))) == ["u1", "a1", "result:c2"]


def test_a_call_that_no_message_named_stands_where_it_was_proposed() -> None:
    """§3.3 `call_proposed`."""
    transcript = told(CallProposed("c1", "tool"), said("a1", "Meanwhile."), result("c1"))
    assert ids(transcript) == ["u1", "result:c1", "a1"]


def test_only_an_assistant_proposes_calls() -> None:
    """§3.14."""
    quoted = MessageAdded(Message("u2", "user", (ToolCall("c1", "tool"),)))
    assert ids(told(quoted, said("a1", "", "c1"), result("c1"))) == ["u1", "u2", "a1", "result:c1"]


def test_facts_that_say_nothing_of_messages_pass() -> None:
    """The numbers of the messages are those of their facts."""
    transcript = told(TurnStarted(1), Noted("n/x"), said("a1", "Hi."))
    assert [(entry.message.id, entry.seq) for entry in transcript.messages()] == [("u1", 1), ("a1", 4)]


# Partial messages


def test_fragments_make_a_message_that_is_marked() -> None:
    """RC-19: parts in order of their index, calls that were never proposed carry why."""
    transcript = told(
        ModelRequested(1, 1, "a1"),
        piece("Let me ", index=1),
        piece("think", part="reasoning"),
        piece("", part="arguments", index=3, call_id="c9", tool="pay"),
        piece("see.", 7, index=1),
        piece('{"a"', part="arguments", index=2, call_id="c8", tool="look"),
    )
    entry = transcript.messages()[1]
    assert (entry.complete, entry.end, entry.seq) == (False, "", 3)
    assert entry.message == Message(
        "a1",
        "assistant",
        (
            Reasoning("think"),
            Text("Let me see."),
            ToolCall("c8", "look", raw_arguments='{"a"', args_error="interrupted"),
            ToolCall("c9", "pay", args_error="interrupted"),
        ),
    )


@given(st.text(max_size=30), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=12))
def test_a_fragment_that_was_told_again_counts_once(text: str, cuts: list[tuple[int, int]]) -> None:
    """RC-20: the offset says what of it is new, wherever it was cut."""
    known, pieces = 0, []
    for begin, length in [*cuts, (len(text), 0)]:
        first = min(begin, known)
        pieces.append(piece(text[first : first + length], first))
        known = max(known, first + length)
    pieces.append(piece(text[min(known, len(text)) :], min(known, len(text))))
    assert told(*pieces).messages()[-1].message.text == text


def test_the_whole_message_supersedes_its_fragments_in_their_place() -> None:
    """RC-19; a fragment that comes after it changes nothing."""
    transcript = told(piece("Hel"), asked("u2"), said("a1", "Hello."), piece("lo", 3))
    assert ids(transcript) == ["u1", "a1", "u2"]
    entry = transcript.messages()[1]
    assert (entry.message.text, entry.complete, entry.seq) == ("Hello.", True, 4)


@pytest.mark.parametrize(
    ("ends", "end"),
    [
        ([ModelAttemptEnded(1, 1, "failed"), RunEnded(Failed("provider"))], "error"),
        ([ModelAttemptEnded(1, 1, "cancelled"), RunEnded(Cancelled("enough"))], "cancelled"),
        ([ModelAttemptEnded(1, 1, "interrupted")], "unknown"),
        ([RunEnded(Cancelled("enough"))], "cancelled"),
        ([RunEnded(Incomplete("limit"))], "incomplete"),
        ([RunEnded(Failed("provider"))], "failed"),
        ([RunEnded(Completed())], "completed"),
        ([ContinuityLost(3, "eof")], "unknown"),
        ([ContinuityLost(3, "eof"), RunAbandoned("nobody knows")], "unknown"),
        (
            [ContinuityLost(3, "eof"), ContinuityRestored(4, "journal"), ModelAttemptEnded(1, 1, "failed")],
            "error",
        ),
    ],
)
def test_a_message_known_from_fragments_says_how_it_ended(ends: list[AnyFact], end: str) -> None:
    """RC-19, RC-68."""
    entry = told(ModelRequested(1, 1, "a1"), piece("Hel"), *ends).messages()[1]
    assert (entry.message.text, entry.complete, entry.end) == ("Hel", False, end)


def test_fragments_of_a_runtime_that_records_no_requests_end_with_the_run() -> None:
    """RC-19: a foreign agent tells text only; all its open messages have the run's end."""
    transcript = told(
        piece("one", message_id="a1"), piece("two", message_id="a2"), RunEnded(Cancelled("enough"))
    )
    assert [(entry.message.id, entry.end) for entry in transcript.messages()[1:]] == [
        ("a1", "cancelled"),
        ("a2", "cancelled"),
    ]


def test_a_message_that_goes_on_after_a_restore_is_open_again() -> None:
    """RC-55: a foreign agent tells on in the same message."""
    transcript = told(piece("Hel"), ContinuityLost(3, "eof"), ContinuityRestored(4, "replay"), piece("lo", 3))
    entry = transcript.messages()[1]
    assert (entry.message.text, entry.end) == ("Hello", "")


def test_what_was_discarded_is_no_part_of_the_conversation() -> None:
    """LP: asked again; the next answer stands there."""
    transcript = told(
        ModelRequested(1, 1, "a1"), piece("Hmpf"), ModelAttemptEnded(1, 1, "discarded"),
        ModelRequested(1, 2, "a2"), piece("Hello", message_id="a2"), ModelAttemptEnded(1, 2, "answered"), said("a2", "Hello."),
    )  # fmt: skip
    assert ids(transcript) == ["u1", "a2"]


def test_an_attempt_that_said_nothing_leaves_nothing() -> None:
    """No empty message for an attempt without text."""
    transcript = told(
        ModelRequested(1, 1, "a1"), ModelAttemptEnded(1, 1, "failed"), ModelAttemptEnded(1, 1, "failed")
    )
    assert ids(transcript) == ["u1"]


# Where a path is cut, and where a retry goes on


def path(*spoken: str) -> list[HistoryMessage]:
    """A path in short: `u` user, `a c1 c2` assistant with calls, `r c1` a result, `?` in front: not complete."""
    made = []
    for index, item in enumerate(spoken):
        complete = not item.startswith("?")
        kind, *calls = item.lstrip("?").split()
        if kind == "r":
            message = Message(f"result:{calls[0]}", "tool", call_id=calls[0])
        else:
            role = {"u": "user", "a": "assistant", "s": "system"}[kind]
            message = Message(f"{kind}{index}", role, tuple(ToolCall(call, "tool") for call in calls))
        made.append(HistoryMessage(message, "run", index + 1, complete))
    return made


@pytest.mark.parametrize(
    ("spoken", "found"),
    [
        ((), None),
        (("a",), None),
        (("u",), "u0"),
        (("u", "a"), "u0"),
        (("u", "a c1 c2", "r c1", "r c2"), "result:c2"),
        (("u", "a c1 c2", "r c1", "r c2", "a"), "result:c2"),
        (("u", "a c1 c2", "r c1"), "u0"),
        (("u", "a c1", "r c1", "a c2"), "result:c1"),
        (("u", "a c1 c2", "r c1", "u"), "u3"),
        (("u", "?a c1"), "u0"),
        (("u", "a c1", "r c1", "?a"), "result:c1"),
        (("?u", "a"), None),
        (("s", "u", "s"), "u1"),
    ],
)
def test_a_retry_goes_on_from_the_last_committed_exchange(spoken: tuple[str, ...], found: str | None) -> None:
    """RC-68: the last complete message that wants an answer: a user's, or the last result of a whole batch."""
    assert last_exchange(path(*spoken)) == found


def test_a_path_is_cut_behind_a_message_of_it() -> None:
    """RC-68, RC-69."""
    whole = path("u", "a", "u", "a")
    assert [entry.message.id for entry in cut_after(whole, "a1")] == ["u0", "a1"]
    assert cut_after(whole, None) == whole
    with pytest.raises(KeyError):
        cut_after(whole, "a9")


@pytest.mark.parametrize(
    ("through", "found"),
    [
        ("a1", "result:c2"),
        ("result:c1", "result:c2"),
        ("result:c2", "result:c2"),
        ("u0", "u0"),
        ("a4", "a4"),
        ("?", "?"),
    ],
)
def test_a_cut_does_not_part_a_call_from_its_result(through: str, found: str) -> None:
    """RC-68, promise 6: behind an answer means behind the results of its calls; what is not on the path stays as it is."""
    assert with_results(path("u", "a c1 c2", "r c1", "r c2", "a"), through) == found


def test_who_wants_an_answer() -> None:
    """RC-31."""
    roles = [role for role in ("user", "assistant", "system", "tool") if wants_answer(Message("m", role))]
    assert roles == ["user", "tool"]


# What a runtime is given


def compacted(kept: str, *new: str) -> HistoryCompacted:
    return HistoryCompacted(tuple(kept.split()), tuple(Message(name, "user") for name in new))


def given_to_runtime(
    *facts: AnyFact, front: list[HistoryMessage] | None = None, cut: int | None = None
) -> list[str]:
    transcript = told(*facts)
    messages, front = transcript.messages(), front or []
    compactions = transcript.compactions(messages, len(front))
    return [message.id for message in for_runtime([*front, *messages][:cut], compactions)]


def test_a_runtime_is_given_complete_messages() -> None:
    """RC-82: nothing that broke off."""
    assert given_to_runtime(said("a1", "Hi."), asked("u2"), piece("Hel", message_id="a2")) == [
        "u1",
        "a1",
        "u2",
    ]


@pytest.mark.parametrize(
    ("fact", "found"),
    [
        (compacted("", "s"), ["s"]),
        (compacted("a2", "s"), ["s", "a2"]),
        (compacted("u1", "s"), ["s", "u1"]),
        (compacted("u1 u2", "s", "t"), ["s", "t", "u1", "u2"]),
        (compacted("u1 a1 u2 a2"), ["u1", "a1", "u2", "a2"]),
        (compacted("nobody", "s"), ["s"]),
    ],
)
def test_a_compaction_replaces_what_stood_before_it_and_nothing_else(
    fact: HistoryCompacted, found: list[str]
) -> None:
    """RC-82: what is kept stays, wherever it stood; what comes later follows."""
    before = (said("a1", "Hi."), asked("u2"), said("a2", "Ho."))
    assert given_to_runtime(*before, fact) == found
    assert given_to_runtime(*before, fact, asked("u3"), said("a3", "Hm.")) == [*found, "u3", "a3"]


def test_a_later_compaction_may_keep_what_an_earlier_one_made() -> None:
    """RC-82: the last one counts, over the context as it was then."""
    steps = (said("a1", "Hi."), compacted("a1", "s"), asked("u2"), compacted("s u2", "t"), said("a2", "Ho."))
    assert given_to_runtime(*steps) == ["t", "s", "u2", "a2"]
    assert given_to_runtime(*steps[:3], compacted("u2", "t")) == ["t", "u2"]


def test_a_compaction_behind_the_cut_is_not_on_the_path() -> None:
    """RC-82: an edit or a regeneration goes back before it; one that stands right behind the last message still holds."""
    steps = (said("a1", "Hi."), asked("u2"), compacted("u2", "s"), said("a2", "Ho."), compacted("", "t"))
    assert given_to_runtime(*steps) == ["t"]
    assert given_to_runtime(*steps, cut=4) == ["t"]
    assert given_to_runtime(*steps, cut=3) == ["s", "u2"]
    assert given_to_runtime(*steps, cut=2) == ["u1", "a1"]
    assert given_to_runtime(*steps, cut=0) == []


def test_a_compaction_reaches_into_what_stands_in_front_of_its_run() -> None:
    """RC-82: base, parents, and the run's own input."""
    front = path("u", "a")
    assert given_to_runtime(compacted("a1", "s"), said("x", "Hi."), front=front) == ["s", "a1", "x"]
    assert given_to_runtime(compacted("", "s"), front=front) == ["s"]
    assert given_to_runtime(compacted("", "s"), front=front, cut=2) == ["u0", "a1"]


def test_a_result_that_came_after_a_compaction_stays() -> None:
    """EF-2: it stands in call order, before what was there when the context was replaced."""
    steps = (said("a1", "", "c1", "c2"), result("c2"), compacted("a1 result:c2", "s"), result("c1"))
    assert given_to_runtime(*steps) == ["s", "a1", "result:c1", "result:c2"]


def test_compactions_know_their_place() -> None:
    """The place counts the entries in front of the run too."""
    transcript = told(
        said("a1", "Hi."), compacted("a1", "s"), piece("x", message_id="a2"), compacted("", "t")
    )
    places = transcript.compactions(transcript.messages(), 10)
    assert [(item.place, item.run_id, item.seq) for item in places] == [(12, "run", 3), (13, "run", 5)]
    assert isinstance(places[0], Compaction)
