"""Canonical JSON, digests and the hash chain (RC-2 … RC-8, run-controller §5, proofs 1 and 2)."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilothouse.commands import Answer, Cancel, Command, InputAnswer, Steer
from pilothouse.core import canonical
from pilothouse.core.canonical import (
    MAX_DEPTH,
    NotJSON,
    chain_next,
    chain_start,
    digest,
    digest_of,
    draft_digest,
    encode,
    misshapen,
    normal,
    ordered,
    readable,
    scrub,
    seal,
    settled,
    unseal,
)
from pilothouse.errors import JournalCorrupt
from pilothouse.events import CallStarted, MessageAdded, Noted, Opaque, OutputAdded, RunEnded, TurnStarted
from pilothouse.messages import Image, Message, Structured, Text, ToolCall
from pilothouse.records import Record, RunSpec

# Any text, whatever Python lets a str hold: NUL, lone surrogates, characters beyond the basic plane.
ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
FIT_TEXT = st.text(max_size=12)
NUMBERS = (
    st.integers()
    | st.integers(min_value=-(10**40), max_value=10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from([0, -0.0, 5, 5.0, 2**53 + 1, 2**64, 10**19 + 1, 1e22, 5e-324, 1.7976931348623157e308])
)


def trees(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    """JSON values."""
    leaves = st.none() | st.booleans() | NUMBERS | texts
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=12,
    )


JSON = trees(FIT_TEXT)


def _nested(depth: int) -> Any:
    """Lists in lists, that deep."""
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def strict(value: Any) -> Any:
    """A value with the types that `==` forgets: 5 and 5.0, 0.0 and -0.0, True and 1."""
    if isinstance(value, dict):
        return {key: strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return (type(value).__name__, repr(value))


# Round trip


@given(JSON)
def test_what_is_written_is_read_back_and_written_the_same(value: Any) -> None:
    """RC-2: `encode(decode(b)) == b`, and nothing of the value is lost: integers exact, -0.0 and 5.0 kept."""
    body = encode(value)
    again = msgspec.json.decode(body)
    assert strict(again) == strict(value)
    assert encode(again) == body


@given(JSON)
def test_the_standard_library_reads_the_same(value: Any) -> None:
    """RC-2: it is JSON for everybody, in UTF-8, without spaces outside of text."""
    assert strict(json.loads(encode(value))) == strict(value)


@given(st.dictionaries(FIT_TEXT, NUMBERS, max_size=8), st.randoms())
def test_a_digest_does_not_depend_on_the_order_of_keys(value: dict[str, Any], random: Any) -> None:
    """RC-2."""
    pairs = list(value.items())
    random.shuffle(pairs)
    assert digest_of(dict(pairs)) == digest_of(value) == digest(encode(value))


def test_keys_stand_in_the_order_of_code_points() -> None:
    """RC-2: not of UTF-16 units, where U+10000 would come before U+FFFF."""
    assert encode({"\U00010000": 1, "\uffff": 2, "é": 3, "z": 4, "": 5, "Z": 6}).decode() == (
        '{"":5,"Z":6,"z":4,"é":3,"\uffff":2,"\U00010000":1}'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345678901234567890123, "12345678901234567890123"), (-(2**63) - 1, "-9223372036854775809"),
        (-0.0, "-0.0"), (5.0, "5.0"), (5, "5"), (1e16, "1e16"), (0.1, "0.1"), (1e-7, "1e-7"), (True, "true"),
        (None, "null"), ("\x00", '"\\u0000"'), ("\u2028", '"\u2028"'), ((1, 2), "[1,2]"), ({}, "{}"), ([], "[]"),
    ],
)  # fmt: skip
def test_the_form_is_fixed(value: Any, text: str) -> None:
    """RC-2, RC-3: pinned, since every digest hangs on it."""
    assert encode(value).decode() == text


class _Word(StrEnum):
    GO = "go"


class _Count(IntEnum):
    TWO = 2


def test_enumerations_are_written_as_what_they_are() -> None:
    """A member of a text or integer enumeration is that text or integer."""
    assert encode({"a": _Word.GO, "b": _Count.TWO}) == b'{"a":"go","b":2}'


def test_absent_optionals_are_left_out_and_fields_stand_in_order() -> None:
    """RC-2: struct fields are keys like any other, the tag among them."""
    fact = CallStarted("c", 1, "t", "d", arguments={"z": 1, "a": 2})
    assert encode(fact) == (
        b'{"arguments":{"a":2,"z":1},"arguments_digest":"d","attempt":1,"call_id":"c","kind":"call_started","tool":"t"}'
    )


# Refusals


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [1, {"b": math.nan}]}, "a[1].b"),
        ([math.inf], "[0]"),
        (-math.inf, ""),
        ({"a": {1: 2}}, "a"),
        ({"a": {("t",): 2}}, "a"),
        ({"a": {_Word.GO: 2}}, "a"),
        ({"a": {None: 2}}, "a"),
        ({"a": {1, 2}}, "a"),
        ({"a": set()}, "a"),
        ({"a": frozenset()}, "a"),
        ({"a": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)}, "a"),
        ({"a": dt.date(2024, 1, 1)}, "a"),
        ({"a": b"raw"}, "a"),
        ({"data": b"raw"}, "data"),
        ({"a": bytearray()}, "a"),
        ({"a": Decimal(1)}, "a"),
        ({"a": 1j}, "a"),
        ({"a": object()}, "a"),
        ({"a": (1, [len])}, "a[1][0]"),
        (Noted("n/x", {"deep": [math.nan]}), "data.deep[0]"),
        (Noted("n/x", set()), "data"),
        (Noted("n/x", b""), "data"),
        (Noted("n/x", b"raw"), "data"),
        (Noted("n/x", {"data": b"raw"}), "data.data"),
        (OutputAdded("o", "n", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)), "content"),
        (MessageAdded(Message("m", "user", (Structured({"x": {3: 4}}),))), "message.parts[0].data.x"),
        (MessageAdded(Message("m", "user", (), {"k": math.inf})), "message.metadata.k"),
        (MessageAdded(Message("m", "assistant", (ToolCall("c", "t", {"a": {1}}),))), "message.parts[0].arguments.a"),
        (RunSpec("r", "t", options={"a": [b""]}), "options.a[0]"),
        (Command("c", "r", Answer("q", InputAnswer({"a": math.nan}))), "body.resolution.content.a"),
    ],
)  # fmt: skip
def test_what_json_cannot_hold_is_refused_with_its_path(value: Any, path: str) -> None:
    """RC-3: fast encoders write NaN as null, bytes as text, keys as whatever."""
    with pytest.raises(NotJSON) as caught:
        encode(value)
    assert caught.value.path == path
    assert (path or "$") in str(caught.value)


@pytest.mark.parametrize("lane", ["host", "runtime"])
@pytest.mark.parametrize(
    ("data", "path"),
    [
        (math.nan, "data"),
        ({"a": [{"b": math.inf}]}, "data.a[0].b"),
        ({1: 2}, "data"),
        ({1: 2, "1": 2}, "data"),
        ({"a": {1, 2}}, "data.a"),
        ([dt.date(2024, 1, 1)], "data[0]"),
        (b"raw", "data"),
        ([Decimal(1)], "data[0]"),
        ([object()], "data[0]"),
        ([10**5000], "data[0]"),
        (_nested(MAX_DEPTH), "data" + "[0]" * (MAX_DEPTH - 2)),
        (_nested(5_000), "data" + "[0]" * (MAX_DEPTH - 2)),
    ],
)
def test_no_lane_seals_what_json_cannot_hold(lane: Any, data: Any, path: str) -> None:
    """RC-3: a runtime's facts are read back instead of being walked through, and refused for the same with the same path."""
    with pytest.raises(NotJSON) as caught:
        sealed(Noted("n/x", data), lane=lane)
    assert caught.value.path == path


