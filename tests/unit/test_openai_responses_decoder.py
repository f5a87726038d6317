"""OpenAI Responses bodies: the handed fixtures, and their kinds varied (PV-2 … PV-8, PV-12, PV-14)."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from pilothouse.core.canonical import encode
from pilothouse.messages import Message, Reasoning, Text, ToolCall
from pilothouse.providers.decode import assemble, decode
from pilothouse.providers.openai_responses import to_wire
from wirekit import WireCase, deliveries, problems, wire_cases

SEED = random.randrange(10**6)
USAGE = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12}  # fmt: skip


def state(kind: str, output=(), status: str | None = None, **more) -> dict:
    response = {
        "id": "resp_1",
        "model": "gpt",
        "status": status or kind,
        "error": None,
        "output": list(output),
        "usage": None,
    }
    return {"type": f"response.{kind}", "response": {**response, **more}}


def event(kind: str, **fields) -> dict:
    return {"type": f"response.{kind}", **fields}


def call_item(
    call_id: str = "call_1", args: str = "", item_id: str | None = "fc_1", name: str = "f", **more
) -> dict:
    item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": args, **more}
    return item if item_id is None else {"id": item_id, **item}


def message_item(text: str = "", item_id: str = "msg_1", **more) -> dict:
    content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, **more}


def body(*events: dict) -> bytes:
    return "".join(f"event: {item['type']}\ndata: {json.dumps(item)}\n\n" for item in events).encode()


def calls(raw: bytes) -> list:
    got = decode("openai-responses", raw)
    assert got["terminal"] == "tool_calls", got
    return [(call["id"], call["name"], call.get("args", "ERROR")) for call in got["tool_calls"]]


def replayed(raw: bytes) -> list:
    message = msgspec.json.decode(encode(assemble("openai-responses", [raw]).message()), type=Message)
    return to_wire([message])


@pytest.mark.parametrize("case", wire_cases("openai-responses"), ids=lambda case: case.id)
def test_handed_bodies_give_the_same_whatever_the_reads(case: WireCase) -> None:
    """Own chunks, one read, 1-byte reads and 50 random splits give what the fixture wants."""
    print(f"seed {SEED}")
    for how, chunks in deliveries(case, splits=50, seed=SEED):
        got = decode("openai-responses", chunks, **case.options)
        try:
            case.compare(got)
        except AssertionError as error:
            raise AssertionError(f"{how}: {got}") from error
    if "replay_items" in case.expect:
        assert replayed(case.body) == case.expect["replay_items"]


def test_a_cut_anywhere_is_never_a_success() -> None:
    """PV-2 [084]: only the dialect's own last event ends a response, also right after a whole call."""
    whole = body(
        state("created"),
        event("output_item.added", output_index=0, item=call_item()),
        event("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"x":1}'),
        event("output_item.done", output_index=0, item=call_item(args='{"x":1}')),
        event("output_text.delta", item_id="msg_1", output_index=1, delta="Hé🌊"),
    )
    for at in range(len(whole) + 1):
        assert decode("openai-responses", whole[:at])["terminal"] == "unknown"


@pytest.mark.parametrize(
    ("last", "terminal", "kind"),
    [
        (state("completed"), "complete", None),
        (state("incomplete", incomplete_details={"reason": "max_output_tokens"}), "length", None),
        (state("incomplete", incomplete_details={"reason": "content_filter"}), "content_filter", None),
        (state("incomplete", incomplete_details={"reason": "odd"}), "length", None),
        (state("completed", status="incomplete", incomplete_details={"reason": "max_output_tokens"}), "length", None),
        (state("failed", error={"code": "server_error", "message": "m"}), "error", "server_error"),
        (state("failed", error={"code": "rate_limit_exceeded", "message": "m"}), "error", "rate_limit"),
        (state("completed", status="failed", error={"code": "server_error", "message": "m"}), "error", "server_error"),
        ({"type": "error", "code": "context_length_exceeded", "message": "m", "param": None}, "error", "context_overflow"),
        ({"type": "error", "error": {"type": "insufficient_quota", "message": "m"}}, "error", "quota"),
    ],
)  # fmt: skip
def test_five_ends_stay_five_results(last: dict, terminal: str, kind: str | None) -> None:
    """PV-2 [081]: the partial text is kept whatever the end, nothing after it counts."""
    text = event("output_text.delta", item_id="m", output_index=0, delta="part")
    got = decode("openai-responses", body(state("created"), text, last, text))
    assert (got["terminal"], got.get("error_kind"), got["text"]) == (terminal, kind, "part")


def test_a_limit_wins_over_whole_calls() -> None:
    """LP-4, LP-15."""
    item = call_item(args='{"x":1}', status="completed")
    raw = body(
        event("output_item.done", output_index=0, item=item),
        state("incomplete", [item], incomplete_details={"reason": "max_output_tokens"}),
    )
    got = decode("openai-responses", raw)
    assert (got["terminal"], len(got["tool_calls"])) == ("length", 1)


@pytest.mark.parametrize(
    ("events", "want"),
    [
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item()), event("function_call_arguments.delta", output_index=0, delta='{"x":'), event("function_call_arguments.delta", item_id="fc_1", delta="1}"), state("completed")],
            [("call_1", "f", {"x": 1})],
            id="pieces by place or by item id",
        ),
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item()), event("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"x'), state("completed", [call_item(args='{"x":1}', item_id=None)])],
            [("call_1", "f", {"x": 1})],
            id="no done, the final item completes it [085]",
        ),
        pytest.param(
            [event("output_item.done", output_index=0, item=call_item(args='{"x":1}', item_id=None)), state("completed", [call_item(args='{"x":1}', item_id=None)])],
            [("call_1", "f", {"x": 1})],
            id="no item id, not doubled [086]",
        ),
        pytest.param(
            [event("output_item.done", output_index=0, item=call_item(args='{"x":1}', item_id="a")), state("completed", [call_item(args='{"x":1}', item_id="b")])],
            [("call_1", "f", {"x": 1})],
            id="two item ids, one call id",
        ),
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item("c1", item_id="a")), state("completed", [call_item("c2", '{"x":1}', item_id="b")])],
            [("c1", "f", {"x": 1})],
            id="even the call id differs: the place tells",
        ),
        pytest.param([state("completed", [call_item("c1", '{"x":1}'), call_item("c2", "{}", "fc_2")])], [("c1", "f", {"x": 1}), ("c2", "f", {})], id="only in the final response"),
        pytest.param(
            [event("function_call_arguments.delta", item_id="fc_1", output_index=0, delta='{"x":'), event("function_call_arguments.delta", item_id="fc_1", output_index=0, delta="1}"), event("output_item.done", output_index=0, item=call_item(args='{"x":1}')), state("completed")],
            [("call_1", "f", {"x": 1})],
            id="arguments before the item",
        ),
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item()), event("function_call_arguments.done", item_id="fc_1", output_index=0, arguments='{"x":1}'), state("completed")],
            [("call_1", "f", {"x": 1})],
            id="no deltas, done only",
        ),
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item()), event("function_call_arguments.delta", item_id="fc_1", delta='{"x": 2}'), event("output_item.done", output_index=0, item=call_item(args='{"x":1}')), state("completed")],
            [("call_1", "f", {"x": 1})],
            id="the final arguments win",
        ),
        pytest.param(
            [event("output_item.done", output_index=0, item=call_item("d", "{}", "a")), event("output_item.done", output_index=1, item=call_item("", "{}", "b")), state("completed")],
            [("d", "f", {}), ("call_1", "f", {})],
            id="a missing call id is made",
        ),
        pytest.param(
            [event("output_item.added", output_index=0, item=call_item("c1", item_id="a")), event("output_item.added", output_index=1, item=call_item("c2", item_id="b", name="g")), event("function_call_arguments.delta", item_id="b", delta='{"y":'), event("function_call_arguments.delta", item_id="a", delta='{"x":1}'), event("function_call_arguments.delta", item_id="b", delta="2}"), state("completed")],
            [("c1", "f", {"x": 1}), ("c2", "g", {"y": 2})],
            id="interleaved",
        ),
        pytest.param([event("output_item.done", output_index=0, item=call_item(args='{"x"')), state("completed")], [("call_1", "f", "ERROR")], id="completed and cut"),
        pytest.param([event("output_item.done", output_index=0, item=call_item(args="")), state("completed")], [("call_1", "f", {})], id="empty arguments"),
    ],
)  # fmt: skip
def test_a_call_is_its_call_id(events, want) -> None:
    """PV-4 … PV-6 [080]: item ids and places route pieces, results go by the call id."""
    assert calls(body(state("created"), *events)) == want


