"""Random legal runs, and what must hold of every one of them: fold, repeats, and everything that must not be stored.

    python -m tests.oracles.traces --count 10000

A trace is drawn from the oracle: at each step something is offered that it finds legal. It is then lived through twice:
by the rules of `core/` with sealed records, and by a `RunController` over a memory journal, the runtime's facts through
its port and the host's through its writer.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from msgspec.structs import replace

from pilothouse.commands import (
    Allow,
    Answer,
    Cancel,
    Command,
    Deny,
    ExternalResult,
    FollowUp,
    InputAnswer,
    Replace,
    Request,
    Steer,
    Withdraw,
)
from pilothouse.contracts import Journal, RunPort
from pilothouse.core.calls import arguments_digest, operation_digest
from pilothouse.core.canonical import chain_start, seal, unseal
from pilothouse.core.run import RunState, apply, fold
from pilothouse.core.settling import event_id_of, expand
from pilothouse.errors import (
    DuplicateConflict,
    FenceConflict,
    ProtocolViolation,
    RecordRefused,
    RunConflict,
    SeqConflict,
)
from pilothouse.events import (
    CallFinished,
    CallObserved,
    CallProposed,
    CallStarted,
    Cancelled,
    CommandAnswered,
    CommandReceived,
    Completed,
    ContinuityLost,
    ContinuityRestored,
    Delivery,
    Failed,
    HistoryCompacted,
    Incomplete,
    InputReturned,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Noted,
    OutputAdded,
    PartialSaved,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunAccepted,
    RunEnded,
    RunStarted,
    StartRefused,
    StopRequested,
    Truncated,
    TurnEnded,
    TurnStarted,
    ViolationRecorded,
)
from pilothouse.messages import Message, Text, ToolCall, Usage
from pilothouse.records import Descriptor, Draft, Head, Record, RunSpec, Start
from pilothouse.runs.controller import RunController
from pilothouse.runs.timing import RunLimits, RunTiming
from pilothouse.testing import StepClock

from .alphabet import HOST, RUNTIME, Offer
from .reducer import Contract, Oracle

RUN_ID = "run"
EFFECTS = ("read", "idempotent", "non_idempotent", "human")
TOOLS = ("pay", "look")
NO_ARGUMENTS = arguments_digest({})
CONTRACT = Contract(
    operations={
        operation_digest(tool, NO_ARGUMENTS, effect): (tool, NO_ARGUMENTS, effect)
        for tool in TOOLS
        for effect in EFFECTS
    }
)


# Drawing a trace


class Draw:
    """Offers of one trace; each is legal or not as the run stands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0

    def name(self, kind: str) -> str:
        """A new id."""
        self.count += 1
        return f"{kind}{self.count}"

    def any_of(self, names: Any) -> str:
        """One of these, or none of them."""
        names = list(names)
        return self.random.choice(names) if names else "nobody"

    def user(self) -> Message:
        return Message(self.name("m"), "user", (Text("wörds \x00 \U0001f600"),))

    def offer(self, run: Oracle) -> Offer:
        """One append: mostly one draft."""
        drafts: list[tuple[Draft, str]] = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            drafts += self.random.choice(self.HOST if self.random.random() < 0.3 else self.RUNTIME)(self, run)
        return tuple(drafts)

    # What a runtime tells

    def told(self, fact: Any, causation: str | None = None) -> Offer:
        native = self.name("native") if self.random.random() < 0.2 else None
        source = "fingerprint" if self.random.random() < 0.1 else None
        return ((Draft(fact, native, causation, source), RUNTIME),)

    def _turn(self, run: Oracle) -> Offer:
        if not run.turn_open:
            return self.told(TurnStarted(run.turn + 1))
        if run.asked is not None:
            usage = Usage(self.random.randrange(99), output=self.random.randrange(99))
            end = self.random.choice(("answered", "failed", "interrupted", "cancelled", "discarded"))
            return self.told(ModelAttemptEnded(*run.asked, end, usage=usage))
        if self.random.random() < 0.5:
            return self.told(ModelRequested(run.turn, self.random.randrange(1, 9), self.name("m")))
        return self.told(TurnEnded(run.turn))

    def _message(self, run: Oracle) -> Offer:
        if run.left_over and self.random.random() < 0.5:
            return self.told(MessageAdded(self.user()), self.any_of(run.left_over))
        calls = tuple(
            ToolCall(self.name("c"), self.random.choice(TOOLS)) for _ in range(self.random.choice((0, 1, 2)))
        )
        return self.told(MessageAdded(Message(self.name("m"), "assistant", (Text("héllo"), *calls)), 1))

    def _call(self, run: Oracle) -> Offer:
        if self.random.random() < 0.2 or not run.open_calls:
            return self.told(CallProposed(self.name("c"), self.random.choice(TOOLS)))
        key = self.any_of(run.open_calls)
        call = run.calls[key]
        match self.random.randrange(4):
            case 0 if call.state == "proposed":
                effect = self.random.choice(EFFECTS)
                kind = self.random.choice(("approval", "external"))
                operation = operation_digest(call.tool, NO_ARGUMENTS, effect)
                return self.told(
                    RequestOpened(Request(self.name("q"), kind, call_id=key, operation_digest=operation))
                )
            case 1:
                status = self.random.choice(("returned", "raised", "cancelled", "timed_out", "reconciled"))
                return self.told(
                    CallObserved(
                        key, call.attempt, status, (Text("seen"),), not_run=self.random.random() < 0.3
                    )
                )
            case 2:
                outcome = self.random.choice(("succeeded", "failed", "cancelled", "refused", "unknown"))
                return self.told(CallFinished(key, outcome, (Text("done"),), attempt=call.attempt))
            case _:
                return self.told(self._start(run, key))

    def _start(self, run: Oracle, key: str) -> CallStarted:
        call = run.calls[key]
        effect = call.effect or self.random.choice(EFFECTS)
        mediated = call.mediated if call.attempt else self.random.random() < 0.8
        approved = None
        if isinstance(call.answer, Allow) and call.state == "awaiting":
            approved = call.request
            effect = CONTRACT.operations[run.opened[call.request or ""].operation_digest or ""][2]
        return CallStarted(
            key, call.attempt + 1, call.tool, NO_ARGUMENTS, effect, approved_by=approved, mediated=mediated
        )

    def _request(self, run: Oracle) -> Offer:
        answers = [
            (key, item.body) for key, item in run.inputs.items()
            if isinstance(item.body, Answer) and item.body.request_id in run.pending
        ]  # fmt: skip
        if answers and self.random.random() < 0.7:
            key, body = self.random.choice(answers)
            return self.told(RequestResolved(body.request_id, body.resolution), key)
        if run.pending and self.random.random() < 0.3:
            return self.told(
                RequestClosed(self.any_of(run.pending), self.random.choice(("elsewhere", "superseded")))
            )
        request = Request(
            self.name("q"), self.random.choice(("input", "approval", "external")), self.random.random() < 0.6
        )
        return self.told(RequestOpened(request))

    def _aside(self, run: Oracle) -> Offer:
        match self.random.randrange(6):
            case 0:
                return self.told(OutputAdded(self.name("o"), "report", {"n": 10**20, "x": [1.5, None]}))
            case 1:
                return self.told(HistoryCompacted((), (self.user(),), "summary"))
            case 2:
                waiting = [key for key, item in run.inputs.items() if not item.answer]
                key = self.any_of(waiting)
                answer = self.random.choice(("accepted", "rejected", "unsupported"))
                return self.told(CommandAnswered(key, answer), key)
            case 3:
                return self.told(InputReturned(self.any_of(run.left_over), "expired"))
            case 4:
                return self.told(RunStarted())
            case _:
                return self.told(Noted("test/note", {"a": self.random.random()}))

    def _end(self, run: Oracle) -> Offer:
        if self.random.random() < 0.7:
            return self._turn(run)  # ends are rare, so that traces grow
        delivery = Delivery(tuple(sorted(run.messages)[:2]), tuple(sorted(run.outputs)[:1]))
        outcomes = (
            (Completed(), delivery), (Truncated(), delivery), (Incomplete("limit"), Delivery()),
            (Failed("provider"), Delivery()), (Cancelled("enough"), Delivery()),
        )  # fmt: skip
        return self.told(RunEnded(*self.random.choice(outcomes)))

    RUNTIME: tuple[Callable[[Draw, Oracle], Offer], ...] = (
        _turn, _turn, _message, _message, _call, _call, _call, _request, _request, _aside, _end,
    )  # fmt: skip

    # What the controller writes

    def written(self, fact: Any, causation: str | None = None) -> Offer:
        return ((Draft(fact, causation=causation), HOST),)

    def _command(self, body: Any, *more: Any, accept: bool) -> Offer:
        key = self.name("command")
        drafts = self.written(CommandReceived(Command(key, RUN_ID, body), f"digest of {key}"))
        if accept:
            drafts += self.written(CommandAnswered(key, "accepted"), key)
        for fact in more:
            drafts += self.written(fact, key)
        return drafts

    def _input(self, run: Oracle) -> Offer:
        if run.queued and self.random.random() < 0.3:
            old = self.any_of(run.queued)
            if self.random.random() < 0.5:
                return self._command(Withdraw(old), InputReturned(old, "withdrawn"), accept=True)
            return self._command(Replace(old, self.user()), InputReturned(old, "replaced"), accept=True)
        kind = self.random.choice((Steer, FollowUp))
        return self._command(kind(self.user()), accept=self.random.random() < 0.6)

    def _answer(self, run: Oracle) -> Offer:
        key = self.any_of(run.pending)
        kind = run.pending[key].kind if key in run.pending else "input"
        fits = {
            "input": InputAnswer({"a": 1}),
            "approval": Allow(),
            "external": ExternalResult((Text("x"),)),
        }[kind]
        return self._command(Answer(key, fits if self.random.random() < 0.8 else Deny("no")), accept=False)

    def _stop(self, run: Oracle) -> Offer:
        if run.stop is not None:
            return self._command(Cancel("again"), accept=True)
        if self.random.random() < 0.3:
            return self.written(StopRequested("deadline", "deadline"))
        return self._command(Cancel("enough"), StopRequested("enough"), accept=True)

    def _loss(self, run: Oracle) -> Offer:
        match self.random.randrange(6):
            case 0:
                return self.written(StartRefused("full"))
            case 1:
                return self.written(ViolationRecorded("x", "y")) + self.written(
                    ContinuityLost(run.seq, "violation")
                )
            case 2:
                return self.written(RunAbandoned("nobody knows", "me"))
            case _:
                return self.written(ContinuityLost(run.seq, "eof"))

    def _flush(self, run: Oracle) -> Offer:
        part = self.random.choice(("text", "reasoning"))
        return self.written(PartialSaved(self.name("m"), part, 0, 0, "some wörds"))

    def _expire(self, run: Oracle) -> Offer:
        return self.written(RequestClosed(self.any_of(run.pending), "expired"))

    HOST: tuple[Callable[[Draw, Oracle], Offer], ...] = (
        _input, _input, _input, _answer, _answer, _answer, _flush, _flush, _expire, _stop, _loss,
    )  # fmt: skip


