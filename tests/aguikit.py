"""Runs made up for the AG-UI tests: what a writer would publish, and what a client makes of what it is sent."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from msgspec import UNSET

from pilothouse.commands import Command, Request, Steer
from pilothouse.core.agui import events as agui
from pilothouse.core.agui.content import snapshot
from pilothouse.core.agui.ends import Names
from pilothouse.core.agui.frames import Frame, Snapshot, StateAt
from pilothouse.core.agui.position import Position, read
from pilothouse.core.agui.project import Projector
from pilothouse.core.canonical import chain_start, seal
from pilothouse.core.run import RunState, apply
from pilothouse.core.settling import event_id_of, expand
from pilothouse.core.state_notes import NOTE, noted
from pilothouse.core.transcript import Transcript
from pilothouse.events import (
    AnyFact,
    ArgumentsTold,
    CallFinished,
    CallProgress,
    CallStarted,
    Cancelled,
    CommandAnswered,
    CommandReceived,
    Completed,
    ContinuityLost,
    ContinuityRestored,
    Delta,
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    Outcome,
    PartialSaved,
    ReasoningTold,
    RequestOpened,
    RunAbandoned,
    RunAccepted,
    RunEnded,
    RunStarted,
    StopRequested,
    TextTold,
    Truncated,
    TurnEnded,
    TurnStarted,
)
from pilothouse.messages import Message, Part, Reasoning, Text, ToolCall, Usage
from pilothouse.records import Draft, HistoryMessage, Record, RunSpec

Item = Record | Delta

SPEC = RunSpec("run-1", "thread-1", (Message("u1", "user", (Text("hi"),)),))
NAMES = Names("thread-1", "run-1")
LEGACY = Names("thread-1", "run-1", profile="legacy")


class Tape:
    """A run's published items, in order; plays the part of writer and port."""

    def __init__(self, spec: RunSpec = SPEC) -> None:
        self.spec = spec
        self.items: list[Item] = []
        self.state = RunState(spec.run_id, chain_start(spec.run_id, "spec"))
        self.told: dict[tuple[str, str, int], list] = {}  # (message, kind, index) -> [call id, told, saved]
        self.n = 0
        self.fact(RunAccepted(spec.thread_id, "", "", ""), lane="host")

    @property
    def records(self) -> list[Record]:
        return [item for item in self.items if type(item) is Record]

    def fact(self, *facts: AnyFact, lane: str = "runtime", causation: str | None = None) -> None:
        for fact in facts:
            drafts = [*expand(self.state, Draft(fact, causation=causation), lane), (Draft(fact), lane)]
            for draft, its_lane in drafts:
                self._store(draft.fact, its_lane, causation if draft.fact is fact else draft.causation)

    def _store(self, fact: AnyFact, lane: str, causation: str | None) -> None:
        state = self.state
        record = seal(
            run_id=state.run_id, seq=state.seq + 1, at_ms=state.seq, lane=lane, fence=1, fact=fact,
            event_id=event_id_of(fact, state.seq + 1), causation=causation, source=None, previous=state.chain,
        )  # fmt: skip
        apply(state, record)
        self.items.append(record)

    def delta(self, body: object) -> None:
        self.n += 1
        self.items.append(Delta(self.spec.run_id, self.n, self.state.seq, body))

    def tell(
        self, message_id: str, kind: str, index: int, text: str, call_id: str = "", tool: str = ""
    ) -> None:
        entry = self.told.setdefault((message_id, kind, index), [call_id, "", 0, tool])
        offset, entry[1] = len(entry[1]), entry[1] + text
        if kind == "text":
            self.delta(TextTold(message_id, index, text, offset))
        elif kind == "reasoning":
            self.delta(ReasoningTold(message_id, index, text, offset))
        else:
            self.delta(ArgumentsTold(message_id, index, call_id, text, offset, tool))

    def save(self) -> None:
        """Saves what was told and is not saved."""
        for (message_id, kind, index), entry in self.told.items():
            call_id, told, saved, tool = entry
            if len(told) > max(saved, 0) or (kind == "arguments" and not told and saved == 0):
                saved = max(saved, 0)
                fact = PartialSaved(message_id, kind, index, saved, told[saved:], call_id or None, tool)
                entry[2] = len(told) or -1
                self.fact(fact, lane="host")

    def drop(self, message_id: str) -> None:
        self.told = {key: entry for key, entry in self.told.items() if key[0] != message_id}

    def path(self, until: int) -> list[HistoryMessage]:
        transcript = Transcript(self.spec)
        for record in self.records:
            if record.seq <= until:
                transcript.add(record)
        return transcript.messages()

    def shared(self, until: int | None = None) -> dict:
        """The shared state behind a fact."""
        state: dict = {}
        for record in self.records:
            if isinstance(record.fact, Noted) and (until is None or record.seq <= until):
                state = noted(state, record.fact.data)
        return state

    def fill(
        self, frames: Iterable[Frame], profile: agui.Profile = "1.0"
    ) -> list[tuple[agui.Event, Position | None]]:
        """What the shell makes of the frames."""
        out = []
        for frame in frames:
            event = frame.event
            if isinstance(event, Snapshot):
                until = 1 if event.scope == "front" else event.until
                path = self.path(until)
                event = agui.MessagesSnapshot(snapshot(path, profile=profile))
            if isinstance(event, StateAt):
                event = agui.StateSnapshot(self.shared(event.until))
            out.append((event, frame.position))
        return out