@pytest.mark.parametrize("lane", ["host", "runtime"])
@pytest.mark.parametrize(
    "data",
    [
        OrderedDict(b=1, a=2),
        (1, [2]),
        [[1] * 60, [[1]] * 60],
        _nested(MAX_DEPTH - 2),
        10**30,
        -0.0,
        [True, None],
        "\ud800",
    ],
)
def test_every_lane_seals_what_json_can_hold(lane: Any, data: Any) -> None:
    """RC-3, RC-4: and it reads back as it was stored, also where a tuple comes back as a list."""
    record = sealed(Noted("n/x", data), lane=lane)
    assert opened(record, lane=lane).digest == record.digest


@given(
    JSON, st.sampled_from([math.nan, math.inf, b"x", set(), dt.date(2024, 1, 1), {1: 2}, 1j]), st.randoms()
)
def test_one_wrong_leaf_anywhere_is_found(value: Any, wrong: Any, random: Any) -> None:
    """RC-3: wherever it hangs; and the path leads there."""
    spoiled, path = _spoil(value, wrong, random)
    with pytest.raises(NotJSON) as caught:
        encode(spoiled)
    assert caught.value.path == path


def _spoil(value: Any, wrong: Any, random: Any, path: str = "") -> tuple[Any, str]:
    """A copy with `wrong` in one place of it, and the way there."""
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        inner, where = _spoil(value[key], wrong, random, f"{path}.{key}" if path else key)
        return {**value, key: inner}, where
    if isinstance(value, list) and value:
        index = random.randrange(len(value))
        inner, where = _spoil(value[index], wrong, random, f"{path}[{index}]")
        return [*value[:index], inner, *value[index + 1 :]], where
    return wrong, path


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: {"k": inner}, lambda inner: (inner,)])
@pytest.mark.parametrize("leaf", [1, 1.5, "x", None])
def test_a_hundred_levels_are_written_and_one_more_is_refused(wrap: Any, leaf: Any) -> None:
    """RC-3: depth over 100, whatever stands at the end."""
    value = leaf
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert msgspec.json.decode(encode(value)) is not None
    with pytest.raises(NotJSON, match="nested deeper than 100"):
        encode(wrap(value))