@dataclass
class Trace:
    """A legal run: its appends, and how the oracle stands behind each of them."""

    seed: int
    offers: list[Offer] = field(default_factory=list)
    after: list[Oracle] = field(default_factory=list)


def draw(seed: int, *, length: int = 24, losses: bool = True) -> Trace:
    """A random legal trace; `losses`: a lost run is restored or abandoned and goes on, else it ends the trace."""
    dice, trace, run = Draw(seed), Trace(seed), Oracle(CONTRACT)
    for _ in range(length * 6):
        if len(trace.offers) == length or (run.phase == "terminal" and dice.random.random() < 0.7):
            break
        offer = dice.offer(run)
        if run.phase == "unknown":
            if not losses:
                break
            restored = dice.written(ContinuityRestored(run.lost_seq, "journal", accepted=("why",)))
            offer = restored if dice.random.random() < 0.8 else dice.written(RunAbandoned("nobody knows"))
        verdict, ahead = run.offer(*offer)
        if verdict.kind == "legal":
            trace.offers.append(offer)
            trace.after.append(ahead)
            run = ahead
    return trace


# Through the rules alone


def snapshot(state: RunState) -> dict[str, Any]:
    """All of a fold, to compare; a copy, since the state itself is what a writer looks ahead with."""
    found = dict(state.fork().__dict__)
    found["names"] = state.names.marks()
    return found


