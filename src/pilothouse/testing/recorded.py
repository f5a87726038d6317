"""A recorded run as a test: the same loop, given the same responses and results, does the same again.

    run = RecordedRun.load("tests/runs/refund.json")
    await run.replay(lambda provider, wrap: AgentLoop(provider, tools=[wrap(t) for t in TOOLS], ...))

Nothing real is called: the model's responses and the tools' results are those of the recording, and commands come at the
same places. What the loop decides by itself (which calls run, which are refused, what is asked for again, how it ends)
must be what it was; `AssertionError` names the first difference.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, final

import msgspec
from msgspec.structs import replace

from ..commands import Cancel, Command
from ..core.canonical import Body, encode, unseal
from ..errors import OutcomeUnknown, ToolError, ToolStopped
from ..events import (
    AnyFact,
    CallFinished,
    CallObserved,
    CallStarted,
    CommandReceived,
    Fact,
    HistoryCompacted,
    Lane,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    PartialSaved,
    RunStarted,
    TurnStarted,
)
from ..loop.agent import AgentLoop
from ..loop.answers import ToolResult
from ..loop.compaction import HEADER, Compactor
from ..loop.context import current_call
from ..loop.hooks import OverWindow, Relief
from ..loop.port import MemoryPort
from ..loop.tools import Tool, ToolLike, as_tool
from ..messages import Message, Reasoning, Structured, Text, ToolCall, Usage
from ..records import Record, RunSpec, Start
from ..responses import BlockEnded, StreamEnd, ToolCallDelta, UsageUpdate
from .scripted import Cut, ScriptedProvider, thought

Make: TypeAlias = Callable[[ScriptedProvider, Callable[[ToolLike], Tool]], AgentLoop]

VOLATILE: Final[Mapping[type, tuple[str, ...]]] = {
    TurnStarted: ("model", "tools_digest"),
    ModelRequested: ("request_digest", "provider", "model"),
    ModelAttemptEnded: ("error", "retry_after_ms", "notices", "usage"),
    CallStarted: ("arguments_digest", "key"),
}
"""Fields that may differ without the loop doing something else; `strict` compares them too."""
_BEGUN: Final = "…"
"""For the words of a response that broke off: that there were some decides that it is not asked for again, not which."""
_RAW: Final[Mapping[str, Literal["succeeded", "failed"]]] = {"returned": "succeeded", "raised": "failed"}
"""How a call ended that a hook was given, by what its function did."""
_SKIPPED: Final = (RunStarted, PartialSaved, CallObserved)


class _File(msgspec.Struct):
    spec: RunSpec
    history: list[Message]
    facts: list[tuple[Lane, str | None, str]]  # lane, causation, canonical body


@final
class RecordedRun:
    """One run: what it was asked, what came before, and its facts."""

    def __init__(self, spec: RunSpec, history: Sequence[Message], records: Sequence[Record]) -> None:
        self.spec = spec
        self.history = tuple(history)
        self.records = list(records)

    def save(self, path: str | Path) -> None:
        """Writes it to a file that can be read and reviewed."""
        facts = [
            (record.lane, record.causation, encode(_body_of(record)).decode()) for record in self.records
        ]
        body = msgspec.json.format(msgspec.json.encode(_File(self.spec, list(self.history), facts)), indent=1)
        Path(path).write_bytes(body + b"\n")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads one back."""
        stored = msgspec.json.decode(Path(path).read_bytes(), type=_File)
        records = []
        for seq, (lane, causation, body) in enumerate(stored.facts, 1):
            record = unseal(stored.spec.run_id, seq, 0, lane, 1, body.encode(), "", None)
            records.append(replace(record, causation=causation))
        return cls(stored.spec, stored.history, records)

    # Playing it again

    async def replay(self, make: Make, *, strict: bool = False, timeout: float = 30.0) -> None:
        """Runs a loop against the recording.

        Args:
            make: makes the loop with a provider that plays the responses; `wrap` puts recorded results in the place
                of a tool's function. A `Compactor` gets its recorded words by itself, whatever provider it has.
            strict: digests, figures and models must be equal too.
            timeout: seconds of real time for all of it.

        Raises:
            AssertionError: the loop did something else; the text has the first difference.
        """
        provider = ScriptedProvider(*self._scripts())
        loop = self._played(make(provider, self._wrap))
        start = Start(self.spec, self.history, "", "recorded", "", 1, "")
        port = MemoryPort(start, loop.clock)
        driver = _Driver(port, self.records)
        port.wrote = driver.wrote
        driver.deliver()
        try:
            await asyncio.wait_for(loop.run(start, port), timeout)
        finally:
            await loop.aclose()
        _compare(_decisions(self.records), _decisions(port.records), strict=strict)

    def _played(self, loop: AgentLoop) -> AgentLoop:
        """The loop with the recording's words in the place of a summary's, and of what was spilled."""
        config, relief = loop.config, loop.config.over_window_relief
        if isinstance(relief, Compactor):
            config = config.copy_with(over_window_relief=_Summaries(relief, self.records))
        return loop.played(config, self._wrap)

    def _scripts(self) -> list[Any]:
        """One script for each request of the recording."""
        messages = {
            record.fact.message.id: record.fact.message
            for record in self.records
            if isinstance(record.fact, MessageAdded)
        }
        ends = {
            (record.fact.turn, record.fact.attempt): record.fact
            for record in self.records
            if isinstance(record.fact, ModelAttemptEnded)
        }
        requested = [record.fact for record in self.records if isinstance(record.fact, ModelRequested)]
        last = {one.turn: one.attempt for one in requested}
        return [
            _script(
                messages.get(one.message_id), ends.get((one.turn, one.attempt)), last[one.turn] == one.attempt
            )
            for one in requested
        ]

    def _wrap(self, given: ToolLike) -> Tool:
        """The tool with recorded results in the place of its function; one that asks people stays as it is."""
        tool = as_tool(given)
        if tool.effect == "human":
            return tool
        played = copy(tool)
        results = _results(self.records)

        async def play(**_: Any) -> ToolResult:
            return _result(results.get(current_call().call_id))

        played.function, played.is_async = play, True
        played.reconcile = played.stop = None
        return played


