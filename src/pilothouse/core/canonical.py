"""Canonical JSON, digests and the hash chain of a run (RC-2 … RC-6).

Canonical form: UTF-8 JSON without spaces, keys in code point order, absent optionals left out, integers exact in
decimal, floats finite and shortest. It is not RFC 8785, whose numbers are doubles: models send 20-digit ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from math import isfinite
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from ..errors import JournalCorrupt
from ..events import AnyFact, Lane, Opaque
from ..messages import JSON, MEDIA, Value
from ..records import Record

MAX_DEPTH: Final = 100

_encoder: Final = msgspec.json.Encoder(order="sorted")
_encode: Final = _encoder.encode
T = TypeVar("T")
V = TypeVar("V", bound=Value)


class NotJSON(ValueError):
    """A value has no canonical form; `path` leads to it."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why
        super().__init__(f"{path or '$'}: {why}")


def encode(value: object) -> bytes:
    """Writes a value (JSON or vocabulary struct) in canonical form.

    Lone surrogates become U+FFFD, so that no text of a model or tool can make a write fail (RC-4).

    Raises:
        NotJSON: for NaN, infinities, other types, keys that are not text, and depth over 100 (RC-3).
    """
    return normal(value)[1]


def digest(data: bytes) -> str:
    """SHA-256 in hex."""
    return sha256(data).hexdigest()


def digest_of(value: object) -> str:
    """SHA-256 of a value's canonical form."""
    return sha256(encode(value)).hexdigest()


_SCALARS: Final = frozenset({str, int, bool, type(None)})
_EMPTY: Final = frozenset({tuple, list, dict})  # what is empty holds nothing wrong
_LONG: Final = 10**4300
"""Integers from here on are refused: Python writes and reads no more than 4,300 digits."""


