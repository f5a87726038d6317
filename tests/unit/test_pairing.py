"""Repair of a payload (LP-40, LP-41)."""

from __future__ import annotations

import pytest

from pilothouse.core.pairing import (
    MADE_TEXT,
    Pairing,
    Repair,
    WireRules,
    is_blank,
    repair,
    with_note,
)
from pilothouse.messages import Context, Image, Message, Reasoning, Text, ToolCall

SHORT = WireRules(max_id_length=12)


def user(text: str = "hi", number: int = 0) -> Message:
    return Message(f"u{number}", "user", (Text(text),) if text else ())


def calls(*ids: str, text: str = "", tool: str = "f") -> Message:
    parts = (Text(text),) if text else ()
    return Message("a-" + "-".join(ids), "assistant", (*parts, *[ToolCall(call_id, tool) for call_id in ids]))


def said(text: str) -> Message:
    return Message(f"a-{text}", "assistant", (Text(text),))


def result(call_id: str, text: str = "ok") -> Message:
    return Message(f"r-{call_id}-{text}", "tool", (Text(text),), call_id=call_id)


def outline(messages) -> list[str]:
    """The payload in short: role, call ids, and what made results are."""
    out = []
    for message in messages:
        if message.role == "tool":
            out.append(f"r:{message.call_id}={'MADE' if message.text == MADE_TEXT else message.text}")
        elif message.tool_calls:
            out.append("c:" + ",".join(call.call_id for call in message.tool_calls))
        else:
            out.append(f"{message.role[0]}:{message.text}")
    return out


CASES = [
    pytest.param(
        [user(), calls("1", "2", "3"), result("1", "3.1 m"), user("stop")],
        ["u:hi", "c:1,2,3", "r:1=3.1 m", "r:2=MADE", "r:3=MADE", "u:stop"],
        Repair(made=("2", "3")),
        id="calls without result [090]",
    ),
    pytest.param(
        [user(), calls("1"), user("hello?")],
        ["u:hi", "c:1", "r:1=MADE", "u:hello?"],
        Repair(made=("1",)),
        id="no result at all [091]",
    ),
    pytest.param([user(), calls("1")], ["u:hi", "c:1", "r:1=MADE"], Repair(made=("1",)), id="the last message"),
    pytest.param(
        [user("a"), result("gone"), user("b")], ["u:a", "u:b"], Repair(dropped=("gone",)), id="result without call [092]"
    ),
    pytest.param(
        [user(), calls("1"), user("x"), result("1")],
        ["u:hi", "c:1", "r:1=ok", "u:x"],
        Repair(moved=("1",)),
        id="result away from its call",
    ),
    pytest.param(
        [user(), calls("1"), user("x"), calls("2"), result("1"), result("2")],
        ["u:hi", "c:1", "r:1=ok", "u:x", "c:2", "r:2=ok"],
        Repair(moved=("1",)),
        id="result behind another round",
    ),
    pytest.param(
        [user(), calls("1", "2"), result("2"), result("1")],
        ["u:hi", "c:1,2", "r:1=ok", "r:2=ok"],
        Repair(),
        id="results in another order",
    ),
    pytest.param(
        [user(), calls("1"), result("1", "first"), result("1", "again")],
        ["u:hi", "c:1", "r:1=first"],
        Repair(repeated=("1",)),
        id="two results for one call",
    ),
    pytest.param(
        [user(), calls("1"), result("1", "a"), user(), calls("1"), result("1", "b")],
        ["u:hi", "c:1", "r:1=a", "u:hi", "c:1_2", "r:1_2=b"],
        Repair(renamed=(("1", "1_2"),)),
        id="an id used in two turns",
    ),
    pytest.param(
        [user(), calls("1"), result("1", "a"), user(), calls("1"), user("x")],
        ["u:hi", "c:1", "r:1=a", "u:hi", "c:1_2", "r:1_2=MADE", "u:x"],
        Repair(made=("1",), renamed=(("1", "1_2"),)),
        id="an earlier result does not answer a later call",
    ),
    pytest.param(
        [user(), calls("1", "1"), result("1", "a"), result("1", "b")],
        ["u:hi", "c:1,1_2", "r:1=a", "r:1_2=b"],
        Repair(renamed=(("1", "1_2"),)),
        id="one id twice in a message",
    ),
    pytest.param(
        [user(), calls("1", "1_2", "1"), result("1", "a"), result("1_2", "b"), result("1", "c")],
        ["u:hi", "c:1,1_2,1_3", "r:1=a", "r:1_2=b", "r:1_3=c"],
        Repair(renamed=(("1", "1_3"),)),
        id="a name that is taken is skipped",
    ),
    pytest.param(
        [result("0"), result("9"), said("so"), user("go"), calls("1"), result("1")],
        ["u:go", "c:1", "r:1=ok"],
        Repair(cut=3),
        id="the list begins inside a round",
    ),
    pytest.param(
        [result("0"), calls("1"), result("1")], ["c:1", "r:1=ok"], Repair(cut=1), id="no user message to begin with"
    ),
    pytest.param(
        [user(), Message("a", "assistant", (Text("x"), ToolCall("1", ""), ToolCall("2", "f"))), result("1"), result("2")],
        ["u:hi", "c:2", "r:2=ok"],
        Repair(dropped=("1",)),
        id="a call without a name",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "want", "done"), CASES)
