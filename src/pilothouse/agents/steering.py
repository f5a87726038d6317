"""Messages for a run that is going on (AG-78, AG-84)."""

from __future__ import annotations

import asyncio
import logging

from ..commands import Command, Steer
from ..conversation.extras import RunExtras
from ..errors import (
    AgentBusy,
    PilothouseError,
)
from ..events import InputReturned, Outcome
from ..messages import InputPart, Message
from ..runs.controller import random_id
from .driving import Driving
from .following import Followed
from .operation import Operation
from .surface import Attempt
from .telling import content_of

logger = logging.getLogger("pilothouse.agents")


class Steering(Driving):
    """The layer that steers."""

    def _steer(self, parts: tuple[InputPart, ...], message_id: str, key: str) -> Operation:
        """A message for the live run (AG-78, AG-84)."""
        follow = self._follow
        if follow is None or self._controller.reply is None:
            raise AgentBusy("steer", "the run is not registered yet")
        attempt = Attempt(follow.run_id, Operation(asyncio.get_running_loop(), follow.run_id), "", message_id)
        with self._batch():
            self._display.add_user(message_id, content_of(parts), sent=False, waits=True)
        command = Command(f"steer:{key}"[:190], follow.run_id, Steer(Message(message_id, "user", parts)))
        follow.steers[command.id] = (attempt, parts)
        self._spawn(self._send_steer(follow, command), "steer")
        return attempt.op

    async def _send_steer(self, follow: Followed, command: Command) -> None:
        try:
            ack = await self._controller.runs.command(command)
        except PilothouseError as error:
            self._steer_back(follow, command.id, error)
            return
        if ack.state in ("rejected", "unsupported"):
            self._steer_back(follow, command.id, None)

    def _returned(self, follow: Followed, fact: InputReturned) -> None:
        if fact.command_id in follow.steers and fact.reason == "run_ended":
            self._steer_back(follow, fact.command_id, None)

    def _steer_back(self, follow: Followed, command_id: str, error: BaseException | None) -> None:
        """The run did not take it: it becomes an ordinary submission, unless the user stopped the run."""
        found = follow.steers.pop(command_id, None)
        if found is None:
            return
        attempt, parts = found
        stopped = follow.stopped or follow.telling.state.stop is not None
        if error is not None or stopped:
            with self._batch():
                self._display.remove(attempt.message_id)
            if error is not None:
                attempt.op.refuse(error)
            else:
                self._settle(attempt, "aborted")
            return
        self._controller.withdraw_undelivered(attempt.message_id)
        self._spawn(self._steer_again(follow, attempt, parts), "steer-again")

    async def _steer_again(self, follow: Followed, attempt: Attempt, parts: tuple[InputPart, ...]) -> None:
        await self._run_left(follow)
        self._controller.withdraw_undelivered(attempt.message_id)
        if self._closed or self._attempt is not None:
            with self._batch():
                self._display.remove(attempt.message_id)
            attempt.op.refuse(AgentBusy("submit", "another run began first"))
            return
        extras = RunExtras(message_id=attempt.message_id, client_tools=self.client_tools.catalog)
        with self._batch():
            self._display.remove(attempt.message_id)
        op = self._begin(
            random_id(),
            lambda name: self._controller.send(parts, id=name, extras=extras),
            parts,
            attempt.message_id,
        )
        attempt.op.run_id = op.run_id
        try:
            self._settle(attempt, await op)
        except Exception as error:  # noqa: BLE001
            attempt.op.refuse(error)

    def _free_steers(self, follow: Followed, outcome: Outcome | None) -> None:
        """Steers that the run took settle with it."""
        for attempt, _ in follow.steers.values():
            self._settle(attempt, self._word(outcome))
        follow.steers.clear()
