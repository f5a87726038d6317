"""Messages for a run that is going on (AG-78, AG-84)."""

from __future__ import annotations

import asyncio
from typing import final

from ..commands import Command
from ..commands import Steer as SteerBody
from ..conversation.controller import AgentController
from ..conversation.extras import RunExtras
from ..errors import AgentBusy, PilothouseError
from ..messages import InputPart, Message
from ..runs.controller import random_id
from .following import Followed, Follower, Steer
from .localtools import LocalTools
from .operation import Operation
from .sending import Sender
from .surface import Surface
from .telling import content_of


@final
class Steerer:
    """Gives messages to the run that is shown; one that it did not take is sent once it has ended."""

    def __init__(
        self,
        controller: AgentController,
        surface: Surface,
        client_tools: LocalTools,
        follower: Follower,
        sender: Sender,
    ) -> None:
        self._controller = controller
        self._surface = surface
        self._tools = client_tools
        self._follower = follower
        self._sender = sender

    def steer(self, parts: tuple[InputPart, ...], key: str) -> Operation:
        """A message for the live run.

        Raises:
            AgentBusy: the run is not registered yet.
        """
        follow = self._follower.shown
        if follow is None or self._controller.reply is None:
            raise AgentBusy("steer", "the run is not registered yet")
        op = Operation(asyncio.get_running_loop(), follow.run_id)
        message_id = random_id()
        with self._surface.batch():
            self._surface.display.add_user(message_id, content_of(parts), sent=False, waits=True)
        command = Command(f"steer:{key}"[:190], follow.run_id, SteerBody(Message(message_id, "user", parts)))
        follow.steers[command.id] = Steer(op.settle, lambda: self._returned(follow, op, message_id, parts))
        self._surface.tasks.spawn(self._command(follow, op, message_id, command), "steer")
        return op

    async def _command(self, follow: Followed, op: Operation, message_id: str, command: Command) -> None:
        refused: PilothouseError | None = None
        try:
            ack = await self._controller.runs.command(command)
            if ack.state not in ("rejected", "unsupported"):
                return
        except PilothouseError as error:
            refused = error
        steer = follow.steers.pop(command.id, None)
        if steer is None:
            return
        if refused is None:
            steer.returned()
        else:
            self._hide(message_id)
            op.refuse(refused)

    def _hide(self, message_id: str) -> None:
        with self._surface.batch():
            self._surface.display.remove(message_id)

    def _returned(
        self, follow: Followed, op: Operation, message_id: str, parts: tuple[InputPart, ...]
    ) -> None:
        """The run did not take it: it becomes an ordinary submission, unless the user stopped the run."""
        if follow.stopped or follow.telling.state.stop is not None:
            self._hide(message_id)
            op.settle("aborted")
            return
        self._controller.withdraw_undelivered(message_id)
        self._surface.tasks.spawn(self._send(follow, op, message_id, parts), "steer-again")

    async def _send(
        self, follow: Followed, op: Operation, message_id: str, parts: tuple[InputPart, ...]
    ) -> None:
        await self._follower.end_of(follow)
        self._controller.withdraw_undelivered(message_id)
        self._hide(message_id)
        if self._surface.tasks.closed or self._surface.attempt is not None:
            op.refuse(AgentBusy("submit", "another run began first"))
            return
        extras = RunExtras(message_id=message_id, client_tools=self._tools.catalog)
        sent = self._sender.begin(
            random_id(),
            lambda name: self._controller.send(parts, id=name, extras=extras),
            parts,
            message_id,
        )
        op.run_id = sent.run_id
        try:
            op.settle(await sent)
        except Exception as error:  # noqa: BLE001 - goes to whoever awaits the steer
            op.refuse(error)


__all__ = ["Steerer"]