def test_texts_are_told_once_whatever_repeats_them() -> None:
    """[085] for text: deltas, done, the item and the final response say the same."""
    deltas = [
        event("output_text.delta", item_id="msg_1", output_index=0, delta=part) for part in ("Hel", "lo")
    ]
    done = event("output_text.done", item_id="msg_1", output_index=0, text="Hello")
    item = event("output_item.done", output_index=0, item=message_item("Hello"))
    for events in ([*deltas, done, item], deltas, [done], [item], [*deltas[:1]], []):
        got = decode(
            "openai-responses", body(state("created"), *events, state("completed", [message_item("Hello")]))
        )
        assert (got["terminal"], got["text"]) == ("complete", "Hello"), events


def test_refusal_parts_are_a_refusal() -> None:
    """The dialect's own sign; its text is what a reader sees."""
    streamed = body(event("refusal.delta", item_id="m", output_index=0, delta="No"), state("completed"))
    final = body(
        state(
            "completed", [{"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "No"}]}]
        )
    )
    for raw in (streamed, final):
        got = decode("openai-responses", raw)
        assert (got["terminal"], got["text"]) == ("refusal", "No")


def test_reasoning_is_shown_by_its_summary_and_goes_back_with_its_follower() -> None:
    """PV-7 [087]: the item unchanged, directly before what it led to; encrypted content from the final response too."""
    thought = {
        "id": "rs_1",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}],
    }
    whole = {**thought, "encrypted_content": "enc", "new_field": {"x": [1]}}
    said = message_item("Hi", status="completed", phase="final")
    raw = body(
        state("created"),
        event("output_item.added", output_index=0, item={"id": "rs_1", "type": "reasoning", "summary": []}),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="a"),
        event("reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=1, delta="b"),
        event("output_text.delta", item_id="msg_1", output_index=1, delta="Hi"),
        state("completed", [whole, said]),
    )
    got = decode("openai-responses", raw)
    assert (got["reasoning"], got["text"]) == ("a\n\nb", "Hi")
    items = replayed(raw)
    assert items[0] == whole
    assert items[1] == said
    assert problems("openai-responses", items) == []


