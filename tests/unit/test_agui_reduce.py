"""The client side of AG-UI: events to what an interface shows (AG-50 … AG-59, AG-160 … AG-164, AG-170, AG-200 … AG-208)."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from pilothouse.core.agui import events as agui
from pilothouse.core.agui.reduce import Reducer
from pilothouse.projection import Citation, CustomEvent, StateUpdate
from pilothouse.testing import endpoint as wire


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def reducer(*, run: str = "run", generation: str = "g1", continues: bool = False) -> Reducer:
    made = Reducer(Clock())
    made.begin(generation, run, continues=continues)
    return made


def feed(made: Reducer, *events) -> Reducer:
    for event in events:
        for item in event if isinstance(event, list) else [event]:
            made.apply(msgspec.convert(item, agui.AnyEvent) if isinstance(item, dict) else item)
    return made


def shown(made: Reducer) -> list[tuple[str, str, str]]:
    return [(item.id, item.role, item.text) for item in made.display.messages]


def snapshot(*messages: dict) -> dict:
    return {"type": "MESSAGES_SNAPSHOT", "messages": list(messages)}


def user(name: str, text: str) -> dict:
    return {"id": name, "role": "user", "content": text}


def assistant(name: str, text: str = "", *calls: str) -> dict:
    made: dict = {"id": name, "role": "assistant"}
    if text:
        made["content"] = text
    if calls:
        function = {"name": "look", "arguments": "{}"}
        made["toolCalls"] = [{"id": item, "type": "function", "function": function} for item in calls]
    return made


@pytest.mark.parametrize("shared", [True, False])
def test_reasoning_and_its_answer_are_one_message(shared: bool) -> None:
    """AG-200, §5.5: both id forms give one message with two texts."""
    thought_id = "m1" if shared else "r1"
    made = feed(reducer(), wire.reasoning(thought_id, "hm ", "well"), wire.text("m1", "Yes"))
    (message,) = made.display.messages
    assert (message.text, message.reasoning) == ("Yes", "hm well")
    assert message.reasoning_duration is not None
    assert message.reasoning_duration >= 0
    assert message.id == thought_id  # AG-56: an id that was shown stays
    assert made.display.get("m1") is message


def test_reasoning_of_our_server_is_shown_under_its_message() -> None:
    """AG-200: its ids name the message; several thoughts of one message are one text."""
    made = feed(
        reducer(),
        wire.reasoning("m1:reasoning-0", "a"),
        wire.text("m1", "one"),
        wire.reasoning("m1:reasoning-2", "b"),
        wire.text("m1", " two"),
    )
    (message,) = made.display.messages
    assert (message.id, message.text, message.reasoning) == ("m1", "one two", "ab")


def test_reasoning_without_an_answer_is_a_message() -> None:
    """AG-200."""
    made = feed(reducer(), wire.reasoning("r1", "hm"))
    made.display.end("success")
    (message,) = made.display.messages
    assert (message.text, message.reasoning, message.delivery.outcome) == ("", "hm", "success")


def test_reasoning_of_a_message_that_goes_on() -> None:
    """AG-200: a thought whose follower is shown already joins it."""
    made = feed(reducer(), wire.text("m1", "one"), wire.reasoning("r9", "hm"), wire.text("m1", " two"))
    (message,) = made.display.messages
    assert (message.id, message.text, message.reasoning) == ("m1", "one two", "hm")


def test_deltas_are_never_deduplicated() -> None:
    """AG-55: a delta equal to the start of the message is appended."""
    made = feed(reducer(), wire.text("m", "|", "a", "|", "\n", "|"))
    assert made.display.messages[0].text == "|a|\n|"


def test_earlier_steps_are_a_success_whatever_the_end_is() -> None:
    """AG-53."""
    made = feed(reducer(), wire.text("a", "one"), wire.text("b", "two"))
    made.display.end("error")
    assert [item.delivery.outcome for item in made.display.messages] == ["success", "error"]
    made.display.end("success")
    assert [item.delivery.outcome for item in made.display.messages] == ["success", "error"]  # AG-50


def test_a_late_delta_is_dropped_and_a_rewrite_is_a_new_generation() -> None:
    """AG-54."""
    made = feed(reducer(), wire.text("a", "one"), wire.text("b", "two", end=False))
    before = made.display.messages[0]
    made.display.text("a", "late")
    assert made.display.messages[0] is before
    feed(made, snapshot(assistant("a", "one, corrected"), assistant("b", "two")))
    first = made.display.messages[0]
    assert first.text == "one, corrected"
    assert first.delivery.phase == "complete"
    assert first.delivery.outcome == "success"
    assert first.delivery.generation != before.delivery.generation


def test_the_first_outcome_stays_when_a_message_is_opened_again() -> None:
    """AG-50, AG-53: a completed step that is added to is complete, whatever the run's end is."""
    made = feed(reducer(), wire.text("a", "one"), wire.text("b", "two"), wire.text("a", " more"))
    made.display.end("error")
    assert [(item.text, item.delivery.outcome) for item in made.display.messages] == [
        ("one more", "success"),
        ("two", "success"),
    ]


