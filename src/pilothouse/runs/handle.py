"""A handle of one run: the controller's methods without the id, and short forms of the commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, final

from ..commands import Ack, Allow, Answer, Command, Deny, FollowUp, Resolution, Steer, StopSource
from ..contracts import GatePoint
from ..errors import OwnedElsewhere
from ..messages import JSON, UNSET, Message, Unset, user_message
from ..records import Accept, HistoryMessage, Record, RunResult, RunView, StatusAnswer
from .follow import Follower
from .ring import Subscription

if TYPE_CHECKING:
    from .controller import RunController


@final
class Run:
    """One run, by name. Holding it keeps nothing alive; several handles of one run are equal in effect.

    Attributes:
        id: the run id.
        reopened: whether `start` found an equal run instead of beginning one (RC-33).
    """

    def __init__(self, controller: RunController, run_id: str, *, reopened: bool = False) -> None:
        self._controller = controller
        self.id = run_id
        self.reopened = reopened

    def __repr__(self) -> str:
        """Names the run."""
        return f"Run({self.id!r})"

    async def inspect(self) -> RunView:
        """The bounded view."""
        return await self._controller.inspect(self.id)

    async def initial_input(self) -> tuple[Message, ...]:
        """The immutable input."""
        return await self._controller.initial_input(self.id)

    async def run_extensions(self) -> Mapping[str, JSON]:
        """The immutable extensions."""
        return await self._controller.run_extensions(self.id)

    async def history(self) -> Sequence[HistoryMessage]:
        """From the root of the thread to this run."""
        return await self._controller.history(self.id)

    async def events(self, after: int = 0, *, limit: int | None = None) -> list[Record]:
        """Facts with seq > after, ascending, from the journal.

        Raises:
            CursorAhead: the run has not come so far.
        """
        return await self._controller.events(self.id, after, limit=limit)

    async def subscribe(self) -> Subscription:
        """What is published from now on."""
        return await self._controller.subscribe(self.id)

    def stream(self, after: int = 0, *, deltas: bool = True, through_unknown: bool = False) -> Follower:
        """Replay, then live, without a gap."""
        return self._controller.stream(self.id, after, deltas=deltas, through_unknown=through_unknown)

    async def command(self, command: Command, *, timeout: float | None = None) -> Ack:
        """Sends a command built by the caller; the same again is acknowledged again, and not forwarded.

        Returns when the runtime answered, or after `timeout` seconds with state `received`. The short forms below are
        commands, too, and raise the same.

        Raises:
            InvalidCommand, NotControllable, OwnedElsewhere, CommandConflict: nothing was recorded.
        """
        return await self._controller.command(command, timeout=timeout)

    async def cancel(self, reason: str, *, source: StopSource = "user") -> Ack:
        """Stops the run; returns when the stop is on the record, `wait` when it has its end."""
        return await self._controller.cancel(self.id, reason, source=source)

    async def recover(self, *, accept: Accept | None = None) -> RunView:
        """Takes the lost run up again, by evidence; see `RunController.recover` for what it raises."""
        return await self._controller.recover(self.id, accept=accept)

    async def check_status(self) -> StatusAnswer:
        """Asks the runtime where the unknown run stands; see `RunController.check_status` for what it raises."""
        return await self._controller.check_status(self.id)

    async def abandon(self, reason: str, *, by: str = "") -> RunView:
        """Leaves its outcome unknown, on the record; see `RunController.abandon` for what it raises."""
        return await self._controller.abandon(self.id, reason, by=by)

    async def steer(self, message: Message | str, *, id: str | None = None) -> Ack:
        """A message for the next turn boundary; `id` makes it idempotent."""
        return await self._send(Steer(self._said(message, id)), id)

    async def follow_up(self, message: Message | str, *, id: str | None = None) -> Ack:
        """A message for when the run would stop: it goes on with that."""
        return await self._send(FollowUp(self._said(message, id)), id)

    def _said(self, message: Message | str, command_id: str | None) -> Message:
        """The message of a command: the same command has the same one (RC-36)."""
        name = self._controller.new_id() if command_id is None else f"{command_id[:190]}:message"
        return user_message(message, name)

    async def answer(self, request_id: str, resolution: Resolution, *, id: str | None = None) -> Ack:
        """Resolves an open request. The ack is `rejected` where the request is not open any more."""
        return await self._send(Answer(request_id, resolution), id)

    async def approve(
        self,
        request_id: str,
        *,
        arguments: JSON | Unset = UNSET,
        scope: Literal["once", "thread"] = "once",
        id: str | None = None,
    ) -> Ack:
        """Allows a call; with `arguments`, these run instead of the proposed ones."""
        edited = None if arguments is UNSET else arguments
        return await self._send(Answer(request_id, Allow(scope, edited)), id)

    async def deny(self, request_id: str, reason: str = "", *, id: str | None = None) -> Ack:
        """Refuses a call, or an answer: the request is resolved by that, and the run goes on."""
        return await self._send(Answer(request_id, Deny(reason)), id)

    async def _send(self, body: Steer | FollowUp | Answer, command_id: str | None) -> Ack:
        command = Command(command_id or self._controller.new_id(), self.id, body)
        return await self._controller.command(command)

    def pause(self, *points: GatePoint) -> None:
        """Shuts these gates of the run (all if none is named); memory of the process that drives it, never a fact (RC-83).

        Where no run lives, nothing is held: one that has ended, or that a process drives which this one does not see.

        Raises:
            OwnedElsewhere: it goes on in another process, or waits for one: pause it there, or stop it from anywhere.
        """
        if self._controller.is_elsewhere(self.id):
            raise OwnedElsewhere(self.id, "another process")
        self._controller.gate(self.id, shut=points or ("request", "call", "read"))

    def resume(self) -> None:
        """Opens all gates."""
        self._controller.gate(self.id, shut=())

    async def wait(self, *, timeout: float | None = None) -> RunResult:
        """Waits for the end; never raises for the outcome. Cancelling the waiter stops nothing.

        Raises:
            TimeoutError: it has not ended after `timeout` seconds, and goes on.
        """
        return await self._controller.wait_for_terminal(self.id, timeout=timeout)

    async def result(self, *, timeout: float | None = None) -> RunResult:
        """Waits for the end.

        Raises:
            OutcomeError: for every outcome but completed and truncated.
            TimeoutError: as of `wait`.
        """
        found = await self.wait(timeout=timeout)
        found.raise_for_outcome()
        return found