def test_a_value_without_an_end_is_refused() -> None:
    """RC-3: a list in itself is deeper than any."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotJSON, match="nested deeper"):
        encode(value)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_integer_that_python_does_not_write_is_refused_with_its_path(sign: int) -> None:
    """RC-2, RC-3: 4,299 digits are written and read; more than 4,300 are neither."""
    number, largest = sign * 10**4300, sign * 10**4298
    assert msgspec.json.decode(encode([largest])) == [largest]
    for value, path in (
        (number, ""), ([1, {"a": number}], "[1].a"), ((number,), "[0]"),
        (Noted("n/x", [number]), "data[0]"), (TurnStarted(number), "turn"),
    ):  # fmt: skip
        with pytest.raises(NotJSON) as caught:
            encode(value)
        assert caught.value.path == path


def test_only_media_hold_bytes() -> None:
    """The content of an image is written in base64 and read back; no other field takes bytes."""
    message = Message("m", "user", (Image("image/png", data=b"\x89PNG\x00"),))
    assert msgspec.json.decode(encode(message), type=Message) == message


# Surrogates and NUL


@given(trees(ANY_TEXT))
def test_no_text_makes_a_write_fail(value: Any) -> None:
    """RC-4: what cannot be written becomes U+FFFD, and what is stored is what is in memory."""
    stored, body = normal(value)
    assert strict(msgspec.json.decode(body)) == strict(stored)
    assert encode(stored) == body


@given(ANY_TEXT)
def test_each_lone_surrogate_is_one_replacement_and_the_rest_stays(text: str) -> None:
    """RC-4: NUL stays, a pair of surrogates is the character that it means, a lone one is U+FFFD."""
    expected, rest = "", text
    while rest:
        pair = rest[:2]
        if len(pair) == 2 and "\ud800" <= pair[0] <= "\udbff" and "\udc00" <= pair[1] <= "\udfff":
            expected, rest = expected + pair.encode("utf-16", "surrogatepass").decode("utf-16"), rest[2:]
        else:
            expected, rest = expected + ("�" if "\ud800" <= rest[0] <= "\udfff" else rest[0]), rest[1:]
    assert scrub(text) == expected


def test_scrubbing_reaches_keys_and_every_part() -> None:
    """RC-4."""
    value = Noted("n/x", {"a\ud800": ["\udfff", ("b\x00", 1, None)], "c": {"d": "\ud83d\ude00"}})
    assert scrub(value) == Noted("n/x", {"a�": ["�", ("b\x00", 1, None)], "c": {"d": "😀"}})
    image = Image("image/png", data=b"\xed\xa0\x80", filename="\ud800")
    assert scrub(image) == Image("image/png", data=b"\xed\xa0\x80", filename="�")


def test_a_sealed_fact_is_what_its_body_says() -> None:
    """RC-4, RC-5: the record of scrubbed text holds the scrubbed text, in every field."""
    record = sealed(Noted("n/x", "a\ud800b\x00"), event_id="e\ud800", causation="c\ud800", source="s\ud800")
    assert (record.fact, record.event_id, record.causation, record.source) == (
        Noted("n/x", "a�b\x00"), "e�", "c�", "s�",
    )  # fmt: skip
    assert opened(record) == record
    assert record.digest == draft_digest(Noted("n/x", "a\ud800b\x00"), "e\ud800", "c\ud800", "s\ud800")


def test_a_number_without_end_in_a_fact_is_named() -> None:
    """RC-3: by its path in the fact, as everywhere."""
    with pytest.raises(NotJSON, match=r"^data\.deep\[1\]: "):
        sealed(Noted("n/x", {"deep": [1, 10**4300]}))


# Bodies and chain


def sealed(fact: Any, *, seq: int = 1, previous: str = "0", **changes: Any) -> Record:
    values = {"event_id": "e", "causation": None, "source": None, "at_ms": 7, "lane": "runtime", "fence": 1}
    return seal(run_id="r", seq=seq, fact=fact, previous=previous, **(values | changes))


def opened(record: Record, *, previous: str | None = "0", **changes: Any) -> Record:
    names = ("run_id", "seq", "at_ms", "lane", "fence", "body", "chain")
    values = {name: getattr(record, name) for name in names}
    return unseal(**(values | {"previous": previous} | changes))


@given(JSON)
def test_a_sealed_fact_comes_back(data: Any) -> None:
    """RC-2, RC-5: the same digest, and the same bytes when it is sealed again."""
    record = sealed(Noted("n/x", data), causation="c", source="s")
    back = opened(record)
    assert back.body == record.body
    assert strict(back.fact.data) == strict(data)
    assert back.digest == record.digest == digest(record.body)
    assert sealed(back.fact, causation="c", source="s") == back


@settings(max_examples=60)
@given(st.dictionaries(FIT_TEXT, NUMBERS, max_size=3), st.data())
def test_any_changed_byte_of_a_body_is_found(data: dict[str, Any], choose: Any) -> None:
    """RC-6: whatever it is changed to, wherever it stands, dropped or added."""
    record = sealed(Noted("n/x", data))
    place = choose.draw(st.integers(0, len(record.body) - 1))
    byte = choose.draw(st.integers(0, 255).filter(lambda byte: byte != record.body[place]))
    body = record.body
    for changed in (
        body[:place] + bytes([byte]) + body[place + 1 :],
        body[:place] + body[place + 1 :],
        body[:place] + bytes([byte]) + body[place:],
        body[:-1],
        body + b" ",
    ):
        with pytest.raises(JournalCorrupt) as caught:
            opened(record, body=changed)
        assert (caught.value.run_id, caught.value.seq) == ("r", 1)


def test_every_single_byte_of_a_body_counts() -> None:
    """RC-6: all of them, each bit."""
    record = sealed(MessageAdded(Message("m1", "user", (Text("héllo"),)), 1), causation="c", source="s")
    for place in range(len(record.body)):
        for bit in range(8):
            changed = bytearray(record.body)
            changed[place] ^= 1 << bit
            with pytest.raises(JournalCorrupt):
                opened(record, body=bytes(changed))


@pytest.mark.parametrize(
    "change",
    [{"seq": 2}, {"at_ms": 8}, {"lane": "host"}, {"fence": 2}, {"previous": "1"}, {"chain": "0" * 64}],
)
def test_what_stands_around_a_body_counts_too(change: dict[str, Any]) -> None:
    """RC-6: seq, time, lane, fence and everything before it are in the chain."""
    with pytest.raises(JournalCorrupt):
        opened(sealed(TurnStarted(1)), **change)


def test_the_chain_begins_with_the_run_and_its_spec() -> None:
    """RC-6: a fact of another run, or under another spec, is not this one's."""
    assert len({chain_start("r", "d"), chain_start("q", "d"), chain_start("r", "e")}) == 3
    links = {
        chain_next("p", 1, 7, "host", 1, "d"), chain_next("q", 1, 7, "host", 1, "d"), chain_next("p", 2, 7, "host", 1, "d"),
        chain_next("p", 1, 8, "host", 1, "d"), chain_next("p", 1, 7, "runtime", 1, "d"),
        chain_next("p", 1, 7, "host", 2, "d"), chain_next("p", 1, 7, "host", 1, "e"), chain_next("p", 11, 7, "host", 1, "d"),
    }  # fmt: skip
    assert len(links) == 8


