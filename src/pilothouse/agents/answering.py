"""Answers to a run that waits: of people, and of tools that run at the client (AG-141, AG-150)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ..commands import TERMINATE, Answer, Command, ExternalResult
from ..contracts import CancelToken
from ..core.interrupts import Step
from ..errors import (
    PilothouseError,
    UsageError,
)
from ..loop.jsonschema import problems_of
from ..messages import JSON, Text
from ..runs.controller import random_id
from .answers import interrupt_of, resolution_of
from .following import Followed, Following
from .given import WENT_ON
from .operation import Operation
from .surface import Attempt

logger = logging.getLogger("pilothouse.agents")


class Answering(Following):
    """The layer that gives answers."""

    def _resume(self, value: object, generation: int | None, cancel: CancelToken | None) -> Operation:
        """Answers the open batch: each item is an answer command of the run (AG-141)."""
        book, follow = self._book, self._follow
        now = datetime.fromtimestamp(self._clock.time_ms() / 1000, UTC)
        answers = book.check(value, now=now, generation=generation, problems_of=problems_of)
        assert follow is not None
        requests = follow.telling.state.requests
        commands = []
        attempt_id = random_id()
        for answer in answers:
            resolution = resolution_of(requests[answer.id], answer)
            commands.append(
                Command(f"{attempt_id[:16]}:{answer.id}"[:190], follow.run_id, Answer(answer.id, resolution))
            )
        if cancel is not None and cancel.is_set():
            op = Operation(asyncio.get_running_loop())
            op.settle("aborted")
            return op
        book.step(Step.CLAIM)
        return self._answer(follow, commands)

    def _answer(self, follow: Followed, commands: Sequence[Command]) -> Operation:
        """Goes on with a waiting run."""
        loop = asyncio.get_running_loop()
        attempt = Attempt(follow.run_id, Operation(loop, follow.run_id), self._generation(follow.run_id))
        follow.attempt = attempt
        with self._batch():
            if self._book.phase == "claimed":
                self._book.step(Step.SENT)
            self._admit(attempt, continues=True)
        attempt.task = self._spawn(self._command(follow, attempt, commands), "answer")
        return attempt.op

    async def _command(self, follow: Followed, attempt: Attempt, commands: Sequence[Command]) -> None:
        """Sends answers; one that is refused leaves its request open (RC-41)."""
        refused: BaseException | None = None
        for command in commands:
            try:
                ack = await self._controller.runs.command(command)
            except PilothouseError as error:
                refused = error
            else:
                if ack.state in ("rejected", "unsupported"):
                    refused = UsageError(f"the answer was refused: {ack.message or ack.code}")
            if refused is not None:
                break
        if refused is None or not self._current(attempt) or follow.attempt is not attempt:
            return
        follow.attempt = None
        book = self._book
        requests = [item for item in follow.telling.state.requests.values() if item.kind != "external"]
        with self._batch():
            if book.phase == "resuming":
                book.step(Step.UNSENT)
            if requests:
                book.restore([interrupt_of(request) for request in requests], follow.run_id)
            self._end(attempt, "paused")
        attempt.op.refuse(refused)

    def answer_external(self, outcomes: Mapping[str, ExternalResult], *, terminate: bool) -> Operation:
        """Gives results of client tools to the run that waits for them."""
        follow = self._follow
        assert follow is not None
        extensions: dict[str, JSON] = {TERMINATE: True} if terminate else {}
        commands = [
            Command(f"external:{name}"[:190], follow.run_id, Answer(name, result), extensions)
            for name, result in outcomes.items()
        ]
        return self._answer(follow, commands)

    async def _went_on(self) -> None:
        """Open client tool calls get a result before the conversation goes on (AG-79, AG-148)."""
        follow = self._follow
        requests, self.client_tools.asked = self.client_tools.asked, ()
        if follow is None:
            return
        for request in requests:
            result = ExternalResult((Text(WENT_ON),), is_error=True)
            command = Command(
                f"external:{request.id}"[:190], follow.run_id, Answer(request.id, result), {TERMINATE: True}
            )
            try:
                await self._controller.runs.command(command)
            except PilothouseError as error:
                logger.warning("open call %s was not settled: %s", request.call_id, error)
        await self._run_left(follow)

    async def _run_left(self, follow: Followed) -> None:
        """Waits until a run has its end, here and for the conversation."""
        await follow.over.wait()
        reply = self._controller.reply
        if reply is not None and reply.id == follow.run_id:
            await reply.wait()
