"""A run of a loop in memory, with everything that happened at hand: facts, deltas, and a place to interfere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, final

from ..clock import SystemClock
from ..commands import Answer, Command, FollowUp, Resolution, Steer
from ..contracts import Clock
from ..core.transcript import Transcript
from ..events import DeltaBody, Fact, Outcome
from ..loop.agent import AgentLoop
from ..loop.port import MemoryPort
from ..messages import JSON, Message, user_message
from ..records import Record, RunSpec, Start

F = TypeVar("F", bound=Fact)


@final
class LoopRig:
    """Drives one run of `loop` over a port in memory.

    Args:
        loop: the loop under test.
        prompt: the run's input; empty to continue `history`.
        history: what came before.
        options: of the run's spec.
        records: facts of an earlier attachment; `resume` goes on from them.
        on_seen: called with each fact and delta as it is seen, and how many were seen before it.

    Attributes:
        told, seen: deltas; facts and deltas, in order.
        appends: how many facts there were after each append: where a crash may cut.
    """

    def __init__(
        self,
        loop: AgentLoop,
        prompt: str | Sequence[Message] = "Hello",
        *,
        history: Sequence[Message] = (),
        options: Mapping[str, JSON] | None = None,
        records: Sequence[Record] = (),
        run_id: str = "run",
        clock: Clock | None = None,
        deadline_ms: int | None = None,
        on_seen: Callable[[int, Fact | DeltaBody], object] | None = None,
    ) -> None:
        given = (user_message(prompt, "input"),) if isinstance(prompt, str) else tuple(prompt)
        spec = RunSpec(run_id, "thread", given, options=dict(options or {}), deadline_ms=deadline_ms)
        self.loop = loop
        self.start = Start(spec, tuple(history), "", "test", "", 1, "")
        self.told: list[DeltaBody] = []
        self.seen: list[Fact | DeltaBody] = []
        self.appends: list[int] = []
        self._on_seen = on_seen
        self.port = MemoryPort(self.start, clock or SystemClock(), records=records, told=self._tell)
        self.port.wrote = self._wrote
        self.task: asyncio.Task[None] | None = None

    def _tell(self, body: DeltaBody) -> None:
        self.told.append(body)
        self._see(body)

    def _wrote(self, records: Sequence[Record]) -> None:
        self.appends.append(len(self.port.records))
        for record in records:
            self._see(record.fact)  # type: ignore[arg-type]

    def _see(self, item: Fact | DeltaBody) -> None:
        self.seen.append(item)
        if self._on_seen is not None:
            self._on_seen(len(self.seen) - 1, item)

    # Driving

    async def run(self) -> Outcome | None:
        """Runs to the end; returns the outcome, None where the loop left without one."""
        await self.loop.run(self.start, self.port)
        return self.outcome

    async def resume(self) -> Outcome | None:
        """Goes on from the facts that the rig was given."""
        await self.loop.resume(self.start, self.port)
        return self.outcome

    def begin(self, work: Callable[[], Awaitable[object]] | None = None) -> asyncio.Task[None]:
        """Runs in a task of its own."""

        async def drive() -> None:
            await (work or self.run)()

        self.task = asyncio.get_running_loop().create_task(drive())
        return self.task

    def stop(self, reason: str = "stop") -> None:
        """Stops the run as a person would; without effect once it has ended."""
        if self.outcome is None:
            self.port.cancel(reason)

    def steer(self, text: str, command_id: str | None = None) -> str:
        """Sends a steering message; returns the command's id."""
        return self._send(Steer(user_message(text, f"said-{len(self.seen)}-{text}")), command_id)

    def follow_up(self, text: str, command_id: str | None = None) -> str:
        """Sends a follow-up; returns the command's id."""
        return self._send(FollowUp(user_message(text, f"said-{len(self.seen)}-{text}")), command_id)

    def answer(self, request_id: str, resolution: Resolution, command_id: str | None = None) -> str:
        """Answers a request; returns the command's id."""
        return self._send(Answer(request_id, resolution), command_id)

    def _send(self, body: Any, command_id: str | None) -> str:
        made = command_id or f"command-{len(self.port.state.commands)}"
        self.port.command(Command(made, self.start.spec.run_id, body))
        return made

    # What happened

    @property
    def outcome(self) -> Outcome | None:
        """How the run ended."""
        return self.port.state.outcome

    @property
    def records(self) -> list[Record]:
        """All facts with their envelopes."""
        return self.port.records

    @property
    def facts(self) -> list[Fact]:
        """All facts."""
        return [record.fact for record in self.port.records]  # type: ignore[misc]

    @property
    def kinds(self) -> list[str]:
        """Names of all facts that the loop wrote, `noted` ones left out."""
        return [
            record.fact.kind
            for record in self.port.records
            if record.lane == "runtime" and record.fact.kind not in ("run_started", "noted")
        ]

    def of(self, kind: type[F]) -> list[F]:
        """The facts of one kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    @property
    def messages(self) -> list[Message]:
        """The transcript of this run, results in the order of their calls."""
        transcript = Transcript(self.start.spec)
        for record in self.port.records:
            transcript.add(record)
        return [item.message for item in transcript.messages()]