@given(st.integers(2, 6), st.data())
def test_a_changed_lost_or_moved_record_breaks_every_chain_behind_it(count: int, choose: Any) -> None:
    """RC-6: within a run nothing can be changed, dropped, doubled or reordered unseen."""
    records: list[Record] = []
    chain = chain_start("r", "spec")
    for seq in range(1, count + 1):
        records.append(sealed(Noted("n/x", seq), seq=seq, previous=chain))
        chain = records[-1].chain
    kind = choose.draw(st.sampled_from(["drop", "double", "swap", "other"]))
    place = choose.draw(st.integers(0, count - 2))
    spoiled = list(records)
    match kind:
        case "drop":
            del spoiled[place]
        case "double":
            spoiled.insert(place, records[place])
        case "swap":
            spoiled[place], spoiled[place + 1] = spoiled[place + 1], spoiled[place]
        case _:
            spoiled[place] = sealed(
                Noted("n/x", "forged"), seq=place + 1, previous=chain_start("r", "spec"), at_ms=8
            )
    with pytest.raises(JournalCorrupt):
        _follow(spoiled)
    _follow(records)


def _follow(records: list[Record]) -> None:
    chain = chain_start("r", "spec")
    for seq, record in enumerate(records, 1):
        opened(record, seq=seq, previous=chain)
        chain = record.chain