def differences(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What two snapshots do not have in common."""
    return {name: (found[name], expected[name]) for name in found if found[name] != expected[name]}


def records_of(trace: Trace) -> tuple[list[Record], list[dict[str, Any]]]:
    """The sealed records of a trace, and the fold after each append."""
    state = RunState(RUN_ID, chain_start(RUN_ID, "spec"))
    records: list[Record] = []

    def put(draft: Draft, lane: Any) -> None:
        seq = state.seq + 1
        event_id = draft.event_id or event_id_of(draft.fact, seq, lane)
        record = seal(
            run_id=RUN_ID, seq=seq, at_ms=seq, lane=lane, fence=1, fact=draft.fact, event_id=event_id,
            causation=draft.causation, source=draft.source, previous=state.chain,
        )  # fmt: skip
        apply(state, record)
        records.append(record)

    put(Draft(RunAccepted("thread", "spec", "default", "descriptor")), HOST)
    snapshots = []
    for offer in trace.offers:
        for draft, lane in offer:
            event_id = draft.event_id or event_id_of(draft.fact, state.seq + 1, lane)
            if any(record.event_id == event_id for record in records):
                continue  # a repeat inside an append changes nothing
            for front, of in expand(state, draft, lane):
                put(front, of)
            put(draft, lane)
        snapshots.append(snapshot(state))
    return records, snapshots


def check_fold(trace: Trace) -> Counter:
    """Stepwise fold = whole fold = fold of what was read back; gaps, repeats and foreign records fold nowhere."""
    records, snapshots = records_of(trace)
    start = chain_start(RUN_ID, "spec")
    whole = fold(records, RUN_ID, start)
    assert not snapshots or snapshot(whole) == snapshots[-1], trace.seed
    for oracle, seen in zip(trace.after, snapshots, strict=True):
        assert (oracle.seq, oracle.phase) == (seen["seq"], seen["phase"]), trace.seed
    read, chain = [], start
    for record in records:
        read.append(
            unseal(
                RUN_ID, record.seq, record.at_ms, record.lane, record.fence, record.body, record.chain, chain
            )
        )
        chain = record.chain
        assert read[-1] == record, trace.seed
    again = fold(read, RUN_ID, start)
    assert snapshot(again) == snapshot(whole), trace.seed
    _check_end(whole, records)
    return Counter(facts=len(records), mutations=_mutate_fold(records, random.Random(trace.seed), start))


def _check_end(state: RunState, records: list[Record]) -> None:
    """RC-27, RC-30, EF-2: after any end one result a call, nothing pending, queued or open."""
    if state.outcome is None:
        return
    proposed, results = [], []
    for record in records:
        fact = record.fact
        if isinstance(fact, CallProposed):
            proposed.append(fact.call_id)
        elif isinstance(fact, MessageAdded) and fact.message.role == "assistant":
            proposed += [call.call_id for call in fact.message.tool_calls]
        elif isinstance(fact, CallFinished):
            results.append(fact.call_id)
    assert sorted(proposed) == sorted(results)
    assert [state.calls, state.requests, state.queued, state.left_over()] == [{}, {}, {}, []]
    fates = {
        command.state
        for command in state.commands.values()
        if isinstance(command.command.body, Steer | FollowUp | Replace)
    }
    assert fates <= {"applied", "returned", "rejected", "unsupported"}


def _mutate_fold(records: list[Record], dice: random.Random, start: str) -> int:
    """A record out of order, twice, or of another run is not folded, and the state stays as it is."""
    count = 0
    for _ in range(2):
        cut = dice.randrange(len(records))
        state = fold(records[:cut], RUN_ID, start)
        before = snapshot(state)
        wrong = {
            SeqConflict: [*records[cut + 1 : cut + 2], *records[max(cut - 1, 0) : cut]],
            RunConflict: [replace(records[cut], run_id="other")],
        }
        for error, mutants in wrong.items():
            for mutant in mutants:
                try:
                    apply(state, mutant)
                except error:
                    count += 1
                else:
                    raise AssertionError(f"{mutant} was folded behind {cut}")
                assert snapshot(state) == before
    return count


# Through the controller


class Idle:
    """A runtime whose port is used from outside."""

    def __init__(self) -> None:
        self.port: RunPort | None = None

    def describe(self) -> Descriptor:
        return Descriptor(
            "idle",
            commands=("steer", "follow_up", "answer", "cancel", "withdraw", "replace"),
            requests=("input", "approval", "external"),
            cancel="confirmed",
            recovery="journal",
        )

    async def run(self, start: Start, port: RunPort) -> None:
        self.port = port
        await asyncio.Event().wait()

    resume = run


class Bench:
    """A run that is driven step by step: `async with Bench() as bench`, then `offer`."""

    def __init__(
        self,
        *,
        timing: RunTiming | None = None,
        limits: RunLimits | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.runtime = Idle()
        self.controller = RunController(
            self.runtime,
            timing=timing,
            limits=limits,
            journal=journal,
            clock=StepClock(),
            new_id=lambda: "controller",
        )
        self.journal = self.controller.journal

    async def __aenter__(self) -> Self:
        await self.controller.start(
            RunSpec(RUN_ID, "thread", (Message("input", "user", (Text("hi"),)),)), until="accepted"
        )
        while self.runtime.port is None:
            await asyncio.sleep(0)
        self.port = self.runtime.port
        self.live = self.controller._fleet.live[RUN_ID]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.live.task.cancel()
        await asyncio.wait({self.live.task})
        await self.controller.aclose()

    @property
    def state(self) -> RunState:
        return self.live.state

    async def offer(self, *drafts: tuple[Draft, str]) -> int:
        """One append: by the port where all of it is a runtime's, else by the writer."""
        if all(lane == RUNTIME for _, lane in drafts):
            return await self.port.record(*[draft for draft, _ in drafts])
        return await self.live.writer.write(*drafts)

    async def facts(self) -> list[Record]:
        """What is stored."""
        return list((await self.journal.read(RUN_ID, limit=500)).records)


async def check_port(trace: Trace) -> Counter:
    """The same numbers, phases and facts; every repeat is a duplicate with its seq; no mutation uses a number."""
    dice = random.Random(trace.seed)
    async with Bench() as bench:
        stored: list[tuple[Offer, int]] = []
        for offer, oracle in zip(trace.offers, trace.after, strict=True):
            seq = await bench.offer(*offer)
            stored.append((offer, seq))
            assert (seq, bench.state.phase) == (oracle.seq, oracle.phase), trace.seed
        facts = await bench.facts()
        before = snapshot(bench.state)
        whole = fold(
            facts, RUN_ID, chain_start(RUN_ID, bench.live.registration.spec_digest), bench.state.terms
        )
        assert snapshot(whole) == before, trace.seed
        repeats = await _repeat(bench, stored, facts)
        mutations = await _mutate(bench, dice, facts)
        assert differences(snapshot(bench.state), before) == {}, trace.seed
        assert await bench.facts() == facts, trace.seed
        if dice.random() < 0.3:
            mutations += await _conflict(bench, stored, dice)
        return Counter(facts=len(facts), repeats=repeats, mutations=mutations)


async def _repeat(bench: Bench, stored: list[tuple[Offer, int]], facts: list[Record]) -> int:
    """RC-13: one by one, and a whole append again."""
    count = 0
    by_id = {record.event_id: record.seq for record in facts}
    for offer, seq in stored:
        for draft, lane in offer:
            event_id = draft.event_id or event_id_of(draft.fact, 0, lane)
            if event_id not in by_id:
                continue  # names nothing: told again it is another one
            assert await bench.offer((draft, lane)) == by_id[event_id]
            count += 1
        named = [(draft.event_id or event_id_of(draft.fact, 0, lane)) in by_id for draft, lane in offer]
        if all(named):
            assert await bench.offer(*offer) == seq
            count += 1
    return count


async def _mutate(bench: Bench, dice: random.Random, facts: list[Record]) -> int:
    """Gaps, conflicts, foreign runs and fences in the store, wrong lanes at the port: nothing is stored."""
    head = Head(facts[-1].seq, facts[-1].chain)
    summary = bench.state.summary()
    some = dice.choice(facts)

    def sealed(seq: int, **changes: Any) -> Record:
        values = {"run_id": RUN_ID, "seq": seq, "at_ms": 1, "lane": "runtime", "fence": 1, "fact": Noted("test/x"),
                  "event_id": "fresh", "causation": None, "source": None, "previous": head.chain}  # fmt: skip
        return seal(**(values | changes))

    def append(record: Record, *, run_id: str = RUN_ID, expected: Head = head, fence: int = 1) -> Any:
        return bench.journal.append(run_id, [record], expected=expected, fence=fence, summary=summary)

    wrong: list[tuple[Any, type[Exception] | tuple[type[Exception], ...]]] = [
        (append(sealed(head.seq + 2)), ValueError),
        (append(sealed(head.seq)), ValueError),
        (append(sealed(head.seq + 1), expected=Head(head.seq - 1, some.chain)), SeqConflict),
        (append(sealed(head.seq + 1), expected=Head(head.seq, "forged")), SeqConflict),
        (append(sealed(head.seq + 1), fence=2), FenceConflict),
        (append(sealed(head.seq + 1, event_id=some.event_id)), DuplicateConflict),
        (append(sealed(head.seq + 1), run_id="other"), Exception),
        (bench.port.record(StopRequested("mine")), RecordRefused),
        (bench.port.record(CommandReceived(Command("x", RUN_ID, Cancel("x")), "d")), RecordRefused),
        (bench.port.record(ContinuityRestored(1, "journal")), RecordRefused),
        (bench.port.record(Draft(Noted("test/x"), event_id="host:stop")), RecordRefused),
        (bench.live.writer.write((Draft(TurnStarted(1)), HOST)), RecordRefused),
        (bench.live.writer.write((Draft(MessageAdded(Message("x", "user"))), HOST)), RecordRefused),
    ]
    for offered, error in wrong:
        try:
            await offered
        except error:
            continue
        raise AssertionError(f"{offered} was stored")
    return len(wrong)


async def _conflict(bench: Bench, stored: list[tuple[Offer, int]], dice: random.Random) -> int:
    """RC-13: an id with other content: no number from the host, the loss and its evidence from a runtime."""
    drafts = [draft for offer, _ in stored for draft, lane in offer if lane == RUNTIME and draft.event_id]
    if not drafts or bench.state.phase in ("unknown", "terminal"):
        return 0
    seq = bench.state.seq
    other = Draft(Noted("test/other"), event_id=dice.choice(drafts).event_id)
    with pytest.raises(ProtocolViolation, match="duplicate_conflict"):
        await bench.port.record(other)
    assert [record.fact.kind for record in (await bench.facts())[seq:]] == [
        "violation_recorded",
        "continuity_lost",
    ]
    assert bench.state.phase == "unknown"
    return 1


async def check_many(count: int, first_seed: int = 0, *, ports: bool = True) -> Counter:
    """Draws and checks that many traces; returns how much of everything there was."""
    found: Counter = Counter()
    for seed in range(first_seed, first_seed + count):
        trace = draw(seed)
        found += check_fold(trace) + Counter({f"last {trace.after[-1].phase}": 1} if trace.after else {})
        if ports:
            found += await check_port(draw(seed, losses=False))
    found["traces"] = count
    return found


def main() -> int:
    """Checks many traces and prints the counts."""
    parser = argparse.ArgumentParser(description="Random legal runs: fold, repeats, mutations.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    found = asyncio.run(check_many(options.count, options.seed))
    print(
        f"from seed {options.seed}, {time.perf_counter() - began:.1f} s: "
        + ", ".join(f"{name} {found[name]}" for name in sorted(found))
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