@pytest.mark.parametrize("whole", ["Hel", "Hello", "Hello world"])
def test_a_lagging_snapshot_never_rewinds(whole: str) -> None:
    """AG-55, AG-57."""
    made = feed(reducer(), wire.text("a", "Hello", end=False), snapshot(assistant("a", whole)))
    assert made.display.messages[0].text == max("Hello", whole, key=len)
    assert made.display.messages[0].delivery.phase == "streaming"
    made.display.text("a", "!")
    assert made.display.messages[0].text.endswith("!")


def test_a_snapshot_keeps_what_is_being_told() -> None:
    """AG-57, AG-202: it may omit the open message and the message just sent; empty it changes nothing."""
    made = reducer()
    made.display.add_user("u1", "hi")
    feed(made, wire.text("old", "gone"), wire.text("a", "Hel", end=False))
    feed(made, snapshot())
    assert len(made.display.messages) == 3
    feed(made, snapshot(user("u0", "before")))
    assert shown(made) == [("u0", "user", "before"), ("u1", "user", "hi"), ("a", "assistant", "Hel")]
    feed(made, {"type": "TEXT_MESSAGE_CONTENT", "messageId": "a", "delta": "lo"})
    assert shown(made)[-1] == ("a", "assistant", "Hello")


def test_a_snapshot_replaces_appends_and_removes() -> None:
    """AG-202; untouched messages are the same objects (AG-3)."""
    made = reducer()
    made.display.restore([])
    feed(made, snapshot(user("u1", "1"), assistant("a1", "one"), user("u2", "2")))
    first = made.display.messages
    feed(made, snapshot(user("u1", "1"), assistant("a1", "ONE"), user("u3", "3"), assistant("a3", "three")))
    assert shown(made) == [
        ("u1", "user", "1"),
        ("a1", "assistant", "ONE"),
        ("u3", "user", "3"),
        ("a3", "assistant", "three"),
    ]
    assert made.display.messages[0] is first[0]


def test_the_echo_of_what_was_sent_keeps_its_id() -> None:
    """AG-56."""
    made = reducer()
    made.display.add_user("mine", "hi")
    feed(made, snapshot(user("theirs", "hi"), assistant("a", "hello")))
    assert shown(made) == [("mine", "user", "hi"), ("a", "assistant", "hello")]
    feed(made, snapshot(user("theirs", "hi"), assistant("a", "hello")))
    assert len(made.display.messages) == 2


def test_reasoning_stays_unless_a_snapshot_carries_some() -> None:
    """AG-202."""
    made = feed(reducer(), wire.reasoning("r1", "hm"), wire.text("a", "yes"))
    made.display.end("success")
    feed(made, snapshot(user("u", "?"), assistant("a", "yes")))
    assert made.display.get("a").reasoning == "hm"
    feed(
        made,
        snapshot(
            user("u", "?"), {"id": "r1", "role": "reasoning", "content": "other"}, assistant("a", "yes")
        ),
    )
    assert made.display.get("a").reasoning == "other"
    assert len(made.display.messages) == 2