def test_without_the_chain_before_it_only_the_form_is_checked() -> None:
    """A page that begins in the middle is checked from its second record on."""
    record = sealed(TurnStarted(1))
    assert opened(record, previous=None) == record
    with pytest.raises(JournalCorrupt):
        opened(record, previous=None, body=b"{")


# Vocabulary


def test_unknown_core_fields_are_refused_at_every_level() -> None:
    """RC-8: extra data lives in extensions."""
    for body in (
        b'{"data":{"kind":"turn_started","turn":1,"extra":1},"event_id":"e"}',
        b'{"data":{"kind":"turn_started","turn":1},"event_id":"e","extra":1}',
        b'{"data":{"kind":"message_added","message":{"id":"m","role":"user","extra":1}},"event_id":"e"}',
        b'{"data":{"kind":"run_ended","outcome":{"outcome":"completed","extra":1}},"event_id":"e"}',
        b'{"data":{"kind":"turn_started","turn":"1"},"event_id":"e"}',
        b'{"data":{"kind":"turn_started"},"event_id":"e"}',
        b'{"data":[],"event_id":"e"}',
        b'{"data":{},"event_id":"e"}',
        b'{"data":{"kind":1},"event_id":"e"}',
        b'{"data":{"kind":["turn_started"]},"event_id":"e"}',
        b'{"event_id":"e"}',
        b"[]",
        b"",
        b"\xff",
    ):
        with pytest.raises(JournalCorrupt):
            unseal("r", 1, 7, "host", 1, body, "", None)


def test_a_kind_of_a_newer_vocabulary_is_readable_as_data() -> None:
    """RC-9."""
    body = b'{"causation":"c","data":{"kind":"moon_landed","where":"sea"},"event_id":"e","source":"s"}'
    record = unseal("r", 1, 7, "runtime", 1, body, "", None)
    assert record.fact == Opaque("moon_landed", {"kind": "moon_landed", "where": "sea"})
    assert (record.event_id, record.causation, record.source, record.body) == ("e", "c", "s", body)


