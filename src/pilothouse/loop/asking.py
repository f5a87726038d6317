"""Getting one response of the model: requests, what is told of them, and the one retry there is (LP-11 … LP-21)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, final

import msgspec

from ..contracts import Provider
from ..core.assembly import Assembly
from ..events import (
    Failed,
    Incomplete,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    Outcome,
    ResponseStream,
)
from ..messages import Message, StopReason
from ..responses import ErrorInfo, ModelRequest, ProviderEvent, ResponseStarted, StreamEnd
from .book import Stopped
from .hooks import HookFailed
from .payload import Payloads
from .retry import hint_of, may_retry
from .stream import Gate, Silence, supervise
from .waiting import sleep
from .work import Work

_encode: Final = msgspec.json.Encoder(order="sorted").encode

ANSWERS: Final = frozenset[StopReason](
    {"complete", "tool_calls", "length", "content_filter", "refusal", "pause_turn"}
)
"""Ends that give a message to the transcript; the others keep what came as a partial (LP-14)."""


class Answer(NamedTuple):
    """A response that was accepted, or the last one that was not.

    `message` is None where none was given to the transcript; `retry_after_ms` is set where waiting would help but
    does not fit; `outcome` where the loop itself said no more.
    """

    end: StreamEnd
    message: Message | None = None
    retry_after_ms: int | None = None
    outcome: Outcome | None = None


@final
class Asking:
    """Asks until a response is accepted or nothing more may be tried. One for each turn's response."""

    def __init__(self, work: Work, payloads: Payloads) -> None:
        self._work = work
        self._payloads = payloads
        self._failures = 0
        self._blanks = 0
        limit = work.plan.send_timeout
        # LP-51: over all attempts and back-offs; silence inside a response is limited by itself.
        self._first_due = None if limit is None else work.clock.monotonic() + limit

    async def answer(self) -> Answer:
        """The response.

        Raises:
            Stopped: the run is being stopped; the attempt under way, if any, is recorded as cancelled.
        """
        work = self._work
        while True:
            await work.port.gate("request")
            work.check_stop()
            if work.requests >= work.plan.limits.requests:
                return Answer(StreamEnd("cancelled"), outcome=Incomplete("limit", "requests"))
            provider = work.plan.providers.of(work.model)
            try:
                messages = await self._payloads.make(provider)
            except HookFailed as failure:
                return Answer(StreamEnd("cancelled"), outcome=Failed("hook", message=str(failure)))
            work.check_stop()
            assembly = await self._attempt(provider, messages)
            end, message = _set_right(assembly)
            if end.reason in ANSWERS and not work.scope.cancelled:
                if not self._ask_again(end, message):
                    work.book.note(self._ended(assembly, "answered"), MessageAdded(message, work.turn))
                    return Answer(end, message)
                work.book.note(self._ended(assembly, "discarded", why="empty"))
            elif (
                end.reason == "cancelled" or work.scope.cancelled
            ):  # LP-42: a stop wins over what became ready
                word = "interrupted" if work.shut_down else "cancelled"
                work.book.note(self._ended(assembly, word, why=work.scope.reason))
                raise Stopped
            elif (answer := await self._failed(assembly, end)) is not None:
                return answer

    # One attempt

    async def _attempt(self, provider: Provider, messages: Sequence[Message]) -> Assembly:
        work = self._work
        work.attempt += 1
        work.requests += 1
        message_id = f"{work.run_id}-{work.turn}-{work.attempt}"
        request = self._request(messages)
        await work.book.write(
            ModelRequested(
                work.turn, work.attempt, message_id, provider.tag, work.model.id, self._digest(request)
            )
        )
        assembly = Assembly(message_id, tag=provider.tag, taken=work.call_ids)
        silence = Silence(self._first_due, work.plan.stream_idle_timeout)
        gate = Gate(work.port.paused, lambda: work.port.gate("read"))
        response = supervise(
            provider, request, scope=work.scope, clock=work.clock, silence=silence, gate=gate
        )
        work.notes.clear()  # told once, whatever comes of the request
        async with response:
            await response.each(_teller(assembly, work.port.tell))
        if silence.first_due is not None:  # a pause has moved it
            self._first_due = silence.first_due
        work.spend(assembly.usage)
        return assembly

    def _request(self, messages: Sequence[Message]) -> ModelRequest:
        work = self._work
        return ModelRequest(
            work.model,
            messages,
            work.system_prompt,
            work.tools.specs,
            work.request_settings(),
            work.thread_id,
            work.attempt,
            work.scope.deadline_ms,
        )

    def _digest(self, request: ModelRequest) -> str:
        head = _encode((request.model, request.system_prompt, self._work.tools.digest, request.settings))
        return sha256(self._work.chain().encode() + head).hexdigest()

    def _ended(
        self, assembly: Assembly, end: str, *, why: str = "", retry_after_ms: int | None = None
    ) -> ModelAttemptEnded:
        work = self._work
        return ModelAttemptEnded(
            work.turn,
            work.attempt,
            end,  # type: ignore[arg-type]
            why,
            assembly.end.error if assembly.end is not None else None,
            assembly.usage,
            retry_after_ms,
            tuple([notice.name for notice in assembly.notices]),
        )

    # What comes of it

    def _ask_again(self, end: StreamEnd, message: Message) -> bool:
        """LP-16: a completion that says nothing is asked again, a bounded number of times."""
        if end.reason != "complete" or not is_empty(message):
            return False
        self._blanks += 1
        return self._blanks <= self._work.plan.config.max_empty_retries and not self._work.scope.cancelled

    async def _failed(self, assembly: Assembly, end: StreamEnd) -> Answer | None:
        """Records a failure; waits and returns None if the request is to be made again."""
        work = self._work
        word = "interrupted" if end.reason == "unknown" else "failed"
        why = end.cause or ""
        self._failures += 1
        policy = work.plan.config.retry
        if assembly.visible or not may_retry(end, self._failures, policy.attempts):
            work.book.note(self._ended(assembly, word, why=why, retry_after_ms=_wish(end)))
            return Answer(end, retry_after_ms=_wish(end))
        hint = hint_of(end.error)
        delay = policy.delay(self._failures) if hint is None else hint
        delay_ms = round(delay * 1000)
        work.book.note(self._ended(assembly, word, why=why, retry_after_ms=delay_ms))
        too_long = hint is not None and hint > policy.max_delay
        if too_long or not self._fits(delay):
            return Answer(end, retry_after_ms=delay_ms)
        await work.book.write()
        await sleep(delay, clock=work.clock, scope=work.scope)
        return None

    def _fits(self, delay: float) -> bool:
        """Whether a wait ends before the run's deadline and the time for sending (LP-20, LP-51)."""
        work = self._work
        if self._first_due is not None and work.clock.monotonic() + delay >= self._first_due:
            return False
        deadline = work.scope.deadline_ms
        return deadline is None or work.clock.time_ms() + delay * 1000 < deadline


