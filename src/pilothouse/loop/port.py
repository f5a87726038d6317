"""A run in memory alone: the port that `AgentLoop.ask` and tests drive the loop with.

It keeps the rules of a run (`core/rules.py`) and its commands, and leaves out what needs a journal: digests, fences,
ownership, followers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from hashlib import sha256
from typing import final

from ..commands import Answer, Cancel, Command, CommandKind, FollowUp, Steer, StopSource
from ..contracts import Clock, GatePoint
from ..core.rules import Refused, Violation, judge
from ..core.run import HOST, RUNTIME, RunState, apply, fold
from ..core.settling import event_id_of, expand
from ..errors import ArtifactNotFound, ProtocolViolation, RecordRefused
from ..events import (
    CommandAnswered,
    CommandReceived,
    DeltaBody,
    Fact,
    Lane,
    RunAccepted,
    StopRequested,
)
from ..messages import ArtifactRef
from ..records import Draft, Record, Start
from ..scope import Scope


def _setter(event: asyncio.Event) -> Callable[[Command], None]:
    return lambda _command: event.set()


@final
class MemoryInbox:
    """Implements `contracts.CommandInbox`."""

    def __init__(self, port: MemoryPort) -> None:
        self._port = port
        self._waiting: list[Command] = []
        self._callbacks: list[Callable[[Command], object]] = []

    def peek(self, kind: CommandKind | None = None) -> Command | None:
        """The next one, left where it is."""
        for command in self._waiting:
            if kind is None or command.body.__struct_config__.tag == kind:
                return command
        return None

    def take(self, kind: CommandKind | None = None) -> Taken | None:
        """Takes the next one."""
        command = self.peek(kind)
        if command is None:
            return None
        self._waiting.remove(command)
        return Taken(command, self._port)

    async def wait(self, kind: CommandKind | None = None) -> None:
        """Waits until there is one."""
        while self.peek(kind) is None:
            arrived = asyncio.Event()
            take_back = self.on_arrival(_setter(arrived))
            try:
                await arrived.wait()
            finally:
                take_back()

    def on_arrival(self, callback: Callable[[Command], object], /) -> Callable[[], None]:
        """Calls back for each command from now on."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None

    def arrive(self, command: Command) -> None:
        """Puts a command in."""
        self._waiting.append(command)
        for callback in list(self._callbacks):
            callback(command)


@final
class Taken:
    """Implements `contracts.PendingCommand`."""

    def __init__(self, command: Command, port: MemoryPort) -> None:
        self.command = command
        self._port = port

    async def accept(self) -> None:
        """Records the acceptance."""
        self._answer("accepted")

    async def reject(self, code: str, message: str = "") -> None:
        """Records the rejection."""
        self._answer("rejected", code, message)

    async def unsupported(self, feature: str = "") -> None:
        """Records that there is no such thing."""
        self._answer("unsupported", feature)

    def _answer(self, answer: str, code: str = "", message: str = "") -> None:
        fact = CommandAnswered(self.command.id, answer, code, message)  # type: ignore[arg-type]
        self._port.append([(Draft(fact, causation=self.command.id), RUNTIME)])


