"""Provider events to one assistant message, its usage and its end (PV-4 … PV-8).

Incremental: `feed` takes an event and returns what an interface should be told of it, with the block's number and the
characters told before. `message` is what there is of the message so far, or all of it. Nothing here knows a dialect:
a call's arguments are judged here, once for all of them.

Where several blocks are open at once they stay apart; in the message they stand in the order of their numbers, which
is that of their first appearance.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec

from ..events import ArgumentsTold, ReasoningTold, TextTold
from ..messages import JSON, Message, Part, Reasoning, Text, ToolCall, Usage
from ..responses import (
    BlockEnded,
    Notice,
    ProviderEvent,
    ReasoningDelta,
    ResponseStarted,
    StreamEnd,
    TextDelta,
    ToolCallDelta,
    UsageUpdate,
)
from .canonical import MAX_DEPTH, NotJSON, check, misshapen, ordered
from .prices import is_money
from .unicode import clean, clean_json

Told: TypeAlias = TextTold | ReasoningTold | ArgumentsTold
"""What a port can be told of an event. `index` is the block's number, `offset` is filled in."""

_NOTHING: Final = frozenset({"", "null", '"null"', '""'})
"""Argument texts that mean {} (PV-6)."""


_WORDS: Final = frozenset({str, type(None)})
_COUNTS: Final = frozenset({int, type(None)})
_counts: Final = attrgetter("input", "output", "total", "cache_read", "cache_write", "reasoning")