class _Summaries:
    """A `Compactor` that decides as ever, in the words that the recorded one had; it fails where that one did."""

    def __init__(self, compactor: Compactor, records: Sequence[Record]) -> None:
        self._compactor = compactor.told_by(ScriptedProvider(self._words, repeat=True))
        self._told = iter(_summaries(records))
        self._now: list[Any] = []

    async def __call__(self, over: OverWindow) -> Relief | None:
        self._now = next(self._told, [])
        return await self._compactor(over)

    def _words(self, _: object) -> list[Any]:
        now, self._now = (
            self._now,
            self._now[:1],
        )  # one of several steps: each is told all, the first has used all
        return now


def _summaries(records: Sequence[Record]) -> Iterator[list[Any]]:
    """What was said each time that the context was to be made smaller; nothing where that failed."""
    text = ""
    for record in records:
        fact = record.fact
        if isinstance(fact, HistoryCompacted):
            text = fact.messages[0].text.removeprefix(HEADER) if fact.messages else ""
        elif isinstance(fact, Noted) and fact.name == "loop/guard" and isinstance(fact.data, dict):
            used = fact.data.get("usage")
            if fact.data.get("action") == "relief":
                yield [text, UsageUpdate(msgspec.convert(used, Usage))] if used else [text]
            elif fact.data.get("action") == "relief_failed":
                yield []


class _Driver:
    """Delivers the recording's commands when the same number of the runtime's facts is there."""

    def __init__(self, port: MemoryPort, records: Sequence[Record]) -> None:
        self._port = port
        self._due: list[tuple[int, Command]] = []
        self._seen = 0
        count = 0
        for record in records:
            fact = record.fact
            if record.lane == "runtime" and not isinstance(fact, _SKIPPED):
                count += 1
            elif isinstance(fact, CommandReceived):
                self._due.append((count, fact.command))

    def wrote(self, records: Sequence[Record]) -> None:
        self._seen += sum(r.lane == "runtime" and not isinstance(r.fact, _SKIPPED) for r in records)
        self.deliver()  # in this same step: a script does not wait, so later would be too late

    def deliver(self) -> None:
        while self._due and self._due[0][0] <= self._seen and self._port.state.outcome is None:
            _, command = self._due.pop(0)
            if isinstance(command.body, Cancel) and self._port.state.stop is not None:
                continue
            self._port.command(command)


def _script(message: Message | None, end: ModelAttemptEnded | None, last: bool) -> list[Any]:
    if end is None or end.end == "interrupted":
        return [_BEGUN, Cut()] if end is not None and end.why == "eof" else [Cut()]
    if end.end == "failed" or (end.error is not None and end.end == "discarded"):
        return [*([_BEGUN] if last else []), StreamEnd("error", error=end.error)]
    items: list[Any] = [] if message is None else _pieces(message)
    if end.usage is not None:
        items.append(UsageUpdate(end.usage))
    if message is not None and message.stop_reason is not None:
        items.append(StreamEnd(message.stop_reason))
    return items