def is_empty(message: Message) -> bool:
    """Whether a message says nothing: no call and no character that is not blank; reasoning alone is nothing."""
    return not message.tool_calls and not message.text.strip()


def _teller(assembly: Assembly, tell: Callable[..., object]) -> Callable[[ProviderEvent], None]:
    """What is done with each event of a response."""
    feed = assembly.feed

    def consume(event: ProviderEvent) -> None:
        told = feed(event)
        if told is not None:
            tell(told)
        elif type(event) is ResponseStarted and assembly.started is event:
            tell(ResponseStream(assembly.message_id, event.response_id, event.model))

    return consume


def _set_right(assembly: Assembly) -> tuple[StreamEnd, Message]:
    """The end as the loop sees it, and the message: calls decide, not the wording of the finish (LP-4, LP-17)."""
    end, message = assembly.end, assembly.message()
    assert end is not None
    if end.reason == "complete" and message.tool_calls:
        end = msgspec.structs.replace(end, reason="tool_calls")
        message = msgspec.structs.replace(message, stop_reason="tool_calls")
    elif end.reason == "tool_calls" and not message.tool_calls:
        info = ErrorInfo("protocol", "tool calls were announced and none came")
        assembly.end = end = StreamEnd("error", end.raw_reason, info)
    return end, message


def _wish(end: StreamEnd) -> int | None:
    return None if end.error is None else end.error.retry_after_ms