def test_reasoning_that_cannot_go_back_is_left_out() -> None:
    """PV-7: without encrypted content, of another provider, unfinished, or with nothing behind it."""
    plain = {"id": "rs", "type": "reasoning", "summary": [], "encrypted_content": None}
    enc = {**plain, "encrypted_content": "e"}
    text = Text("t")
    for parts, count in (
        ((Reasoning("", plain, "openai-responses"), text), 1),
        ((Reasoning("", enc, "other"), text), 1),
        ((Reasoning("half"), text), 1),
        ((text, Reasoning("", enc, "openai-responses")), 1),
        ((Reasoning("", enc, "openai-responses"), text), 2),
        ((Reasoning("", enc, "openai-responses"), Text(" "), ToolCall("c", "f")), 2),
    ):
        assert len(to_wire([Message("a", "assistant", parts)])) == count


def test_items_of_the_providers_own_tools_go_back_as_they_came() -> None:
    """A web search is no call of ours; it is kept in its place."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"query": "x"}}
    raw = body(
        event("output_item.done", output_index=0, item=search),
        state("completed", [search, message_item("ok")]),
    )
    got = decode("openai-responses", raw)
    assert (got["terminal"], got["tool_calls"], got["text"]) == ("complete", [], "ok")
    assert replayed(raw)[0] == search


def test_figures_come_with_the_final_response() -> None:
    """PV-8."""
    assert decode("openai-responses", body(state("completed", usage=USAGE)))["usage"] == {"input": 9, "output": 3, "cached": 4, "reasoning": 2}  # fmt: skip


def test_unknown_events_are_counted_and_ignored() -> None:
    """PV-14; annotations and part borders are known and quiet."""
    raw = body(
        event("future.thing", x=1),
        event("content_part.added", part={}),
        event("output_text.delta", delta=None),
        event("output_item.added", item=None),
        event("output_text.delta", item_id="m", output_index=1, delta="ok"),
        {"type": "keepalive"},
        state("completed"),
    )
    got = decode("openai-responses", raw)
    assert (got["terminal"], got["text"]) == ("complete", "ok")
    assert got["notices"][0] == "unknown_event: response.future.thing"


def test_a_call_without_a_name_is_a_contradiction() -> None:
    """PV-5."""
    got = decode(
        "openai-responses",
        body(event("output_item.done", output_index=0, item=call_item(name="")), state("completed")),
    )
    assert (got["error_kind"], got["tool_calls"]) == ("protocol", [])
