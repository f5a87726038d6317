"""Submissions of a remote agent: sent now, behind the run in flight, in its place, or into it (AG-78)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import final

import msgspec

from ..agent_errors import AgentError, UnsupportedOption
from ..agents.given import WENT_ON, Submission
from ..agents.operation import Operation
from ..agents.surface import Attempt, Surface
from ..errors import AgentBusy
from ..messages import JSON, InputPart, Message
from ..projection import WhenBusy
from .attempt import Sending, content_of
from .control import RunControlClient
from .running import Runner
from .stopping import Stopper
from .tools import RemoteTools

logger = logging.getLogger("pilothouse.remote")


@final
class Sender:
    """Sends what is no answer."""

    def __init__(
        self,
        surface: Surface,
        client_tools: RemoteTools,
        runner: Runner,
        stopper: Stopper,
        *,
        control: RunControlClient | None,
        new_id: Callable[[], str],
    ) -> None:
        self._surface = surface
        self._display = surface.display
        self._tools = client_tools
        self._runner = runner
        self._stopper = stopper
        self._control = control
        self._new_id = new_id

    def send(self, given: Submission) -> Operation:
        """Sends it, or does what it wants done while a run is in flight."""
        if not self._surface.hydrated:
            raise AgentBusy("submit", "the agent is not opened: use `async with agent`")
        self._surface.book.check_open("submit")
        busy, parts, when_busy = self._surface.attempt, given.parts, given.when_busy
        run_id = given.key or self._new_id()
        if busy is not None:
            if when_busy == "steer" and self._control is not None and parts is not None:
                return self._steer(self._control, busy, parts, run_id)
            if when_busy == "steer":
                raise UnsupportedOption(f"when_busy={when_busy!r}", self._surface.name)
            if when_busy == "raise":
                self._surface.check_free("submit")
            if when_busy == "drop":
                return Operation.settled("nothing")
        if given.cancelled:
            return Operation.settled("aborted")
        attempt = Sending(run_id, self._new_id() if parts is not None else "", patch=given.patch)
        if busy is None:
            self._start(attempt, parts)
        elif when_busy == "queue":
            self._enqueue(attempt, parts)
        else:
            rolled = busy if when_busy == "rollback" else None
            self._stopper.supersede(busy, told=rolled is not None)
            self._start(attempt, parts, rolled=rolled, props=self._order(when_busy))
        return attempt.op

    def _start(
        self,
        attempt: Sending,
        parts: tuple[InputPart, ...] | None,
        *,
        rolled: Attempt | None = None,
        props: dict[str, JSON] | None = None,
        queued: bool = False,
    ) -> None:
        """Begins it; `rolled`: in the place of this one."""
        with self._surface.batch():
            if rolled is not None:
                self._display.cut(self._place_behind(rolled))
            self._runner.captured = attempt if parts is not None or attempt.patch is not None else None
            self._tools.settle_all(WENT_ON)
            if queued and attempt.message_id:
                self._display.release(attempt.message_id)
            elif attempt.message_id:
                self._display.add_user(attempt.message_id, content_of(parts))
            self._runner.begin(attempt, patch=attempt.patch, props=props)

    def _enqueue(self, attempt: Sending, parts: tuple[InputPart, ...] | None) -> None:
        if attempt.message_id:
            with self._surface.batch():
                self._display.add_user(attempt.message_id, content_of(parts), sent=False, waits=True)
        self._runner.enqueue(attempt, lambda: self._start(attempt, parts, queued=True))

    def _place_behind(self, attempt: Attempt) -> int:
        """How many messages stand in front of what an attempt began with."""
        assert isinstance(attempt, Sending)
        ids = [message.id for message in self._display.messages]
        return ids.index(attempt.behind) + 1 if attempt.behind in ids else 0

    def _order(self, when_busy: WhenBusy) -> dict[str, JSON]:
        """What our server is to do with the run that gives way; another one reads it from the list of messages."""
        return {} if self._control is None else {"pilothouse": {"when_busy": when_busy}}

    # Steering a run of a server of ours (AG-84)

    def _steer(
        self, control: RunControlClient, busy: Attempt, parts: tuple[InputPart, ...], key: str
    ) -> Operation:
        assert isinstance(busy, Sending)
        steer = Sending(busy.run_id, self._new_id())
        with self._surface.batch():
            self._display.add_user(steer.message_id, content_of(parts), sent=False, waits=True)
        self._surface.tasks.spawn(self._send_steer(control, busy, steer, parts, key), "steer")
        return steer.op

    async def _send_steer(
        self,
        control: RunControlClient,
        busy: Sending,
        steer: Sending,
        parts: tuple[InputPart, ...],
        key: str,
    ) -> None:
        over = asyncio.Event()
        busy.op.on_done(over.set)
        message = msgspec.to_builtins(Message(steer.message_id, "user", parts))
        try:
            await control.command(busy.run_id, f"steer:{key}"[:190], "steer", message=message)
        except AgentError as error:
            logger.info("run %s did not take a message: %s", busy.run_id, error)
        await over.wait()
        if self._display.waits(steer.message_id) and not self._surface.tasks.closed:
            await self._steer_again(busy, steer, parts)
        else:
            steer.op.settle(busy.outcome)

    async def _steer_again(self, busy: Sending, steer: Sending, parts: tuple[InputPart, ...]) -> None:
        """The run had no more use for it: it is submitted as it is, unless the run was stopped."""
        with self._surface.batch():
            self._display.remove(steer.message_id)
        if busy.outcome == "aborted" or self._surface.book.phase != "none":
            steer.op.settle("aborted")
            return
        op = self.send(Submission(parts=parts, when_busy="queue"))
        steer.op.run_id = op.run_id
        steer.op.settle(await op)


__all__ = ["Sender"]