def project(items: Sequence[Item], projector: Projector | None = None) -> list[Frame]:
    """All frames of a stream that ended."""
    projector = projector or Projector(NAMES)
    frames = []
    for item in items:
        frames += projector.feed(item)
    frames += projector.rest()
    return frames + projector.finish()


class Client:
    """What an AG-UI client shows: the protocol's reference reading, without its faults."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.terminal: agui.Event | None = None
        self.notes: list[str] = []
        self.state: dict | None = None

    def take(self, events: Iterable[agui.Event]) -> Client:
        for event in events:
            self._take(event)
        return self

    def find(self, message_id: str) -> dict | None:
        return next((message for message in self.messages if message["id"] == message_id), None)

    def _have(self, message_id: str, role: str) -> dict:
        found = self.find(message_id)
        if found is None:
            found = {"id": message_id, "role": role, "content": "", "calls": {}}
            self.messages.append(found)
        return found

    def _take(self, event: agui.Event) -> None:
        match event:
            case agui.TextMessageStart():
                self._have(event.message_id, str(event.role))
            case agui.ReasoningMessageStart():
                self._have(event.message_id, "reasoning")
            case agui.TextMessageContent() | agui.ReasoningMessageContent():
                self.find(event.message_id)["content"] += event.delta
            case agui.ToolCallStart():
                parent = event.tool_call_id if event.parent_message_id is UNSET else event.parent_message_id
                self._have(parent, "assistant")["calls"][event.tool_call_id] = [event.tool_call_name, ""]
            case agui.ToolCallArgs():
                next(m for m in self.messages if event.tool_call_id in m["calls"])["calls"][
                    event.tool_call_id
                ][1] += event.delta
            case agui.ToolCallResult():
                self._have(event.message_id, "tool")["content"] = event.content
            case agui.MessagesSnapshot():
                self._reconcile(event)
            case agui.StateSnapshot():
                self.state = event.snapshot
            case agui.StateDelta():
                assert self.state is not None, "a change without a baseline"
                self.state = noted(self.state, {"delta": event.delta})
            case agui.Custom():
                if event.name not in ("pilothouse.tool", "pilothouse.progress"):
                    self.notes.append(event.name)
            case agui.RunFinished() | agui.RunError():
                self.terminal = event

    def _reconcile(self, event: agui.MessagesSnapshot) -> None:
        fresh = {}
        for message in event.messages:
            calls = {}
            if isinstance(message, agui.AssistantMessage) and message.tool_calls is not UNSET:
                calls = {
                    call.id: [call.function.name, call.function.arguments] for call in message.tool_calls
                }
            role = str(message.__struct_config__.tag)
            content = "" if message.content is UNSET else message.content
            fresh[message.id] = {"id": message.id, "role": role, "content": content, "calls": calls}
        kept = [
            fresh.get(message["id"], message)
            for message in self.messages
            if message["id"] in fresh or message["role"] == "reasoning"
        ]
        known = {message["id"] for message in kept}
        self.messages = kept + [message for key, message in fresh.items() if key not in known]

    def shown(self) -> dict[str, tuple]:
        """By id: role, text, calls (argument text without what `{}` and nothing differ in)."""
        return {
            message["id"]: (
                message["role"],
                message["content"],
                {key: (name, args or "{}") for key, (name, args) in message["calls"].items()},
            )
            for message in self.messages
        }


# Random runs


class Inventor:
    """Makes up a run from a random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tape = Tape()
        self.calls = 0
        self.saving = rng.random() < 0.8  # partial saving may be off

    def run(self) -> Tape:
        tape, rng = self.tape, self.rng
        tape.fact(RunStarted())
        turn = 0
        for turn in range(1, rng.randint(1, 3) + 1):
            tape.fact(TurnStarted(turn))
            calls = self._turn(turn)
            if calls is None:
                return tape
            self._calls(calls, turn)
            tape.fact(TurnEnded(turn))
            if rng.random() < 0.3:
                self._steer(turn)
            if rng.random() < 0.5:
                change = {"op": "add", "path": f"/{rng.choice('ab')}", "value": rng.randint(1, 9)}
                told = {"snapshot": {"c": turn}} if rng.random() < 0.2 else {"delta": [change]}
                tape.fact(Noted(NOTE, told))
        self._end()
        return tape

    def _turn(self, turn: int) -> list[ToolCall] | None:
        """Asks until a response is whole; None if the run ended in the middle of one."""
        tape, rng = self.tape, self.rng
        for attempt in range(1, 4):
            message_id = f"m{turn}-{attempt}"
            tape.fact(ModelRequested(turn, attempt, message_id, "p", "model"))
            parts = self._parts()
            cut = rng.random() < 0.25 and attempt < 3
            self._tell(message_id, parts, whole=not cut)
            if not cut:
                wire = Usage(rng.randint(1, 9), output=rng.randint(1, 9)) if rng.random() < 0.7 else None
                message = Message(message_id, "assistant", tuple(self._final(parts)))
                tape.fact(
                    ModelAttemptEnded(turn, attempt, "answered", usage=wire), MessageAdded(message, turn)
                )
                tape.drop(message_id)
                return list(message.tool_calls)
            how = rng.choice(["failed", "discarded", "interrupted", "lost", "ended", "stopped", "orphaned"])
            tape.save()  # as the writer does before an end, a loss and an attempt's end
            if how == "orphaned":
                return None
            if how in ("ended", "stopped"):
                if how == "stopped":
                    tape.fact(StopRequested("stop"), lane="host")
                    tape.fact(ModelAttemptEnded(turn, attempt, "cancelled"))
                    tape.fact(RunEnded(Cancelled(rng.choice(["stop", "superseded"]))))
                else:
                    tape.fact(RunEnded(Failed("auth", None, "HTTP 401 from provider")))
                return None
            if how == "lost":
                tape.fact(ContinuityLost(tape.state.seq, "error", "boom"), lane="host")
                if rng.random() < 0.5:
                    if rng.random() < 0.5:
                        tape.fact(RunAbandoned("enough", "me"), lane="host")
                    return None
                tape.fact(ContinuityRestored(tape.state.seq, "journal"), lane="host")
                tape.n = 0
                tape.drop(message_id)
                continue
            tape.fact(ModelAttemptEnded(turn, attempt, how))
            tape.drop(message_id)
        return []

    def _parts(self) -> list[list]:
        """[kind, text, call id, tool]; neighbours of the same kind are one part to a model."""
        rng, parts = self.rng, []
        for _ in range(rng.randint(0, 4)):
            kind = rng.choice(["text", "text", "reasoning", "arguments"])
            if kind == "arguments":
                self.calls += 1
                text = rng.choice(["", "{}", '{"a": 1}', '{"city":"Bréhat 🌊","deep":[1,2]}'])
                parts.append([kind, text, f"c{self.calls}", rng.choice(["tide", "buy"])])
            else:
                parts.append(
                    [kind, "".join(rng.choice("abc \n🌊é") for _ in range(rng.randint(1, 12))), "", ""]
                )
        return parts

    def _tell(self, message_id: str, parts: Sequence[Sequence], *, whole: bool) -> None:
        rng, tape = self.rng, self.tape
        queue = []  # (index, piece), calls of one response sometimes interleaved
        for index, (kind, text, _, _) in enumerate(parts):
            pieces = []
            rest = text
            while rest:
                size = rng.randint(1, len(rest))
                pieces.append((index, rest[:size]))
                rest = rest[size:]
            if not pieces and kind == "arguments":
                pieces = [(index, "")]
            before = parts[index - 1][0] if index else ""
            if kind == before == "arguments" and rng.random() < 0.5 and len(queue) > 0:
                head, tail = queue[:-1], queue[-1:]
                queue = head + [piece for pair in zip(tail, pieces, strict=False) for piece in pair[::1]]
                queue += pieces[len(tail) :] if len(pieces) > len(tail) else []
            else:
                queue += pieces
        if not whole and queue:
            queue = queue[: rng.randint(0, len(queue))]
        for index, piece in queue:
            kind, _, call_id, tool = parts[index]
            tape.tell(message_id, kind, index, piece, call_id, tool)
            if rng.random() < 0.1:
                tape.delta(CallProgress("c0", "still here"))
            if self.saving and rng.random() < 0.2:
                tape.save()

    def _final(self, parts: Sequence[Sequence]) -> list[Part]:
        out: list[Part] = []
        for kind, text, call_id, tool in parts:
            if kind == "text":
                out.append(Text(text))
            elif kind == "reasoning":
                out.append(Reasoning(text))
            else:
                out.append(ToolCall(call_id, tool, {}, text))
        return out

    def _calls(self, calls: Sequence[ToolCall], turn: int) -> None:
        rng, tape = self.rng, self.tape
        for call in calls:
            if rng.random() < 0.2:
                tape.fact(RequestOpened(Request(f"req-{call.call_id}", "approval", call_id=call.call_id)))
        order = list(calls)
        rng.shuffle(order)
        for call in order:
            if f"req-{call.call_id}" in tape.state.requests:
                from pilothouse.events import RequestClosed

                tape.fact(RequestClosed(f"req-{call.call_id}", "expired"), lane="host")
                outcome, words = "refused", ""
            else:
                tape.fact(CallStarted(call.call_id, 1, call.tool, "d"))
                outcome, words = rng.choice(
                    [("succeeded", "3.1 m"), ("failed", "no such tide"), ("unknown", "")]
                )
            attempt = 0 if outcome == "refused" else 1
            content = (Text(words),) if words else ()
            tape.fact(CallFinished(call.call_id, outcome, content, outcome != "succeeded", attempt=attempt))

    def _steer(self, turn: int) -> None:
        tape = self.tape
        command = Command(f"k{turn}", "run-1", Steer(Message(f"s{turn}", "user", (Text("faster"),))))
        tape.fact(CommandReceived(command, "d"), lane="host")
        tape.fact(CommandAnswered(command.id, "accepted"), lane="host")
        tape.fact(MessageAdded(command.body.message, turn), causation=command.id)

    def _end(self) -> None:
        ends: list[Outcome] = [
            Completed(), Completed(empty=True), Truncated(), Incomplete("limit", "turns"), Failed("quota", "402", "empty"),
        ]  # fmt: skip
        if self.rng.random() < 0.85:
            self.tape.fact(RunEnded(self.rng.choice(ends)))
        elif self.rng.random() < 0.5:
            self.tape.fact(ContinuityLost(self.tape.state.seq, "eof"), lane="host")


def invent(seed: int) -> Tape:
    """A run, the same for a seed."""
    return Inventor(random.Random(seed)).run()


def cursor_of(frame_id: str) -> Position:
    found = read(frame_id)
    assert found is not None
    return found[0]