def _pieces(message: Message) -> list[Any]:
    """The parts of a message as the events that make them again."""
    items: list[Any] = []
    for block, part in enumerate(message.parts):
        if isinstance(part, Text):
            items.append(part.text)
        elif isinstance(part, Reasoning):
            items.append(thought(part.text))
            if part.raw is not None:
                items.append(BlockEnded(block, part.provider_data, part.raw, part.redacted))
        elif isinstance(part, ToolCall):
            items.append(ToolCallDelta(block, part.call_id, part.tool, part.raw_arguments, part.call_id))
    return items


def _results(records: Sequence[Record]) -> dict[str, CallFinished]:
    """What the calls came to, by id, before a hook had seen it: in the run that is played it is called again."""
    results: dict[str, CallFinished] = {}
    raw: dict[str, CallObserved] = {}
    for record in records:
        fact = record.fact
        if isinstance(fact, CallObserved) and fact.status in _RAW:
            raw[fact.call_id] = fact
        elif isinstance(fact, CallFinished):
            seen = raw.get(fact.call_id)
            results[fact.call_id] = fact if seen is None else _as_seen(fact, seen)
    return results


def _as_seen(end: CallFinished, seen: CallObserved) -> CallFinished:
    return replace(end, outcome=_RAW[seen.status], content=seen.content, is_error=seen.is_error)


def _result(end: CallFinished | None) -> ToolResult:
    assert end is not None, "a call runs that the recording did not run"
    if end.outcome == "succeeded":
        structured = next((part.data for part in end.content if isinstance(part, Structured)), None)
        parts = tuple([part for part in end.content if not isinstance(part, Structured)])
        return ToolResult(parts, structured, end.is_error, "terminate" in end.marks)
    text = "".join([part.text for part in end.content if isinstance(part, Text)])
    if end.outcome == "unknown":
        raise OutcomeUnknown(text)
    raise ToolStopped(text) if end.outcome == "cancelled" else ToolError(text)


# Comparing


def _decisions(records: Sequence[Record]) -> list[AnyFact]:
    """What the loop did by itself. Results in the order of their calls: which one ended first is chance."""
    found = [
        record.fact
        for record in records
        if record.lane == "runtime" and not isinstance(record.fact, (*_SKIPPED, Noted))
    ]
    ends = sorted((fact for fact in found if isinstance(fact, CallFinished)), key=lambda fact: fact.call_id)
    return [fact for fact in found if not isinstance(fact, CallFinished)] + ends  # type: ignore[return-value]


def _compare(before: Sequence[AnyFact], after: Sequence[AnyFact], *, strict: bool) -> None:
    for at, (old, new) in enumerate(zip(before, after, strict=False)):
        old_fields, new_fields = _fields(old, strict=strict), _fields(new, strict=strict)
        if old_fields != new_fields:
            raise AssertionError(f"decision {at + 1} was {_show(old_fields)}, and is now {_show(new_fields)}")
    if len(before) != len(after):
        longer, word = (before, "missing") if len(before) > len(after) else (after, "new")
        extra = _show(_fields(longer[min(len(before), len(after))], strict=strict))
        raise AssertionError(f"there were {len(before)} decisions, there are {len(after)}; {word}: {extra}")


def _fields(fact: Fact, *, strict: bool) -> dict[str, Any]:
    fields = {name: getattr(fact, name) for name in fact.__struct_fields__}
    for name in () if strict else VOLATILE.get(type(fact), ()):
        fields.pop(name, None)
    if isinstance(fact, CallFinished) and not strict and fact.outcome in ("failed", "unknown", "cancelled"):
        fields.pop("content")  # the words around a failure may be put in another way
        fields.pop("error")
        fields.pop("reason")
    return {"kind": fact.kind, **fields}


def _show(fields: dict[str, Any]) -> str:
    text = repr({name: value for name, value in fields.items() if value not in (None, "", (), {})})
    return text if len(text) <= 500 else f"{text[:500]}…"


def _body_of(record: Record) -> Any:
    return Body(record.fact, record.event_id, record.causation, record.source)  # type: ignore[arg-type]


__all__ = ["VOLATILE", "RecordedRun"]