def check(value: object, path: str = "", depth: int = 1) -> None:
    """Refuses what JSON cannot hold, naming the path; the fast encoder would write NaN as null (RC-3).

    `depth` counts the lists, objects and vocabulary values around a value, with itself.
    """
    kind = type(value)
    if kind in _SCALARS:
        return
    if kind is float:
        if not isfinite(value):  # type: ignore[arg-type]
            raise NotJSON(path, f"{value!r} is no JSON number")
        return
    if depth > MAX_DEPTH:
        raise NotJSON(path, f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise NotJSON(path, f"key {key!r} is {type(key).__name__}, not str")
            if type(item) not in _SCALARS:
                check(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list) or kind is tuple:
        for index, item in enumerate(value):  # type: ignore[arg-type]
            if type(item) not in _SCALARS:
                check(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, Value):
        for name in _OPEN[kind]:
            item = getattr(value, name)
            if type(item) is bytes and isinstance(value, MEDIA):
                continue  # the content of a media part; msgspec writes base64
            if type(item) not in _SCALARS and (item or type(item) not in _EMPTY):
                check(item, f"{path}.{name}" if path else name, depth + 1)
    elif isinstance(value, str | int):
        return  # enum members and the like encode as what they are
    else:
        raise NotJSON(path, f"{kind.__name__} is no JSON value")


class _OpenFields(dict[type, tuple[str, ...]]):
    """Fields of each vocabulary class that can hold what JSON cannot: the others need no look, fact after fact."""

    def __missing__(self, kind: type) -> tuple[str, ...]:
        self[kind] = ()  # a class that contains itself adds nothing new
        hints = get_type_hints(kind)
        fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
        found = self[kind] = tuple(name for name in fields if _is_open(hints[name]))
        return found


_OPEN: Final = _OpenFields()


def _is_open(hint: object) -> bool:
    if hint is Any:  # a class since Python 3.11, so it is asked for first
        return True
    if inner := get_args(hint):
        origin = get_origin(hint)
        return origin in (dict, Mapping) or (origin is not Literal and any(map(_is_open, inner)))
    if isinstance(hint, type):
        return bool(_OPEN[hint]) if issubclass(hint, Value) else hint in (float, bytes, dict, Mapping)
    return isinstance(hint, TypeVar)


def normal(value: T) -> tuple[T, bytes]:
    """A value in its stored form with its canonical bytes: the same object unless it holds lone surrogates.

    Raises:
        NotJSON: it has no canonical form.
    """
    check(value)
    try:
        return value, _encoder.encode(value)
    except UnicodeEncodeError:
        value = scrub(value)
        return value, _encoder.encode(value)
    except ValueError as error:  # of an integer that Python does not write out
        raise NotJSON(_long_integer(value), str(error)) from error


def _long_integer(value: object, path: str = "") -> str:
    """Where the integer is that is too long; empty if it is the value itself."""
    items: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    elif isinstance(value, Value):
        names = value.__struct_fields__
        items = [(f"{path}.{name}" if path else name, getattr(value, name)) for name in names]
    elif isinstance(value, int):
        return path if abs(value) >= _LONG else ""
    return next((found for name, item in items if (found := _long_integer(item, name))), "")


def scrub(value: T) -> T:
    """A copy in which each lone surrogate is U+FFFD; NUL stays."""
    if isinstance(value, str):
        if value.isascii():
            return value
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # type: ignore[return-value]
    if isinstance(value, Value):
        changes = {name: scrub(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changes)
    if isinstance(value, Mapping):
        return {scrub(key): scrub(item) for key, item in value.items()}  # type: ignore[return-value]
    if isinstance(value, tuple):
        return tuple(scrub(item) for item in value)  # type: ignore[return-value]
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [scrub(item) for item in value]  # type: ignore[return-value]
    return value


def ordered(value: Any, depth: int = MAX_DEPTH) -> Any:
    """JSON with its keys as they will be read back: whoever sends it again sends the same bytes, also after a restart.

    What is nested deeper than can be stored stays as it is.
    """
    if type(value) is dict and depth:
        return {key: ordered(value[key], depth - 1) for key in sorted(value)}
    if type(value) is list and depth:
        return [ordered(item, depth - 1) for item in value]
    return value


# The stored body of a fact


class Body(Value):
    """What is stored of a fact: its digest is the SHA-256 of these bytes (RC-5)."""

    data: AnyFact
    event_id: str
    causation: str | None = None
    source: str | None = None


class _OpaqueBody(Value):
    data: JSON
    event_id: str
    causation: str | None = None
    source: str | None = None


KINDS: Final = frozenset(fact.__struct_config__.tag for fact in get_args(AnyFact))
"""The tags of all facts of this vocabulary."""

_body_decoder: Final = msgspec.json.Decoder(Body)
_decode: Final = _body_decoder.decode
_opaque_decoder: Final = msgspec.json.Decoder(_OpaqueBody)


def chain_start(run_id: str, spec_digest: str) -> str:
    """The chain value before the first fact."""
    return sha256(f"{run_id}\n{spec_digest}".encode()).hexdigest()


_LINK: Final = "%s\n%d\n%d\n%s\n%d\n%s"
"""What is hashed for a chain value (RC-6): the value before, seq, time, lane, fence, digest of the body."""


def chain_next(previous: str, seq: int, at_ms: int, lane: Lane, fence: int, body_digest: str) -> str:
    """The chain value after a fact (RC-6)."""
    return sha256((_LINK % (previous, seq, at_ms, lane, fence, body_digest)).encode()).hexdigest()


def seal(
    run_id: str,
    seq: int,
    at_ms: int,
    lane: Lane,
    fence: int,
    fact: AnyFact,
    event_id: str,
    causation: str | None,
    source: str | None,
    previous: str,
) -> Record:
    """Makes the record of a judged fact: encoded and hashed once, here (JR-28).

    Its `fact` is what its body says, so where text held a lone surrogate it is a scrubbed copy (RC-4). What a runtime
    tells is read back at once: nothing is stored that could be written but not read.

    Raises:
        NotJSON: the fact holds something that has no canonical form, or a field what it must not hold.
    """
    is_open = _OPEN[type(fact)]
    told = lane == "runtime"
    if is_open and not told:
        check(fact, depth=2)
    given = Body(fact, event_id, causation, source)
    try:
        body = _encode(given)
        if told:
            read = _decode(body)
            if is_open:
                _compare(read, given, body)
    except (RecursionError, TypeError, ValueError):
        # Rare, so nobody pays for looking: lone surrogates, no JSON at all.
        try:
            stored, body = normal(given)
            readable(body)
        except NotJSON as error:
            raise NotJSON(error.path.removeprefix("data."), error.why) from error
        fact, event_id, causation, source = stored.data, stored.event_id, stored.causation, stored.source
    body_digest = sha256(body).hexdigest()
    chain = chain_next(previous, seq, at_ms, lane, fence, body_digest)
    return Record(
        run_id, seq, at_ms, lane, fence, event_id, fact, body_digest, chain, body, causation, source
    )


def _compare(read: object, given: object, body: bytes) -> None:
    """Sees by comparing, in C, what `check` would have to walk through: NaN comes back as null, a set as a list.

    Raises:
        ValueError: it has to be looked at.
    """
    if read != given or body.count(b"{") + body.count(b"[") > MAX_DEPTH:
        raise ValueError


def encode_body(fact: AnyFact, event_id: str, causation: str | None, source: str | None) -> bytes:
    """The bytes that are stored of a fact (RC-5)."""
    return encode(Body(fact, event_id, causation, source))


def readable(body: bytes, kind: type[Value] = Body) -> None:
    """Refuses what could be written but not be read back: a field holds what it must not hold. 1 µs for a fact.

    Raises:
        NotJSON: names the path.
    """
    try:
        (_body_decoder if kind is Body else _decoder_of(kind)).decode(body)
    except msgspec.ValidationError as error:
        why, _, path = str(error).partition(" - at `$.")
        raise NotJSON(path.rstrip("`").removeprefix("data." if kind is Body else ""), why) from error


@cache
def _decoder_of(kind: type[Value]) -> msgspec.json.Decoder[Value]:
    return msgspec.json.Decoder(kind)


def settled(value: V) -> tuple[V, bytes]:
    """A value of the vocabulary as it will be read back, with its canonical bytes: the same object unless text is scrubbed.

    Raises:
        NotJSON: it has no canonical form, or holds what it must not hold.
    """
    kind = type(value)
    try:
        body = _encode(value)
        _compare(_decoder_of(kind).decode(body), value, body)
    except (RecursionError, TypeError, ValueError):  # rare, so nobody pays for looking
        value, body = normal(value)
        readable(body, kind)
    return value, body


def misshapen(value: Value) -> str:
    """Why a value of the vocabulary is none: where it holds what it must not hold, or what JSON cannot; else empty."""
    try:
        readable(encode(value), type(value))
    except (NotJSON, TypeError) as error:  # a type error is of a field that the check need not look at
        return str(error)
    return ""


def draft_digest(fact: AnyFact, event_id: str, causation: str | None, source: str | None) -> str:
    """The digest that a record of this draft would have."""
    return digest(encode_body(fact, event_id, causation, source))


def unseal(
    run_id: str, seq: int, at_ms: int, lane: Lane, fence: int, body: bytes, chain: str, previous: str | None
) -> Record:
    """Reads a stored body back, checking it against the chain.

    `previous` is the chain value before it, None where the reader does not know it (then only decoding is checked).
    A kind of a newer vocabulary comes back as `Opaque`.

    Raises:
        JournalCorrupt: it is not what was stored.
    """
    body_digest = sha256(body).hexdigest()
    if previous is not None and chain_next(previous, seq, at_ms, lane, fence, body_digest) != chain:
        raise JournalCorrupt(run_id, seq, "digest or chain does not match")
    try:
        stored = _body_decoder.decode(body)
        fact: AnyFact | Opaque = stored.data
        event_id, causation, source = stored.event_id, stored.causation, stored.source
    except msgspec.DecodeError as error:
        try:
            opaque = _opaque_decoder.decode(body)
            if (kind := opaque.data["kind"]) in KINDS or type(kind) is not str:
                # One of ours, but with a field that is not (RC-8).
                raise JournalCorrupt(run_id, seq, str(error)) from error
            fact = Opaque(kind, opaque.data)
        except (msgspec.DecodeError, TypeError, KeyError):
            raise JournalCorrupt(run_id, seq, str(error)) from error
        event_id, causation, source = opaque.event_id, opaque.causation, opaque.source
    return Record(
        run_id, seq, at_ms, lane, fence, event_id, fact, body_digest, chain, body, causation, source
    )
