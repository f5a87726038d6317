"""A loop that carries what it found out of a thread asks and records what one asks and records that carries nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilothouse.commands import Cancel, Command
from pilothouse.core.pairing import WireRules
from pilothouse.journal.memory import MemoryJournal
from pilothouse.loop.agent import AgentLoop
from pilothouse.loop.config import Limits, LoopConfig
from pilothouse.loop.hooks import NextTurn
from pilothouse.messages import Image, Message, Model, Text, Usage
from pilothouse.records import HistoryMessage, Parent, RunSpec
from pilothouse.runs.controller import RunController
from pilothouse.testing import ScriptedProvider
from pilothouse.testing.scripted import Cut, Hold, call, failure

ANSWERS: Sequence[Sequence[Any]] = (
    ["plain"],
    ["counted", Usage(input=300, output=3)],
    [call("echo", {"text": "x"})],  # an id of its own
    [call("echo", {"text": "x"}, call_id="again")],  # ids that come back
    [call("echo", {"text": "x"}, call_id="again"), call("echo", {"text": "y"}, call_id="a" * 50 + "!")],
    [call("echo", {"text": "long " * 2_000})],  # left out of the transcript
    [call("echo", {"b": 1, "a": 2.0, "text": "ö"})],  # refused
    [call("nobody", "{")],
    ["half", failure("overloaded")],  # asked again
    ["half", Cut()],
    ["stopped", "stop"],
    [""],
)
GIVEN = ("text", "image", "steered", "queued")
HOOKS = ("none", "none", "transform", "fresh list", "compact", "window")
STEP = st.tuples(
    st.integers(0, 3),  # how far back the run hangs: the last, or an earlier one
    st.booleans(),  # at the end of its parent, or at the first message of it
    st.sampled_from(GIVEN),
    st.lists(st.sampled_from(range(len(ANSWERS))), min_size=1, max_size=4),
    st.integers(0, 1),  # which loop
)


class Served:
    """A dialect with rules for ids of its own; plays what the run is to be answered with."""

    def __init__(self, rules: WireRules) -> None:
        self.wire_rules = rules
        self.tag = "scripted"
        self.default_model = Model("m", "scripted", 100_000, 1_000)
        self.asked: list[bytes] = []
        self.answers: list[Sequence[Any]] = []
        self.hold = Hold()
        self._inner = ScriptedProvider(self._play, repeat=True, model=self.default_model)

    def _play(self, request: Any) -> list[Any]:
        self.asked.append(msgspec.json.encode(request, order="sorted"))  # as the digest of a request sees it
        items = self.answers.pop(0) if self.answers else ["the end"]
        return [self.hold if item == "stop" else item for item in items]

    def stream(self, request: Any, /) -> Any:
        return self._inner.stream(request)

    async def aclose(self) -> None:
        pass


class House:
    """Two loops of one configuration, over one journal."""

    def __init__(self, hooks: str, *, carries: bool) -> None:
        self.hooks, self.carries = hooks, carries
        self.journal = MemoryJournal()
        self.providers = [Served(WireRules()), Served(WireRules("a-z0-9", 12))]
        self.steering: list[Message] = []
        self.queued: list[Message] = []
        self.loops = [self.loop(number) for number in range(2)]
        self.runs = [RunController(loop, journal=self.journal) for loop in self.loops]
        self.made: list[str] = []

    def loop(self, number: int) -> AgentLoop:
        async def echo(text: str) -> str:
            """Echo.

            Args:
                text: what
            """
            return text

        def steer(_: Any) -> list[Message]:
            given, self.steering = self.steering, []
            return given

        def follow(_: Any) -> list[Message]:
            given, self.queued = self.queued, []
            return given

        more: dict[str, Any] = {}
        if self.hooks == "transform":
            more["transform_context"] = lambda messages, _: messages[len(messages) // 3 :]
        elif self.hooks == "fresh list":
            more["transform_context"] = lambda messages, _: [*messages]
        elif self.hooks == "compact":
            more["prepare_next_turn"] = lambda info: (
                NextTurn(
                    messages=[
                        Message(f"sum-{info.run_id}-{info.turn}", "user", (Text("all that"),)),
                        *info.context[-2:],
                    ]
                )
                if len(info.context) > 6
                else None
            )
        elif self.hooks == "window":
            more["context_window_cap"] = 16_384
            more["over_window_relief"] = lambda over: over.messages[-2:]
        config = LoopConfig(
            spill_above=8_192,
            limits=Limits(turns=6),
            retry=msgspec.structs.replace(LoopConfig().retry, base=0.0),
            get_steering_messages=steer,
            get_follow_up_messages=follow,
            **more,
        )
        return AgentLoop(self.providers[number], tools=[echo], config=config)

    async def step(self, number: int, step: Any) -> None:
        back, through, given, answers, which = step
        if not self.carries:
            self.runs[which] = RunController(self.loop(which), journal=self.journal)
        runs, provider = self.runs[which], self.providers[which]
        provider.answers, provider.hold = [ANSWERS[at] for at in answers], Hold()
        run_id = f"r{number}"
        parent = None
        if self.made:
            above = self.made[max(0, len(self.made) - 1 - back)]
            path: Sequence[HistoryMessage] = await runs.history(above)
            own = [entry.message.id for entry in path if entry.run_id == above]
            parent = Parent(above, own[0] if through and own else None)
        words = f"question {number} " + "w" * 25_000 * (self.hooks == "window")
        parts = (Text(words), *([Image("image/png", data=b"p" * 9)] if given == "image" else []))
        if given == "steered":
            self.steering = [Message(f"s{number}", "user", (Text("and this"),))]
        elif given == "queued":
            self.queued = [Message(f"f{number}", "user", (Text("then that"),))]
        spec = RunSpec(run_id, "t", (Message(f"q{number}", "user", parts),), parent=parent)
        run = await runs.start(spec)
        ending = asyncio.ensure_future(run.wait())
        reached = asyncio.ensure_future(provider.hold.reached())
        await asyncio.wait({ending, reached}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            await runs.command(Command(f"stop-{number}", run_id, Cancel("enough")))
            await ending
        reached.cancel()
        self.made.append(run_id)

    async def told(self) -> list[Any]:
        """Every request, and every fact without its time."""
        facts = []
        for run_id in self.made:
            facts += [record.body for record in (await self.journal.read(run_id)).records]
        return [[provider.asked for provider in self.providers], facts]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(HOOKS), st.lists(STEP, min_size=2, max_size=8))
def test_a_loop_that_carries_asks_and_records_the_same(hooks: str, steps: Sequence[Any]) -> None:
    """LP-12, LP-40, LP-41, LP-50, RC-82: over edits, branches, stops, failures, hooks, compactions and two dialects."""

    async def play(house: House) -> list[Any]:
        for number, step in enumerate(steps):
            await house.step(number, step)
        return await house.told()

    carried = asyncio.run(play(House(hooks, carries=True)))
    anew = asyncio.run(play(House(hooks, carries=False)))
    assert carried == anew
