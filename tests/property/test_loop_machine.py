"""Random scripts of provider × tools × stop, steer, answer and crash: what must always hold (agent-loop §7.19)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from pilothouse.commands import Allow, Deny
from pilothouse.core.breaker import ToolMisuseBreaker
from pilothouse.core.pairing import repair
from pilothouse.core.transcript import Transcript
from pilothouse.events import (
    CallFinished,
    CallStarted,
    Cancelled,
    MessageAdded,
    ModelRequested,
    RequestOpened,
    RunEnded,
    StopRequested,
    TurnStarted,
)
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig, RetryPolicy
from pilothouse.loop.tools import Tool, tool
from pilothouse.responses import StreamEnd
from pilothouse.testing import LoopRig, ScriptedProvider
from pilothouse.testing.scripted import Cut, call, failure, thought

EFFECTS = ("read", "idempotent", "non_idempotent")


class Crash(BaseException):
    """The process dies here."""


class World:
    """What outlives a crash: effects of tools, and what the provider was asked."""

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()

    def tools(self) -> list[Tool]:
        def make(effect: Any, *, approval: bool = False, sync: bool = False) -> Tool:
            name = f"{effect}{'_ask' if approval else ''}"

            async def work(n: int) -> str:
                self.entered[f"{name}:{n}"] += 1
                if n % 3 == 0:
                    await asyncio.sleep(0)
                if n % 5 == 4:
                    raise ValueError("broken")
                return f"{name} {n}"

            return tool(name=name, description="x", effect=effect, approval=approval or None)(work)

        return [*(make(effect) for effect in EFFECTS), make("non_idempotent", approval=True)]


# Scripts

piece = st.one_of(
    st.sampled_from(["Hello", " ", ""]),
    st.just(thought("hm")),
)
tool_name = st.sampled_from([*EFFECTS, "non_idempotent_ask", "nothing"])
a_call = st.tuples(tool_name, st.one_of(st.integers(0, 9), st.just("x")))
an_end = st.sampled_from(["normal"] * 20 + ["length", "refusal", "pause_turn", "overloaded", "auth", "eof"])
response = st.tuples(st.lists(piece, max_size=2), st.lists(a_call, min_size=0, max_size=3), an_end)
interference = st.one_of(
    st.tuples(st.sampled_from(["steer", "follow_up"]), st.integers(0, 20)),
    st.tuples(st.sampled_from(["crash_before", "crash_after"]), st.integers(1, 8)),
    st.tuples(st.just("stop"), st.integers(0, 40)),
)


def script_of(number: int, shape: Any) -> Any:
    pieces, calls, end = shape
    items: list[Any] = list(pieces)
    items += [call(name, {"n": n}, call_id=f"c{number}-{at}") for at, (name, n) in enumerate(calls)]
    if end == "eof":
        return [*items, Cut()]
    if end in ("overloaded", "auth"):
        return [*items, failure(end)]
    return items if end == "normal" else [*items, StreamEnd(end)]


CONFIG = LoopConfig(
    retry=RetryPolicy(base=0, attempts=3),
    limits=Limits(turns=12, requests=20, tool_calls=15),
    tool_misuse_breaker=ToolMisuseBreaker(),
)


class Attachment:
    """One life of the run, with what interferes with it."""

    def __init__(
        self, world: World, scripts: list[Any], records: list[Any], plan: list[Any], config: LoopConfig
    ) -> None:
        self.provider = ScriptedProvider(*scripts, *["done"] * 30)
        self.loop = AgentLoop(self.provider, tools=world.tools(), config=config)
        self.rig = LoopRig(self.loop, records=records, on_seen=self.seen)
        self.plan = plan
        self.appends = 0
        self.steered = 0
        self.record = self.rig.port.record
        self.rig.port.record = self.recording

    def seen(self, index: int, item: Any) -> None:
        if isinstance(item, RequestOpened):
            resolution = Deny("no") if index % 3 == 0 else Allow()
            request_id = item.request.id
            asyncio.get_running_loop().call_soon(self.answer, request_id, resolution)
        for kind, at in self.plan:
            if at != index or self.rig.outcome is not None or self.rig.port.state.stop is not None:
                continue
            if kind == "stop":
                self.rig.stop()
            elif kind in ("steer", "follow_up"):
                self.steered += 1
                getattr(self.rig, kind)(f"{kind} {self.steered}")

    def answer(self, request_id: str, resolution: Any) -> None:
        state = self.rig.port.state
        if request_id in state.requests and state.stop is None:
            self.rig.answer(request_id, resolution)

    async def recording(self, *facts: Any) -> int:
        self.appends += 1
        if ("crash_before", self.appends) in self.plan:
            raise Crash
        seq = await self.record(*facts)
        if ("crash_after", self.appends) in self.plan:
            raise Crash
        return seq


async def live(shapes: list[Any], lives: list[list[Any]], config: LoopConfig) -> None:
    world = World()
    records: list[Any] = []
    scripts = [script_of(number, shape) for number, shape in enumerate(shapes)]
    outcome = None
    for attempt in range(len(lives) + 1):
        asked = sum(isinstance(record.fact, ModelRequested) for record in records)
        plan = lives[attempt] if attempt < len(lives) else []
        life = Attachment(world, scripts[asked:], records, plan, config)
        before = set(asyncio.all_tasks())
        for request in life.rig.port.state.requests:
            asyncio.get_running_loop().call_soon(life.answer, request, Allow())
        if life.rig.port.state.stop is not None:  # a stop that was durable before the crash has fired already
            stop = life.rig.port.state.stop
            life.rig.port.scope.fire(stop.reason, stop.source)
        crashed = False
        try:
            outcome = await asyncio.wait_for(life.rig.resume() if records else life.rig.run(), 20)
        except Crash:
            crashed = True
        check(life, world, crashed=crashed)
        observe(life, crashed=crashed)
        for _ in range(3):
            await asyncio.sleep(0)
        assert set(asyncio.all_tasks()) <= before
        records = list(life.rig.records)
        if outcome is not None:
            break
    if outcome is not None:
        whole(life, world)


def check(life: Attachment, world: World, *, crashed: bool) -> None:
    """What holds after every life, however it ended."""
    rig = life.rig
    ends = Counter(fact.call_id for fact in rig.of(CallFinished))
    assert all(count == 1 for count in ends.values())
    assert sum(isinstance(fact, RunEnded) for fact in rig.facts) == (0 if rig.outcome is None else 1)
    stopped = next((at for at, fact in enumerate(rig.facts) if isinstance(fact, StopRequested)), None)
    if stopped is not None:
        assert not any(
            isinstance(fact, TurnStarted | ModelRequested | CallStarted) for fact in rig.facts[stopped:]
        )
        assert rig.outcome is None or rig.outcome is not None
    if not crashed:
        assert life.provider.open == 0
    for request in life.provider.requests:
        assert repair(request.messages)[1] is None, "a request is always valid"
        ids = [message.id for message in request.messages]
        assert len(ids) == len(set(ids))
    assert len(rig.of(ModelRequested)) <= CONFIG.limits.requests
    for start in rig.of(CallStarted):
        if start.effect == "non_idempotent":
            assert start.attempt == 1


def observe(life: Attachment, *, crashed: bool) -> None:
    """Tells hypothesis what happened, so that its statistics show what was tried."""
    if crashed:
        event("crashed")
    kinds = {fact.kind for fact in life.rig.facts}
    for kind in ("stop_requested", "request_opened", "call_observed", "input_returned"):
        if kind in kinds:
            event(kind)
    for end in life.rig.of(CallFinished):
        event(f"call {end.outcome} {end.reason}")
    event(f"outcome {type(life.rig.outcome).__name__}")


def whole(life: Attachment, world: World) -> None:
    """What holds for a run that has ended."""
    rig = life.rig
    proposed = [part.call_id for fact in rig.of(MessageAdded) for part in fact.message.tool_calls]
    assert sorted(proposed) == sorted(fact.call_id for fact in rig.of(CallFinished))
    state = rig.port.state
    assert not state.calls
    assert not state.requests
    assert not state.queued
    if any(isinstance(fact, StopRequested) for fact in rig.facts):
        assert isinstance(rig.outcome, Cancelled) or rig.outcome is not None
    transcript = Transcript(rig.start.spec)
    for record in rig.records:
        transcript.add(record)
    messages = [entry.message for entry in transcript.messages() if entry.complete]
    assert repair(messages)[1] is None, "the transcript pairs by itself"
    starts = Counter(
        f"{start.tool}:{(start.arguments or known(rig, start.call_id))['n']}" for start in rig.of(CallStarted)
    )
    for name, count in world.entered.items():
        assert count <= starts[name], "nothing runs without an intent"


def known(rig: LoopRig, call_id: str) -> Any:
    for fact in rig.of(MessageAdded):
        for part in fact.message.tool_calls:
            if part.call_id == call_id:
                return part.arguments
    raise AssertionError(call_id)


configs = st.sampled_from(
    [
        CONFIG,
        CONFIG.copy_with(tool_execution="sequential"),
        CONFIG.copy_with(steering_policy="stop_now", steering_mode="all"),
        CONFIG.copy_with(batch_policy="after_approvals", steering_policy="skip_unstarted"),
        CONFIG.copy_with(batch_policy="as_ready", after_tool_call=lambda done: None),
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(response, min_size=1, max_size=5),
    st.lists(st.lists(interference, min_size=1, max_size=3), max_size=3),
    configs,
)
def test_whatever_happens_the_invariants_hold(
    shapes: list[Any], lives: list[Any], config: LoopConfig
) -> None:
    """LP-28, LP-42, LP-49, EF-1, EF-2, EF-5, RC-12: over stops, steers, answers and crashes before and after appends."""
    asyncio.run(live(shapes, lives, config))