@pytest.mark.parametrize(
    ("fact", "path"),
    [
        (TurnStarted("1"), "turn"),
        (TurnStarted(True), "turn"),
        (TurnStarted(None), "turn"),
        (MessageAdded(Message("m", "narrator")), "message.role"),
        (MessageAdded("hello"), "message"),
        (RunEnded(None), "outcome"),
        (Noted(5), "name"),
        (CallStarted("c", 1, "t", "d", "maybe"), "effect"),
    ],
)
def test_what_could_be_written_but_not_read_back_is_refused_with_its_path(fact: Any, path: str) -> None:
    """§4, `invalid_fact`: a runtime's mistake must not make a run unreadable."""
    with pytest.raises(NotJSON) as caught:
        readable(sealed(fact).body)
    assert caught.value.path == path


def test_what_was_sealed_is_readable() -> None:
    """No refusal of a good fact."""
    for fact in (
        TurnStarted(1),
        Noted("n/x", {"a": [1]}),
        MessageAdded(Message("m", "user", (Text("x"),)), 1),
    ):
        readable(sealed(fact).body)


def test_every_class_of_the_vocabulary_is_looked_into_where_it_can_hold_anything() -> None:
    """RC-3: the fields that `check` skips hold text, numbers and the like only."""
    assert canonical._OPEN[TurnStarted] == ()
    assert set(canonical._OPEN[CallStarted]) == {"arguments"}
    assert set(canonical._OPEN[Noted]) == {"data"}
    assert "parts" in canonical._OPEN[Message]
    assert "message" in canonical._OPEN[MessageAdded]
    assert set(canonical._OPEN[RunSpec]) >= {"input", "base", "options", "output_schema", "extensions"}


def test_a_value_of_the_wrong_shape_is_told_from_a_good_one() -> None:
    """RC-31, RC-36: before anything is written."""
    assert (
        misshapen(TurnStarted(1))
        == misshapen(RunSpec("r", "t"))
        == misshapen(Command("c", "r", Cancel("x")))
        == ""
    )
    assert misshapen(Command("c", "r", Steer("hello"))).startswith("body.message: Expected `object`")
    assert misshapen(RunSpec("r", "t", ("hello",))).startswith("input[0]: Expected `object`")
    assert misshapen(Noted("n/x", {1})) == "data: set is no JSON value"


def test_a_value_is_settled_as_it_reads_back() -> None:
    """RC-3, RC-4: the same object where nothing is odd; scrubbed text; a tuple in JSON; else refused with the path."""
    plain = RunSpec("r", "t", options={"a": [1, {"b": None}]})
    assert settled(plain)[0] is plain
    assert settled(plain)[1] == encode(plain)
    assert settled(RunSpec("r", "\ud800"))[0].thread_id == "\ufffd"
    assert settled(RunSpec("r", "t", options={"a": (1, 2)}))[1] == encode(
        RunSpec("r", "t", options={"a": [1, 2]})
    )
    for odd, path in ((RunSpec("r", "t", options={"a": {1}}), "options.a"), (RunSpec("r", 5), "thread_id")):
        with pytest.raises(NotJSON) as caught:
            settled(odd)
        assert caught.value.path == path


@given(JSON)
def test_ordered_json_is_written_as_it_is_read_back(value: object) -> None:
    """RC-3, PV-13: the same value, with the keys of every object in canonical order."""
    found = ordered(value)
    assert found == value
    assert msgspec.json.encode(found) == encode(value)


def test_what_is_too_deep_to_be_stored_is_left_as_it_is() -> None:
    """RC-3: it is refused where it is to be stored, not here."""
    deep: object = {"b": 1, "a": 2}
    for _ in range(3 * MAX_DEPTH):
        deep = {"b": deep, "a": []}
    assert ordered(deep) == deep


def test_a_field_that_json_cannot_write_at_all_is_misshapen_too() -> None:
    """RC-3: a class does not look at its fields when somebody makes one."""
    assert "type" in misshapen(Image("image/png", filename=object()))  # type: ignore[arg-type]
