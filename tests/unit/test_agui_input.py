"""What a client posts, understood against what we have (SV-100, SV-101)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.commands import Answer, Command, InputAnswer
from pilothouse.core.agui.input import ClientMessage, Invalid, plan, read_input
from pilothouse.core.agui.segments import Segment, command_id, segment_of, segments
from pilothouse.core.canonical import seal
from pilothouse.events import CommandReceived, RequestResolved, RunAccepted
from pilothouse.messages import File, Image, Message, Text, ToolCall
from pilothouse.records import HistoryMessage, Parent


def said(message_id: str, role: str = "user") -> ClientMessage:
    return ClientMessage(message_id, role, (Text(message_id),))


def had(message_id: str, run: str, role: str = "user", *, complete: bool = True) -> HistoryMessage:
    parts = (ToolCall("c", "t"),) if message_id.startswith("call") else (Text(message_id),)
    return HistoryMessage(Message(message_id, role, parts), run, complete=complete)


TWO = [had("u1", "r1"), had("a1", "r1", "assistant"), had("u2", "r2"), had("a2", "r2", "assistant")]
LOST = [
    had("u1", "r1"),
    had("a1", "r1", "assistant"),
    had("u2", "r2"),
    had("p2", "r2", "assistant", complete=False),
]
TOOLS = [had("u1", "r1"), had("call1", "r1", "assistant"), had("res1", "r1", "tool")]


@pytest.mark.parametrize(
    ("listed", "path", "broken", "action", "parent", "forked"),
    [
        # ends with new user messages, the last known one is the head
        ([said("new")], [], False, "send", None, False),
        ([said("u1"), said("a1", "assistant"), said("u2"), said("a2", "assistant"), said("new")], TWO, False, "send", None, False),
        # the client missed our answer
        ([said("u1"), said("a1", "assistant"), said("u2"), said("new")], TWO, False, "send", None, False),
        ([said("u1"), said("new")], TWO[:2], False, "send", None, False),
        ([said("u1"), said("new")], TOOLS, False, "send", None, False),
        ([said("u1"), said("new")], TWO, False, "send", Parent("r1", "a1"), True),
        # nothing of the list is known: it is a window on the thread
        ([said("new")], TWO, False, "send", None, False),
        # the user edited an earlier message
        ([said("u1"), said("a1", "assistant"), said("new")], TWO, False, "send", Parent("r1", "a1"), True),
        # no new message, an answered one: regenerate
        ([said("u1"), said("a1", "assistant"), said("u2")], TWO, False, "regenerate", None, False),
        # no new message, and the run that should have gone on is broken: retry
        ([said("u1"), said("a1", "assistant"), said("u2")], LOST, True, "retry", None, False),
        ([said("u1"), said("call1", "assistant"), said("res1", "tool")], TOOLS, True, "retry", None, False),
        # after a failure a new message is an ordinary send
        ([said("u1"), said("a1", "assistant"), said("u2"), said("new")], LOST, True, "send", None, False),
        ([said("u1"), said("a1", "assistant"), said("u2"), said("p2", "assistant"), said("new")], LOST, True, "send", None, False),
        # no new message, nothing has answered
        ([said("u1")], [had("u1", "r1")], False, "continue", None, False),
        ([said("u1"), said("call1", "assistant"), said("res1", "tool")], TOOLS, False, "continue", None, False),
        ([], TWO, False, "continue", None, False),
        ([], [], False, "continue", None, False),
    ],
)  # fmt: skip
def test_where_the_new_run_hangs(listed, path, broken, action, parent, forked) -> None:
    """SV-101, row by row."""
    head = path[-1].run_id if path else None
    found = plan(listed, path, head=head, broken=broken)
    assert (found.action, found.parent, found.forked) == (action, parent, forked)
    assert [message.id for message in found.new] == (["new"] if action == "send" else [])


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_any_truncation_of_the_list_is_understood(seed: int) -> None:
    """Proof 7: never an error; a new message is never lost, and hangs on a message of the path."""
    rng = random.Random(seed)
    path = [
        had(f"m{number}", f"r{number // 2}", "user" if number % 2 == 0 else "assistant")
        for number in range(rng.randint(0, 8))
    ]
    listed = [said(entry.message.id, entry.message.role) for entry in path if rng.random() < 0.7]
    rng.shuffle(listed) if rng.random() < 0.2 else None
    if rng.random() < 0.7:
        listed.append(said("new"))
    found = plan(listed, path, head=path[-1].run_id if path else None, broken=rng.random() < 0.3)
    assert ("new" in [message.id for message in found.new]) is (bool(listed) and listed[-1].id == "new")
    if found.parent is not None:
        places = {(entry.run_id, entry.message.id) for entry in path}
        assert (found.parent.run_id, found.parent.keep_through) in places


def test_media_of_both_ages_are_read() -> None:
    """SV-100: parts of 1.0 and the older `binary`; what is unknown is dropped with a warning."""
    content = [
        {"type": "text", "text": "look"},
        {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}},
        {
            "type": "document",
            "source": {"type": "url", "value": "https://x/y.pdf", "mimeType": "application/pdf"},
        },
        {"type": "binary", "mimeType": "image/gif", "url": "https://x/y.gif"},
        {"type": "image", "source": {"type": "data", "value": "not base64!", "mimeType": "image/png"}},
        {"type": "image", "source": {"type": "url", "value": "file:///etc/passwd"}},
        {"type": "image", "source": {"type": "file", "value": "x"}},
        {"type": "hologram"},
        7,
    ]
    found = read_input(
        {"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": content}]}
    )
    assert found.messages[0].parts == (
        Text("look"),
        Image("image/png", data=b"\x00"),
        File("application/pdf", url="https://x/y.pdf"),
        Image("image/gif", url="https://x/y.gif"),
    )
    assert len(found.warnings) == 5


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        read_input({"messages": [{"id": 1, "role": "user"}], "tools": "x"})
    assert [path for path, _ in caught.value.faults] == ["threadId", "runId", "messages[0].id", "tools"]


def test_segments_are_computed_from_facts() -> None:
    """SV-70, SV-71: the ids of the answers name them; other answers, and refused ones, begin none."""
    facts = [
        (RunAccepted("t", "", "", ""), None),
        (
            CommandReceived(Command(command_id("refused", "q1"), "run", Answer("q1", InputAnswer(0))), "d"),
            None,
        ),
        (RequestResolved("q1", InputAnswer(1)), command_id("second", "q1")),
        (RequestResolved("q2", InputAnswer(1)), command_id("second", "q2")),
        (RequestResolved("q3", InputAnswer(1)), "by-hand"),
        (RequestResolved("q:4", InputAnswer(1)), command_id("a:b", "q:4")),
    ]
    records, previous = [], ""
    for seq, (fact, causation) in enumerate(facts, 1):
        records.append(
            seal(
                run_id="run", seq=seq, at_ms=0, lane="runtime", fence=1, fact=fact, event_id=f"e{seq}",
                causation=causation, source=None, previous=previous,
            )
        )  # fmt: skip
        previous = records[-1].chain
    assert segments(records, "run") == [
        Segment("run", 1, 3), Segment("second", 3, 6), Segment("a:b", 6),
    ]  # fmt: skip
    assert segment_of("agui:x:y") is None
    assert segment_of("agui:3:a:b:q:4") == "a:b"
