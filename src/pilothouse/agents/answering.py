"""Answers to a run that waits: of people, and of tools that run at the client (AG-141, AG-150)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import final

from ..commands import TERMINATE, Answer, Command, ExternalResult, Request, Resolution
from ..conversation.controller import AgentController
from ..core.interrupts import Step
from ..errors import PilothouseError, UsageError
from ..messages import JSON, Text
from ..runs.controller import random_id
from .answers import interrupt_of, resolution_of
from .following import Followed, Follower
from .given import WENT_ON, Submission
from .operation import Operation
from .surface import Attempt, Surface

logger = logging.getLogger("pilothouse.agents")


@final
class Answerer:
    """Gives answers to the run that is shown, as commands of it."""

    def __init__(self, controller: AgentController, surface: Surface, follower: Follower) -> None:
        self._controller = controller
        self._surface = surface
        self._follower = follower

    def resume(self, given: Submission) -> Operation:
        """Answers the open batch: each item is an answer command of the run (AG-141)."""
        book, follow = self._surface.book, self._follower.shown
        answers = given.answers_to(self._surface)
        assert follow is not None
        requests = follow.telling.state.requests
        prefix = random_id()[:16]
        commands = [
            _answer(
                follow.run_id, f"{prefix}:{answer.id}", answer.id, resolution_of(requests[answer.id], answer)
            )
            for answer in answers
        ]
        if given.cancelled:
            return Operation.settled("aborted")
        book.step(Step.CLAIM)
        return self._go_on(follow, commands)

    def hand_over(self, outcomes: Mapping[str, ExternalResult], *, terminate: bool) -> Operation:
        """Gives results of client tools, by request id, to the run that waits for them."""
        follow = self._follower.shown
        assert follow is not None
        commands = [
            _answer(follow.run_id, f"external:{name}", name, result, terminate=terminate)
            for name, result in outcomes.items()
        ]
        return self._go_on(follow, commands)

    def _go_on(self, follow: Followed, commands: Sequence[Command]) -> Operation:
        """Goes on with a waiting run."""
        attempt = follow.attempt = Attempt(follow.run_id)
        with self._surface.batch():
            self._surface.book.step_if(Step.SENT)
            self._surface.admit(attempt, continues=True)
        attempt.task = self._surface.tasks.spawn(self._command(follow, attempt, commands), "answer")
        return attempt.op

    async def _command(self, follow: Followed, attempt: Attempt, commands: Sequence[Command]) -> None:
        """Sends answers; one that is refused leaves its request open (RC-41)."""
        refused = await self._refusal(commands)
        if refused is None or not self._surface.current(attempt) or follow.attempt is not attempt:
            return
        follow.attempt = None
        book = self._surface.book
        requests = [item for item in follow.telling.state.requests.values() if item.kind != "external"]
        with self._surface.batch():
            if book.phase == "resuming":
                book.step(Step.UNSENT)
            if requests:
                book.restore([interrupt_of(request) for request in requests], follow.run_id)
            self._surface.end(attempt, "paused")
        attempt.op.refuse(refused)

    async def _refusal(self, commands: Sequence[Command]) -> PilothouseError | None:
        """Sends commands, up to the first that is refused."""
        for command in commands:
            try:
                ack = await self._controller.runs.command(command)
            except PilothouseError as error:
                return error
            if ack.state in ("rejected", "unsupported"):
                return UsageError(f"the answer was refused: {ack.message or ack.code}")
        return None

    async def went_on(self, requests: Sequence[Request]) -> None:
        """Open client tool calls get a result before the conversation goes on (AG-79, AG-148)."""
        follow = self._follower.shown
        if follow is None:
            return
        for request in requests:
            result, name = ExternalResult((Text(WENT_ON),), is_error=True), request.id
            command = _answer(follow.run_id, f"external:{name}", name, result, terminate=True)
            try:
                await self._controller.runs.command(command)
            except PilothouseError as error:
                logger.warning("open call %s was not settled: %s", request.call_id, error)
        await self._follower.end_of(follow)


def _answer(
    run_id: str, command_id: str, request_id: str, resolution: Resolution, *, terminate: bool = False
) -> Command:
    extensions: dict[str, JSON] = {TERMINATE: True} if terminate else {}
    return Command(command_id[:190], run_id, Answer(request_id, resolution), extensions)


__all__ = ["Answerer"]