def test_what_is_found_is_repaired(messages, want, done) -> None:
    """LP-40, a row of the table each; LP-41: idempotent, and the list given is not changed."""
    given = list(messages)
    repaired, told = repair(messages)
    assert outline(repaired) == want
    assert told == done
    assert messages == given
    assert repair(repaired) == (repaired, None)
    assert repair(repaired)[0] is repaired
    assert repair(messages)[0] == repaired


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user()],
        [user("a"), user("b"), said("c"), user("d")],
        [user(), calls("1", "2"), result("1"), result("2"), said("done")],
        [user(), calls("1"), Message("blank", "assistant", (Text(" "),)), result("1"), user()],
        [user(), calls("1"), result("1"), calls("2"), result("2")],
    ],
)
def test_a_clean_payload_comes_back_as_it_is(messages) -> None:
    """LP-41: the same object; messages that the dialect leaves out are invisible."""
    assert repair(messages) == (messages, None)
    assert repair(messages)[0] is messages


def test_ids_are_compared_as_the_dialect_shortens_them() -> None:
    """LP-40: two ids that only collide on the wire are renamed on both sides, within the length."""
    long = "call_0123456789abcdef"
    wire = WireRules(id_charset="a-z", max_id_length=12, min_id_length=12)
    messages = [
        user(),
        calls(long),
        result(wire.wire_id(long)),
        calls(wire.wire_id(long)),
        result(wire.wire_id(long), "b"),
    ]
    repaired, _ = repair(messages, wire)
    ids = [wire.wire_id(call.call_id) for message in repaired for call in message.tool_calls]
    results = [wire.wire_id(message.call_id) for message in repaired if message.role == "tool"]
    assert ids == results
    assert len(set(ids)) == 2
    assert all(len(name) == 12 for name in ids)
    assert repair(repaired, wire)[0] is repaired


@pytest.mark.parametrize("call_id", ["ok_1", "", "x" * 50, "mit leerzeichen", "日本", "a|b", "\ud83d"])
@pytest.mark.parametrize("rules", [WireRules(), SHORT, WireRules("A-Za-z0-9", 9, 9)])
def test_wire_ids_fit_the_dialect_and_tell_apart(call_id: str, rules: WireRules) -> None:
    """PV-13: charset and length; an id that fits is left alone; doing it twice changes nothing."""
    import re

    made = rules.wire_id(call_id)
    assert re.fullmatch(f"[{rules.id_charset}]+", made)
    assert rules.min_id_length <= len(made) <= rules.max_id_length
    assert rules.wire_id(made) == made
    assert rules.wire_id(call_id + "!") != made


def test_the_prefix_does_not_move_when_the_list_grows() -> None:
    """LP-41: what was sent before is sent again the same, so a prompt cache still holds."""
    whole = [
        user(),
        calls("1"),
        calls("1"),
        result("1"),
        user("a"),
        calls("1_2"),
        result("x"),
        result("1_2"),
        user("b"),
        calls("1"),
    ]
    before: list[str] = []
    for size in range(1, len(whole) + 1):
        if whole[size - 1].role == "user":
            now = outline(repair(whole[:size])[0])
            assert now[: len(before)] == before
            before = now


def test_a_growing_list_is_not_read_again() -> None:
    """performance.md: a turn's cost does not grow with the history; a changed list is read from its beginning."""

    class Counting(list):
        reads = 0

        def __getitem__(self, at):
            Counting.reads += 1
            return super().__getitem__(at)

    pairing = Pairing()
    history = Counting([user(number=at) for at in range(100)])
    assert pairing.repair(history)[0] is history
    for number in range(20):
        history += [calls(f"c{number}"), result(f"c{number}")]
        Counting.reads = 0
        assert pairing.repair(history) == (history, None)
        assert Counting.reads <= 4
    history.append(calls("c3"))
    assert pairing.repair(history)[1] == Repair(made=("c3",), renamed=(("c3", "c3_2"),))
    history[-1] = user("other")
    assert pairing.repair(history) == (history, None)
    assert pairing.repair([user(), calls("c3"), result("c3")])[1] is None


def test_only_dropped_results_need_a_note() -> None:
    """LP-40: naming the ids, in the last user message; the caller says it once a run."""
    messages, done = repair([user("a"), result("gone"), user("b"), said("c")])
    assert done is not None
    assert "gone" in (done.note or "")
    noted = with_note(messages, done.note or "")
    assert noted[1].parts[-1] == Context(done.note or "")
    assert outline(messages) == ["u:a", "u:b", "a:c"]
    assert repair([user(), calls("1")])[1].note is None
    assert with_note([said("x")], "n")[-1].role == "user"


@pytest.mark.parametrize(
    ("message", "blank"),
    [
        (user(""), True),
        (user(" \n"), True),
        (Message("a", "assistant", (Reasoning("hm", {"x": 1}, "t"),)), True),
        (Message("a", "assistant", (ToolCall("1", ""),)), True),
        (Message("a", "user", (Image("image/png", url="u"),)), False),
        (Message("t", "tool", ()), False),
    ],
)
def test_what_no_dialect_writes_is_blank(message: Message, blank: bool) -> None:
    """A silent tool's result is not: silence is an answer."""
    assert is_blank(message) is blank
