"""What a runtime is given to work with: the port of one attachment, with its scope, inbox and gate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from ..commands import Answer, Command, CommandKind, FollowUp, Replace, Steer
from ..contracts import GatePoint, RunFold
from ..core.run import HOST, RUNTIME
from ..errors import RecordRefused
from ..events import CommandAnswered, DeltaBody, Fact
from ..messages import ArtifactRef
from ..records import Draft, Record
from .flowing import Flow

if TYPE_CHECKING:
    from .live import LiveRun

logger = logging.getLogger("pilothouse.runs")


def resolve(done: asyncio.Future[None]) -> None:
    """Wakes whoever awaits it, if nothing else did."""
    if not done.done():
        done.set_result(None)


class Gate:
    """Where a runtime waits while paused. Memory of the owning process, never a fact (RC-83)."""

    POINTS: tuple[GatePoint, ...] = ("request", "call", "read")

    __slots__ = (
        "__weakref__",
        "_waiters",
        "_watchers",
        "shut",
    )

    def __init__(self) -> None:
        self.shut: set[GatePoint] = set()  # live: a runtime may hold it and look
        self._waiters: list[asyncio.Future[None]] = []
        self._watchers: list[Callable[[], object]] = []

    def watch(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Calls back whenever points were shut or opened; returns a function that takes this back."""
        self._watchers.append(callback)

        def take_back() -> None:
            if callback in self._watchers:
                self._watchers.remove(callback)

        return take_back

    def _moved(self) -> None:
        for callback in tuple(self._watchers):
            callback()

    def pause(self, *points: GatePoint) -> None:
        """Shuts these points, all if none is named."""
        self.shut.update(points or self.POINTS)
        self._moved()

    def open(self) -> None:
        """Opens all points."""
        self.shut.clear()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._moved()

    async def wait(self, point: GatePoint) -> None:
        """Waits while that point is shut."""
        while point in self.shut:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


def kind_of(command: Command) -> CommandKind:
    """The kind of a command, by its name on every wire."""
    return command.body.__struct_config__.tag  # type: ignore[return-value]


class Pending:
    """A command taken from the inbox (contracts.PendingCommand)."""

    def __init__(self, live: LiveRun, command: Command) -> None:
        self._live = live
        self.command = command

    async def accept(self) -> None:
        """Records that it will have an effect; nothing if that is recorded already."""
        state = self._live.state.commands.get(self.command.id)
        if state is not None and not state.answer:
            await self._answer(CommandAnswered(self.command.id, "accepted"))

    async def reject(self, code: str, message: str = "") -> None:
        """Records that it has none; a rejected answer leaves its request open."""
        await self._answer(CommandAnswered(self.command.id, "rejected", code, message))

    async def unsupported(self, feature: str = "") -> None:
        """Records that this runtime has no such thing."""
        await self._answer(CommandAnswered(self.command.id, "unsupported", "unsupported", feature))

    async def _answer(self, fact: CommandAnswered) -> None:
        await self._live.writer.write((Draft(fact, causation=self.command.id), RUNTIME))