def test_retry_with_a_reused_id_does_not_flash_or_glue() -> None:
    """AG-51, §3.16: an old tail in a snapshot; then the same id is told anew."""
    made = feed(reducer(), wire.text("a", "old partial", end=False))
    made.display.end("error")
    made.begin("g2", "run2", continues=False)
    before = made.display.messages
    feed(made, snapshot(assistant("a", "old partial")))
    assert made.display.messages == before
    feed(made, wire.text("a", "new"))
    (message,) = made.display.messages
    assert (message.text, message.delivery.generation, message.delivery.phase) == ("new", "g2", "streaming")


def test_a_tail_that_comes_only_in_a_snapshot_belongs_to_the_attempt() -> None:
    """§5.4: new generation for continuation with reused ids, also when the tail arrives only in a snapshot."""
    made = feed(reducer(), wire.text("a", "one", end=False))
    made.display.end("paused")
    made.begin("g2", "run2", continues=True)
    feed(made, snapshot(user("u", "?"), assistant("a", "one and two")))
    message = made.display.messages[-1]
    assert (message.delivery.generation, message.delivery.phase) == ("g2", "streaming")
    made.display.end("success")
    assert made.display.messages[-1].delivery.outcome == "success"


def test_a_continuation_goes_on_with_the_last_message() -> None:
    """AG-58: only if the run was started to continue it."""
    for continues, text in ((True, "one two"), (False, "two")):
        made = feed(reducer(), wire.text("a", "one "))
        made.display.end("paused")
        made.begin("g2", "run2", continues=continues)
        feed(made, wire.text("a", "two"))
        (message,) = made.display.messages
        assert (message.text, message.delivery.generation) == (text, "g2")


# Tool calls


def test_arguments_keep_their_last_good_value() -> None:
    """AG-170."""
    made = reducer()
    seen = []
    for event in wire.tool_call("c", "look", '{"a"', ": 1}", " ", "x"):
        feed(made, event)
        seen.append(dict(made.display.call("c").args))
    assert seen == [{}, {}, {"a": 1}, {"a": 1}, {"a": 1}, {"a": 1}]
    call = made.display.call("c")
    assert call.args_text == '{"a": 1} x'
    assert call.status == "complete"
    feed(made, wire.tool_call("d", "look"))
    assert dict(made.display.call("d").args) == {}


def test_results_stand_behind_their_message_and_earlier_results() -> None:
    """AG-201, AG-171."""
    made = feed(
        reducer(),
        wire.text("a", "looking"),
        wire.tool_call("c1", "look", parent="a"),
        wire.tool_call("c2", "look", parent="a"),
        wire.text("b", "meanwhile"),
        wire.result("c1", '{"n": 1}'),
        wire.result("c2", "plain"),
        wire.result("ghost", "no owner"),
    )
    assert [item.id for item in made.display.messages] == ["a", "c1-result", "c2-result", "b", "ghost-result"]
    assert made.display.messages[0].tool_call_ids == ("c1", "c2")
    assert [call.result for call in made.display.calls] == [{"n": 1}, "plain", "no owner"]


def test_a_call_makes_its_message_only_if_it_names_one() -> None:
    """AG-201."""
    made = feed(reducer(), wire.tool_call("c0", "look"))
    assert made.display.messages == ()
    feed(made, wire.tool_call("c1", "look", parent="a"))
    (message,) = made.display.messages
    assert (message.id, message.tool_call_ids) == ("a", ("c1",))


def test_a_resumed_call_keeps_its_identity() -> None:
    """AG-137."""
    made = feed(reducer(), wire.tool_call("c", "look", '{"a": 1}', parent="a"))
    made.display.end("paused")
    made.begin("g2", "run2", continues=True)
    feed(made, wire.result("c", "done"), wire.text("b", "so"))
    (call,) = made.display.calls
    assert (call.name, dict(call.args), call.result) == ("look", {"a": 1}, "done")
    assert [item.id for item in made.display.messages] == ["a", "c-result", "b"]


# State, events, activities, subagents