class _Block:
    """A part of the message while it grows."""

    __slots__ = ("ended", "number", "pieces", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pieces: list[str] = []
        self.size = 0  # characters in them
        self.ended: BlockEnded | None = None

    def grow(self, text: str) -> int:
        """Adds a piece; returns the characters before it."""
        if not isinstance(text, str):
            raise TypeError(f"a piece of text is {type(text).__name__}")
        before = self.size
        self.pieces.append(text)
        self.size = before + len(text)
        return before


class _TextBlock(_Block):
    __slots__ = ()

    def part(self, tag: str) -> Part | None:
        text = "".join(self.pieces)
        data = _tagged(self.ended.provider_data if self.ended else None, tag)
        return Text(text, data) if text or data is not None else None


class _ReasoningBlock(_Block):
    __slots__ = ()

    def part(self, tag: str) -> Part | None:
        text, end = "".join(self.pieces), self.ended
        if end is None:  # not finished: it may be shown, and does not go back as reasoning
            return Reasoning(text) if text else None
        if not text and end.raw is None and end.provider_data is None:
            return None
        return Reasoning(text, ordered(end.raw), tag, end.redacted, _tagged(end.provider_data, tag))


class _CallBlock(_Block):
    __slots__ = ("call_id", "name", "value", "wire_id")

    def __init__(self, number: int, call_id: str, wire_id: str | None) -> None:
        super().__init__(number)
        self.call_id = call_id
        self.wire_id = wire_id
        self.name = ""
        self.value: dict[str, JSON] | None = None  # where the arguments came as one object and nothing else

    def spell(self, args: str | dict[str, JSON]) -> str:
        """The piece of text that arguments add; an object that is told again adds none."""
        if isinstance(args, str):
            self.value = None if args else self.value
            return args
        if args == self.value:
            return ""
        self.value = None if self.size else args
        import json

        return json.dumps(args, ensure_ascii=False, separators=(",", ":"))

    def part(self, tag: str) -> Part | None:
        if not self.name:  # never run, never replayed
            return None
        raw = "".join(self.pieces)
        if self.ended is not None and isinstance(self.ended.raw, str):  # the provider's last word
            raw, self.value = self.ended.raw, None
        value, why = judge_arguments(raw) if self.value is None else judge_object(self.value)
        data = dict(self.ended.provider_data) if self.ended and self.ended.provider_data else {}
        if self.wire_id is not None and self.wire_id != self.call_id:
            data["wire_id"] = self.wire_id
        return ToolCall(self.call_id, self.name, ordered(value), raw, why, _tagged(data or None, tag))


class Assembly:
    """One response while it comes in.

    `tag` is the provider's; `taken` are the call ids in use in the thread; `ids` makes one for a call that came
    without (the default counts, prefixed by the message's id, which is unique in the thread).

    Attributes:
        started: the response's id and model as far as told.
        usage: the figures told last, field by field; None if none was.
        notices: what was odd.
        end: how the response ended, once it has.
        visible: a non-empty text, reasoning or argument piece was told.
    """

    def __init__(
        self,
        message_id: str,
        *,
        tag: str = "",
        taken: Container[str] = frozenset(),
        ids: Callable[[], str] | None = None,
    ) -> None:
        self.message_id = message_id
        self.tag = tag
        self.started: ResponseStarted | None = None
        self.notices: list[Notice] = []
        self.end: StreamEnd | None = None
        self.visible = False
        self._usage: Usage | None = None
        self._taken = taken
        self._ids = ids
        self._made = 0
        self._mine: set[str] = set()
        self._texts: dict[int, _TextBlock] = {}
        self._text: _TextBlock | None = None  # the one that grew last
        self._thoughts: dict[int, _ReasoningBlock] = {}
        self._calls: dict[int, _CallBlock] = {}

    def feed(self, event: ProviderEvent) -> Told | None:
        """Takes the next event. Nothing that comes after the end counts.

        Raises:
            TypeError: the event holds what it must not hold. What was taken before stays a message.
        """
        if self.end is not None:
            return None
        return _TAKE[type(event)](self, event)

    @property
    def usage(self) -> Usage | None:
        """The last figures; `total` is the provider's, else input + output. `native` can be stored."""
        usage = self._usage
        if usage is None:
            return None
        total, native = usage.total, usage.native
        if total is None and usage.input is not None and usage.output is not None:
            total = usage.input + usage.output
        try:
            check(native)
        except NotJSON:  # NaN, or deeper than a fact may be
            native = None
        if total == usage.total and native is usage.native:
            return usage
        return msgspec.structs.replace(usage, total=total, native=native)

    def check_usage(self) -> str:
        """Forgets figures that are none, and says why; empty where there is nothing to forget."""
        if (usage := self._usage) is None or (
            _COUNTS.issuperset(map(type, _counts(usage))) and (usage.cost is None or is_money(usage.cost))
        ):
            return ""
        self._usage = None
        return f"its figures are none: {usage!r}"

    def message(self) -> Message:
        """The message as far as it has come; `stop_reason` is None until the end."""
        blocks: list[_TextBlock | _ReasoningBlock | _CallBlock] = [
            *self._texts.values(),
            *self._thoughts.values(),
            *self._calls.values(),
        ]
        blocks.sort(key=lambda block: block.number)
        parts = [part for block in blocks if (part := block.part(self.tag)) is not None]
        reason = self.end.reason if self.end is not None else None
        return Message(self.message_id, "assistant", tuple(parts), stop_reason=reason)

    def text(self, event: TextDelta) -> TextTold | None:
        """`feed` for a piece of text. Nothing may have come that ended it."""
        text = event.text
        if not text:
            return None
        number = event.block
        block = self._text
        if block is None or block.number != number:
            block = self._text = self._texts.setdefault(number, _TextBlock(number))
            self.visible = True
        before = block.size
        block.pieces.append(text)
        block.size = before + len(text)
        return TextTold(self.message_id, number, text, before)

    def flowing(self, number: int) -> Callable[[str], None]:
        """Opens a text block to be given its pieces, none of them empty; from then on it is not fed.

        Raises:
            TypeError: it is no number.
        """
        _check_number(number)
        self.visible = True
        return self._texts.setdefault(number, _TextBlock(number)).pieces.append

    def _take_reasoning(self, event: ReasoningDelta) -> Told | None:
        number, text = event.block, event.text
        block = self._thoughts.get(number)
        if block is None:
            _check_number(number)
            block = self._thoughts[number] = _ReasoningBlock(number)
        if not text:
            return None
        self.visible = True
        return ReasoningTold(self.message_id, number, text, block.grow(text))

    def _take_call(self, event: ToolCallDelta) -> Told | None:
        number, args = event.block, event.args
        block = self._calls.get(number)
        if not _WORDS.issuperset((type(event.name), type(event.call_id), type(event.wire_id))):
            _check(event)
        if block is None:
            block = self._calls[number] = _CallBlock(number, self._unique(event), event.wire_id)
        named = not block.name and bool(event.name)
        if named:
            block.name = event.name
        piece = block.spell(args)
        before = block.grow(piece) if piece else block.size
        if not block.name or not (piece or named):
            return None
        if named and before:  # what came before the name is told with it
            before, piece = 0, "".join(block.pieces)
        self.visible = self.visible or bool(piece)
        return ArgumentsTold(self.message_id, number, block.call_id, piece, before, block.name)

    def _take_end_of_block(self, event: BlockEnded) -> None:
        if event.raw is not None or event.provider_data is not None:
            _check(event)
        for blocks in (self._texts, self._thoughts, self._calls):
            if (block := blocks.get(event.block)) is not None:
                block.ended = event
                return
        if event.raw is not None:  # redacted or encrypted: nothing of it was shown
            block = self._thoughts[event.block] = _ReasoningBlock(event.block)
            block.ended = event
        elif event.provider_data is not None:  # a signature on a text part without text
            text = self._texts[event.block] = _TextBlock(event.block)
            text.ended = event

    def _take_usage(self, event: UsageUpdate) -> None:
        """The last non-null value replaces; nothing is summed or erased (PV-8)."""
        told, old = event.usage, self._usage
        if old is None:
            self._usage = told
            return
        # Spelled out: some servers send figures with every chunk, and a loop over the names costs 1 µs more.
        self._usage = Usage(
            old.input if told.input is None else told.input,
            old.cache_read if told.cache_read is None else told.cache_read,
            old.cache_write if told.cache_write is None else told.cache_write,
            old.output if told.output is None else told.output,
            old.reasoning if told.reasoning is None else told.reasoning,
            old.total if told.total is None else told.total,
            told.estimated,
            old.native if told.native is None else told.native,
            old.cost if told.cost is None else told.cost,
        )

    def _take_start(self, event: ResponseStarted) -> None:
        if not _WORDS.issuperset((type(event.response_id), type(event.model))):
            _check(event)
        before = self.started
        if before is None:
            self.started = event
        else:
            self.started = ResponseStarted(
                event.response_id or before.response_id, event.model or before.model
            )

    def _take_notice(self, event: Notice) -> None:
        _check(event)
        self.notices.append(event)

    def _take_end(self, event: StreamEnd) -> None:
        self.end = event

    def _unique(self, event: ToolCallDelta) -> str:
        """An id that no other call of the thread has (PV-5)."""
        if event.wire_id is None:
            made = self._make()
            while self._used(made):
                made = self._make()
        else:
            made = wanted = clean(event.call_id or "")
            count = 1
            while self._used(made):
                count += 1
                made = f"{wanted}_{count}"
        self._mine.add(made)
        return made

    def _used(self, call_id: str) -> bool:
        return call_id in self._mine or call_id in self._taken

    def _make(self) -> str:
        if self._ids is not None:
            return self._ids()
        self._made += 1
        return f"{self.message_id}-call-{self._made}"


_TAKE: Final[dict[type, Callable[[Assembly, Any], Told | None]]] = {
    TextDelta: Assembly.text,
    ReasoningDelta: Assembly._take_reasoning,  # noqa: SLF001
    ToolCallDelta: Assembly._take_call,  # noqa: SLF001
    BlockEnded: Assembly._take_end_of_block,  # noqa: SLF001
    UsageUpdate: Assembly._take_usage,  # noqa: SLF001
    ResponseStarted: Assembly._take_start,  # noqa: SLF001
    Notice: Assembly._take_notice,  # noqa: SLF001
    StreamEnd: Assembly._take_end,  # noqa: SLF001
}


def _check_number(number: object) -> None:
    if not isinstance(number, int):
        raise TypeError(f"the number of a block is {type(number).__name__}")


def _check(event: ProviderEvent) -> None:
    """Of the events that come once a call, block or response: what is wrong in one would be met when it is recorded."""
    if why := misshapen(event):
        raise TypeError(why)


def judge_arguments(raw: str) -> tuple[dict[str, JSON], str | None]:
    """A call's argument text as an object, or ({}, why it is none): strict, nothing is salvaged (PV-6)."""
    text = raw.strip()
    if text in _NOTHING:
        return {}, None
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        try:  # the fast decoder refuses lone surrogates, which are to become U+FFFD
            import json

            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            return {}, f"the arguments are not JSON: {error}"
    else:
        if type(value) is dict and _is_plain(text):
            return value, None
    if not isinstance(value, dict):
        return {}, f"the arguments are a JSON {_kind(value)}, not an object"
    return judge_object(value)


def _is_plain(text: str) -> bool:
    """Whether strict JSON holds nothing that cannot be stored: by its text, which costs a tenth of walking through it."""
    return "\\u0000" not in text and text.count("{") + text.count("[") <= MAX_DEPTH


def judge_object(value: dict[str, JSON]) -> tuple[dict[str, JSON], str | None]:
    """An argument object, cleaned of lone surrogates and NUL, or ({}, why it cannot be stored)."""
    try:
        check(value)
    except NotJSON as error:
        return {}, f"the arguments are not JSON: {error}"
    try:
        odd = b"\\u0000" in msgspec.json.encode(value)
    except UnicodeEncodeError:
        odd = True
    return (clean_json(value) if odd else value), None


def _tagged(data: JSON, tag: str) -> JSON:
    """What goes back only to its own kind of provider says whose it is."""
    if data is None:
        return None
    return ordered({**data, "tag": tag} if tag else data)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _kind(value: object) -> str:
    return {list: "array", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")


__all__ = ["Assembly", "Told", "judge_arguments", "judge_object"]