class Inbox:
    """Commands that wait for the runtime, in order of arrival."""

    __slots__ = (
        "__weakref__",
        "_items",
        "_listeners",
        "_live",
    )

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self._items: list[Command] = []
        self._listeners: list[Callable[[Command], object]] = []
        state = live.state
        if state.commands:  # of an earlier attachment
            self._items += state.queued.values()
            self._items += [
                entry.command
                for entry in state.commands.values()
                if entry.state == "received" and isinstance(entry.command.body, Answer | Steer | FollowUp)
            ]

    def put(self, command: Command) -> None:
        """Delivers a command and tells who listens."""
        self._items.append(command)
        for listener in list(self._listeners):
            try:
                listener(command)
            except Exception:
                logger.exception("a command listener failed")

    def waits(self, command_id: str) -> bool:
        """Whether it has not been taken."""
        return any(command.id == command_id for command in self._items)

    def remove(self, command_id: str) -> None:
        """Takes a withdrawn command out."""
        self._items = [command for command in self._items if command.id != command_id]

    def replace(self, command_id: str, command: Command) -> None:
        """Puts another command in the place of one that waits."""
        self._items = [command if item.id == command_id else item for item in self._items]

    def peek(self, kind: CommandKind | None = None) -> Command | None:
        """The next one (of that kind), left where it is."""
        for command in self._items:
            if kind is None or self._kind(command) == kind:
                return command
        return None

    def _kind(self, command: Command) -> CommandKind:
        """The kind under which it is asked for: a replacement is what it replaced (RC-43)."""
        while isinstance(command.body, Replace):
            command = self._live.state.commands[command.body.command_id].command
        return kind_of(command)

    def take(self, kind: CommandKind | None = None) -> Pending | None:
        """Takes the next one (of that kind), or None. Never waits."""
        command = self.peek(kind)
        if command is None:
            return None
        self._items.remove(command)
        return Pending(self._live, command)

    def on_arrival(self, callback: Callable[[Command], object], /) -> Callable[[], None]:
        """Calls back for each command that arrives from now on."""
        self._listeners.append(callback)

        def take_back() -> None:
            if callback in self._listeners:
                self._listeners.remove(callback)

        return take_back

    async def wait(self, kind: CommandKind | None = None) -> None:
        """Waits until there is one (of that kind)."""
        while self.peek(kind) is None:
            done = asyncio.get_running_loop().create_future()
            take_back = self.on_arrival(partial(lambda done, _: resolve(done), done))
            try:
                await done
            finally:
                take_back()


def _drop(_told: DeltaBody | str, /) -> None:
    pass


class Port:
    """The port of one attachment (contracts.RunPort). Closed, it refuses facts and drops deltas."""

    __slots__ = (
        "__weakref__",
        "_live",
        "closed",
        "commands",
        "scope",
        "tell",
    )

    def __init__(self, live: LiveRun) -> None:
        self._live = live
        self.scope = live.scope
        self.commands = Inbox(live)
        self.closed = ""
        self.tell: Callable[[DeltaBody], None] = live.tell

    def close(self, code: str) -> None:
        """Takes no facts any more, and drops deltas."""
        self.closed, self.tell = code, _drop

    def flow(self, message_id: str, index: int, /) -> Callable[[str], None]:
        """The short way for the pieces of one text, for a runtime that asks for it: see `Flow`."""
        return _drop if self.closed else Flow(self._live, message_id, index).say

    @property
    def state(self) -> RunFold:
        """Fold of the facts so far."""
        return self._live.state

    @property
    def paused(self) -> Collection[GatePoint]:
        """The points that are paused now: a live collection, so that looking costs nothing."""
        return self._live.gate.shut

    async def facts(self, after: int = 0) -> AsyncIterator[Record]:
        """The run's facts from the journal."""
        for record in await self._live.read_facts(after):
            yield record

    async def record(self, *facts: Fact | Draft) -> int:
        """One atomic append; see contracts.RunPort.record."""
        if self.closed and self.closed != self._live.writer.closed:
            raise RecordRefused(self.closed)  # else the writer knows what was stored before (RC-29)
        done = self._live.record(facts)
        return done if type(done) is int else await done  # type: ignore[misc]

    def on_gate(self, callback: Callable[[], object], /) -> Callable[[], None]:
        """Calls back whenever a point was shut or opened; returns a function that takes this back."""
        return self._live.gate.watch(callback)

    async def gate(self, point: GatePoint) -> None:
        """Waits while that point is paused."""
        await self._live.gate.wait(point)

    async def put_artifact(self, data: bytes, media_type: str) -> ArtifactRef:
        """Stores bytes, durable before it returns."""
        if len(data) > self._live.limits.max_artifact_bytes:
            raise RecordRefused("too_large", f"an artifact of {len(data)} bytes")
        return await self._live.journal.put_blob(data, media_type)

    async def get_artifact(self, digest: str) -> bytes:
        """Bytes that were stored."""
        return await self._live.journal.get_blob(digest)


__all__ = ["HOST", "Gate", "Inbox", "Pending", "Port", "kind_of"]