def test_state_is_replaced_or_patched_whole(caplog: pytest.LogCaptureFixture) -> None:
    """AG-25, AG-203: an absent or null state is an empty mapping; a patch that fails is skipped."""
    made = feed(reducer(), {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1, "list": []}})
    first = made.state
    feed(made, {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/list/-", "value": "x"}]})
    assert dict(made.state) == {"n": 1, "list": ["x"]}
    assert dict(first) == {"n": 1, "list": []}
    with caplog.at_level(logging.WARNING):
        operations = [{"op": "replace", "path": "/n", "value": 2}, {"op": "remove", "path": "/none"}]
        feed(made, {"type": "STATE_DELTA", "delta": operations})
    assert dict(made.state)["n"] == 1
    assert "skipped" in caplog.text
    for nothing in (None, [1], "x"):
        feed(made, {"type": "STATE_SNAPSHOT", "snapshot": nothing})
        assert dict(made.state) == {}


def test_events_are_what_no_value_holds() -> None:
    """AG-26: a text payload that is JSON is parsed; notices of interrupts are no events."""
    made = feed(
        reducer(),
        {"type": "CUSTOM", "name": "state_update", "value": '{"a": 1}'},
        {"type": "CUSTOM", "name": "state_update", "value": "no mapping"},
        {"type": "CUSTOM", "name": "ping", "value": None},
        {"type": "CUSTOM", "name": "on_interrupt", "value": '{"question": "ok?"}'},
    )
    assert made.take_events() == [
        StateUpdate({"a": 1}),
        CustomEvent("state_update", "no mapping"),
        CustomEvent("ping", None),
    ]
    assert made.take_events() == []
    (asked,) = made.interrupts
    assert asked.value == {"question": "ok?"}


def test_citations_of_the_state() -> None:
    """AG-208: the usual spellings, bare texts, messages that come later, twice is once."""
    told = {"citations": {"a": [{"title": "T", "href": "http://x", "score": 1}, "http://y", "bare"]}}
    made = feed(reducer(), {"type": "STATE_SNAPSHOT", "snapshot": told}, wire.text("a", "see"))
    expected = (
        Citation("1", "T", "http://x", extra={"score": 1}),
        Citation("2", url="http://y"),
        Citation("3", title="bare"),
    )
    assert made.display.messages[0].citations == expected
    before = made.display.messages[0]
    feed(made, {"type": "STATE_SNAPSHOT", "snapshot": told})
    assert made.display.messages[0] is before
    feed(made, snapshot(user("u", "?"), assistant("b", "later")))
    feed(made, {"type": "STATE_SNAPSHOT", "snapshot": {"citations": {"b": ["z"]}}})
    assert made.display.get("b").citations == (Citation("1", title="z"),)


def child(name: str, *events) -> list[dict]:
    flat = [item for event in events for item in (event if isinstance(event, list) else [event])]
    return [{**item, "subagentRunId": name} for item in flat]


def begun(name: str, **more) -> dict:
    return {"type": "SUBAGENT_STARTED", "subagentRunId": name, "name": "scout", **more}


def test_subagents_are_isolated() -> None:
    """AG-161, AG-163, AG-164: own conversation and state; content before the announcement; one call id twice."""
    made = feed(
        reducer(),
        child("s1", wire.text("m", "early", end=False)),
        begun("s1", parentToolCallId="call"),
        begun("s2", parentToolCallId="call"),
        child("s1", wire.tool_call("c", "look", parent="m"), wire.result("c", "one")),
        child("s2", wire.tool_call("c", "look", parent="n"), wire.result("c", "two")),
        child("s1", {"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}}),
    )
    first, second = made.children["s1"], made.children["s2"]
    assert (first.name, first.tool_call_id, first.status) == ("scout", "call", "running")
    assert [item.text for item in first.display.messages] == ["early", "one"]
    assert [call.result for call in (*first.display.calls, *second.display.calls)] == ["one", "two"]
    assert made.display.messages == ()
    assert dict(made.state) == {}
    assert dict(first.state) == {"n": 1}


def test_a_subagent_ends_once() -> None:
    """AG-161, AG-163: its messages complete; what comes later is ignored; a suspended one goes on running."""
    suspended = {"type": "SUBAGENT_FINISHED", "subagentRunId": "s2", "outcome": {"type": "interrupt"}}
    made = feed(
        reducer(),
        begun("s1"),
        begun("s2"),
        child("s1", wire.text("m", "x", end=False)),
        {"type": "SUBAGENT_ERROR", "subagentRunId": "s1", "message": "no"},
        suspended,
    )
    first = made.children["s1"]
    assert first.status == "error"
    assert first.display.messages[0].delivery.outcome == "error"
    made.apply(agui.TextMessageContent("m", "late", subagent_run_id="s1"))
    assert first.display.messages[0].text == "x"
    assert made.children["s2"].status == "running"
    made.begin("g2", "run2", continues=False)
    assert made.children == {}


def test_activities_of_subagents() -> None:
    """AG-204: the form of older servers."""
    made = feed(
        reducer(),
        {"type": "ACTIVITY_SNAPSHOT", "messageId": "s1", "activityType": "subagent", "content": {"name": "scout", "status": "running"}},
        {"type": "ACTIVITY_DELTA", "messageId": "s1", "activityType": "subagent", "patch": [{"op": "add", "path": "/text", "value": "found"}]},
        {"type": "ACTIVITY_DELTA", "messageId": "s1", "activityType": "subagent", "patch": [{"op": "replace", "path": "/status", "value": "complete"}]},
        {"type": "ACTIVITY_DELTA", "messageId": "ghost", "activityType": "subagent", "patch": []},
    )  # fmt: skip
    (found,) = made.children.values()
    assert (found.name, found.status) == ("scout", "complete")
    assert found.display.messages[0].text == "found"


def test_metadata_is_merged_by_key() -> None:
    """§3.15: what an event says besides goes into `extra`."""
    start, piece, _ = wire.text("a", "x")
    made = feed(reducer(), {**start, "metadata": {"k": 1, "l": 1}}, {**piece, "metadata": {"k": 2}})
    assert dict(made.display.messages[0].extra) == {"k": 2, "l": 1}


def test_media_of_messages() -> None:
    """AG-173: parts are parts; what cannot be read is kept."""
    source = {"type": "data", "value": "AAEC", "mimeType": "image/png"}
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image", "source": source},
        {"type": "binary", "mimeType": "application/pdf", "url": "http://x/y.pdf"},
    ]
    made = feed(reducer(), snapshot({"id": "u", "role": "user", "content": parts}))
    text, image, document = made.display.messages[0].content
    assert (text.text, image.data, document.url) == ("see", b"\0\1\2", "http://x/y.pdf")


EVENTS = st.one_of(
    st.sampled_from(["a", "b"]).flatmap(lambda name: st.sampled_from(wire.text(name, "x"))),
    st.sampled_from(["a", "r"]).flatmap(lambda name: st.sampled_from(wire.reasoning(name, "y"))),
    st.sampled_from(["c", "d"]).flatmap(
        lambda name: st.sampled_from(
            [*wire.tool_call(name, "look", "{}", parent="a"), wire.result(name, "z")]
        )
    ),
    st.sampled_from(
        [
            snapshot(),
            snapshot(user("u", "?")),
            snapshot(user("u", "?"), assistant("a", "x", "c")),
            snapshot(
                assistant("b", "xx"), {"id": "c-result", "role": "tool", "toolCallId": "c", "content": "z"}
            ),
            {"type": "STATE_SNAPSHOT", "snapshot": {"a": 1}},
            {"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/a"}]},
            begun("s"),
            *child("s", wire.text("a", "child")),
            {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"},
            {"type": "CUSTOM", "name": "n", "value": 1},
        ]
    ),
)


@given(
    st.lists(EVENTS, max_size=30), st.sampled_from(["success", "error", "aborted", "paused", "interrupted"])
)
def test_any_sequence_of_events_leaves_one_whole_display(events, outcome) -> None:
    """§5.15: nothing raises; one entry an id; a complete message has one outcome; the parent has no child's text."""
    made = reducer()
    made.display.add_user("u", "?")
    for event in events:
        feed(made, event)
        ids = [item.id for item in made.display.messages]
        assert len(ids) == len(set(ids))
        assert all(
            (item.delivery.phase == "complete") == (item.delivery.outcome is not None)
            for item in made.display.messages
        )
    made.display.end(outcome)
    assert all(item.delivery.phase == "complete" for item in made.display.messages)
    assert "child" not in "".join(item.text for item in made.display.messages)
    assert "u" in [item.id for item in made.display.messages]
    assert len({call.id for call in made.display.calls}) == len(made.display.calls)
    assert all(call.result is UNSET or call.status in ("complete", "error") for call in made.display.calls)