@final
class MemoryPort:
    """Implements `contracts.RunPort` over a list of facts.

    Args:
        start: the run.
        clock: stamps the facts.
        records: facts that the run has already; empty for a fresh one.

    Attributes:
        records: all facts, without digests.
        told: called with each delta, None where nobody listens.
        wrote: called with the records of each append, None where nobody listens.
        attended: whether anybody can answer a request; nobody can where the port is only there for `ask`.
    """

    def __init__(
        self,
        start: Start,
        clock: Clock,
        *,
        records: Iterable[Record] = (),
        told: Callable[[DeltaBody], object] | None = None,
    ) -> None:
        spec = start.spec
        self.start = start
        self.state = RunState(spec.run_id)
        self.scope = Scope(spec.deadline_ms)
        self.commands = MemoryInbox(self)
        self.records: list[Record] = []
        self.artifacts: dict[str, bytes] = {}
        self.told = told
        self.attended = True
        self.wrote: Callable[[list[Record]], object] | None = None
        self._clock = clock
        self._paused: set[GatePoint] = set()
        self._opened: asyncio.Event | None = None
        for record in records:
            apply(self.state, record)
            self.records.append(record)
        if not self.records:
            accepted = RunAccepted(spec.thread_id, start.spec_digest, start.binding, start.descriptor_digest)
            self._put(Draft(accepted), HOST)
        undecided = [known.command for known in self.state.commands.values() if known.state == "received"]
        for command in [*self.state.queued.values(), *undecided]:
            if not isinstance(command.body, Cancel):
                self.commands.arrive(command)

    # What a runtime uses

    @property
    def paused(self) -> Collection[GatePoint]:
        """The points that are closed now; live."""
        return self._paused

    async def facts(self, after: int = 0) -> AsyncIterator[Record]:
        """The facts so far."""
        for record in self.records[after:]:
            yield record

    async def record(self, *facts: Fact | Draft) -> int:
        """Judges and keeps them, all or none."""
        self.append(
            [
                (fact if isinstance(fact, Draft) else Draft(fact), RUNTIME)  # type: ignore[arg-type]
                for fact in facts
            ]
        )
        return self.state.seq

    def tell(self, body: DeltaBody, /) -> None:
        """Hands a delta on."""
        if self.told is not None:
            self.told(body)

    async def gate(self, point: GatePoint) -> None:
        """Waits while that point is closed."""
        while point in self._paused and not self.scope.cancelled:
            self._opened = self._opened or asyncio.Event()
            take_back = self.scope.on_cancel(self._opened.set)
            try:
                await self._opened.wait()
            finally:
                take_back()

    async def put_artifact(self, data: bytes, media_type: str) -> ArtifactRef:
        """Keeps bytes."""
        digest = sha256(data).hexdigest()
        self.artifacts[digest] = data
        return ArtifactRef(digest, len(data), media_type, data[:2000].decode(errors="replace"))

    async def get_artifact(self, digest: str) -> bytes:
        """The bytes again."""
        try:
            return self.artifacts[digest]
        except KeyError:
            raise ArtifactNotFound(digest) from None

    # What a host does

    def pause(self, *points: GatePoint) -> None:
        """Closes these gates; all without a name."""
        self._paused.update(points or ("request", "call", "read"))

    def resume(self) -> None:
        """Opens all gates."""
        self._paused.clear()
        if self._opened is not None:
            self._opened.set()
            self._opened = None

    def command(self, command: Command) -> None:
        """Receives a command as a run controller would: recorded first, then forwarded."""
        body = command.body
        digest = ""
        received = Draft(CommandReceived(command, digest))
        if isinstance(body, Cancel):
            answer = Draft(CommandAnswered(command.id, "accepted"), causation=command.id)
            stop = Draft(StopRequested(body.reason, body.source), causation=command.id)
            self.append([(received, HOST), (answer, HOST), (stop, HOST)])
            self.scope.fire(body.reason, body.source)
        elif isinstance(body, Steer | FollowUp):
            answer = Draft(CommandAnswered(command.id, "accepted"), causation=command.id)
            self.append([(received, HOST), (answer, HOST)])
            self.commands.arrive(command)
        else:
            assert isinstance(body, Answer), "a run in memory has no queue to edit"
            self.append([(received, HOST)])
            self.commands.arrive(command)

    def cancel(self, reason: str = "stop", source: StopSource = "user") -> None:
        """Stops the run."""
        self.command(Command(f"cancel-{self.state.seq}", self.state.run_id, Cancel(reason, source)))

    # The writer

    def append(self, drafts: Iterable[tuple[Draft, Lane]]) -> None:
        """Judges each draft on the state after its predecessor and keeps all or none.

        Raises:
            RecordRefused: an honest race.
            ProtocolViolation: the contract was broken.
        """
        length = len(self.records)
        try:
            for draft, lane in drafts:
                for entry, of in expand(self.state, draft, lane):
                    self._check(entry, of)
                    self._put(entry, of)
                self._check(draft, lane)
                self._put(draft, lane)
        except BaseException:
            # Refusals are rare, so nothing is copied for them: the state is folded anew.
            del self.records[length:]
            self.state = fold(self.records, self.start.spec.run_id)
            raise
        if self.wrote is not None:
            self.wrote(self.records[length:])

    def _check(self, draft: Draft, lane: Lane) -> None:
        verdict = judge(self.state, draft, lane)
        if isinstance(verdict, Refused):
            raise RecordRefused(verdict.code, verdict.why)
        if isinstance(verdict, Violation):
            raise ProtocolViolation(verdict.code, verdict.why)

    def _put(self, draft: Draft, lane: Lane) -> None:
        seq = self.state.seq + 1
        event_id = draft.event_id or event_id_of(draft.fact, seq, lane)
        record = Record(
            self.state.run_id,
            seq,
            self._clock.time_ms(),
            lane,
            self.start.fence,
            event_id,
            draft.fact,
            "",
            "",
            b"",
            draft.causation,
            draft.source,
        )
        apply(self.state, record)
        self.records.append(record)
