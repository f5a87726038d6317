"""Getting one response of the model: requests, what is told of them, and the one retry there is (LP-11 … LP-21)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias, final

import msgspec
from msgspec import Struct

from ..cancel import ENDING
from ..contracts import RunPort
from ..core.assembly import Assembly
from ..core.window import message_tokens
from ..events import (
    DeltaBody,
    MessageAdded,
    ModelAttemptEnded,
    Noted,
    Outcome,
    ResponseStream,
    TextTold,
)
from ..messages import Message, Model, StopReason, Text, ToolCall, Usage
from ..responses import ErrorInfo, ProviderEvent, ResponseStarted, StreamEnd, TextDelta
from .reading import Gate, Silence
from .recorder import Stopped
from .requesting import Prepared, Requests
from .retry import hint_of, may_retry
from .stream import Response, supervise
from .waiting import sleep
from .work import Work

Say: TypeAlias = Callable[[str], None]
"""Takes the pieces of one text."""

logger: Final = logging.getLogger("pilothouse.loop")

ANSWERS: Final = frozenset[StopReason](
    {"complete", "tool_calls", "length", "content_filter", "refusal", "pause_turn"}
)
"""Ends that give a message to the transcript; the others keep what came as a partial (LP-14)."""


class Answer(Struct, frozen=True):
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

    def __init__(self, work: Work, requests: Requests) -> None:
        self._work = work
        self._requests = requests
        self._failures = 0
        self._blanks = 0
        self._healed = False
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
            if work.port.paused:
                await work.recorder.write()  # what is finished is shown while nothing goes on (AC-55)
                with work.time.idle():
                    await work.port.gate("request")
            work.check_stop()
            prepared = await self._requests.prepare()
            if not isinstance(prepared, Prepared):
                return Answer(StreamEnd("cancelled"), outcome=prepared)
            await work.recorder.write(*prepared.facts)
            assembly = Assembly(prepared.message_id, tag=prepared.provider.tag, taken=work.call_ids)
            silence = self._silence()
            async with self._response(prepared, silence) as response:
                await response.each(_Teller(assembly, work.port).consume)
            if self._first_due is not None:
                self._first_due = silence.first_due  # a pause has moved it
            if fault := assembly.check_usage():
                logger.warning("fault of provider %s: %s", prepared.provider.tag, fault)
            work.spend(assembly.usage)
            answer = await self._judged(assembly, prepared)
            if answer is not None:
                return answer

    async def _judged(self, assembly: Assembly, prepared: Prepared) -> Answer | None:
        """What an attempt comes to; None if the request is to be made again."""
        work = self._work
        end, message = _set_right(assembly, work.model)
        if end.error is not None:
            assembly.end = end = msgspec.structs.replace(end, error=self._redacted(end.error))
        usage = assembly.usage
        said = 0 if usage is not None else message_tokens(message)
        work.spending.settle(work.model, usage, prepared.estimate, said)
        if end.reason == "cancelled" or work.scope.cancelled:  # LP-42: a stop wins over what became ready
            word = "interrupted" if work.shut_down else "cancelled"
            work.recorder.note(self._ended(assembly, word, why=work.scope.reason))
            raise Stopped
        if end.reason not in ANSWERS:
            return await self._failed(assembly, end, prepared)
        if self._ask_again(end, message):
            work.recorder.note(self._ended(assembly, "discarded", why="empty"))
            return None
        work.meter.accept(message, work.model, usage)
        work.relieved = False
        work.notes.clear()  # told: the payload that was answered had them
        work.recorder.note(self._ended(assembly, "answered"), MessageAdded(message, work.turn))
        return Answer(end, message)

    # One attempt

    def _response(self, prepared: Prepared, silence: Silence) -> Response:
        work, port = self._work, self._work.port
        return supervise(
            prepared.provider,
            prepared.request,
            scope=work.scope,
            clock=work.clock,
            silence=silence,
            gate=Gate(port.paused, partial(port.gate, "read"), getattr(port, "on_gate", None)),
        )

    def _redacted(self, error: ErrorInfo) -> ErrorInfo:
        """What of an error may be recorded (LP-50); a redactor that fails hides everything."""
        redactor = self._work.plan.config.redactor
        try:
            return msgspec.structs.replace(
                error, message=redactor.text(error.message), native=redactor.json(error.native)
            )
        except ENDING:
            raise
        except BaseException:
            logger.exception("the redactor failed: an error is recorded without its words")
            return msgspec.structs.replace(error, message="", native=None)

    def _silence(self) -> Silence:
        """The limits on the provider's silence; where there is none, that of the run is the last net (§3.9)."""
        work = self._work
        net = work.plan.config.run_idle_timeout or None
        first, idle = self._first_due, work.plan.stream_idle_timeout
        return Silence(
            first if first is not None or net is None else work.clock.monotonic() + net,
            idle if idle is not None else net,
            "send_timeout" if first is not None else "stalled",
            "idle_timeout" if idle is not None else "stalled",
        )

    def _ended(
        self, assembly: Assembly, end: str, *, why: str = "", retry_after_ms: int | None = None
    ) -> ModelAttemptEnded:
        work = self._work
        return ModelAttemptEnded(
            work.turn,
            work.attempt,
            end,  # type: ignore[arg-type]
            why or (end == "answered" and assembly.end is not None and assembly.end.raw_reason) or "",
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

    async def _failed(self, assembly: Assembly, end: StreamEnd, prepared: Prepared) -> Answer | None:
        """Records a failure; waits and returns None if the request is to be made again."""
        work = self._work
        if not assembly.visible and await self._mended(assembly, end, prepared):
            return None
        word = "interrupted" if end.reason == "unknown" else "failed"
        why = end.cause or ""
        self._failures += 1
        policy = work.plan.config.retry
        if assembly.visible or not may_retry(end, self._failures, policy.attempts):
            work.recorder.note(self._ended(assembly, word, why=why, retry_after_ms=_wish(end)))
            return Answer(end, retry_after_ms=_wish(end))
        hint = hint_of(end.error)
        delay = policy.delay(self._failures) if hint is None else hint
        delay_ms = round(delay * 1000)
        work.recorder.note(self._ended(assembly, word, why=why, retry_after_ms=delay_ms))
        too_long = hint is not None and hint > policy.max_delay
        if too_long or not self._fits(delay):
            return Answer(end, retry_after_ms=delay_ms)
        await work.recorder.write()
        await sleep(delay, clock=work.clock, scope=work.scope)
        return None

    async def _mended(self, assembly: Assembly, end: StreamEnd, prepared: Prepared) -> bool:
        """Whether the request can be made acceptable: a smaller context (LP-13), a payload repaired anew (LP-18)."""
        error = end.error
        if error is None:
            return False
        if error.kind == "context_overflow":
            discarded = self._ended(assembly, "discarded", why="overflow")
            return await self._requests.relieve("provider", prepared.estimate, discarded)
        if error.kind == "invalid_request" and error.code == "tool_pairing" and not self._healed:
            self._healed = True
            self._requests.heal()
            discarded = self._ended(assembly, "discarded", why="pairing")
            self._work.recorder.note(discarded, Noted("loop/pairing", {"healed": True}))
            return True
        return False

    def _fits(self, delay: float) -> bool:
        """Whether a wait ends before the run's deadlines and the time for sending (LP-20, LP-51)."""
        work = self._work
        if self._first_due is not None and work.clock.monotonic() + delay >= self._first_due:
            return False
        left = work.time.left()
        if left is not None and delay >= left:
            return False
        deadline = work.scope.deadline_ms
        return deadline is None or work.clock.time_ms() + delay * 1000 < deadline


def is_empty(message: Message) -> bool:
    """Whether a message says nothing: no call and no character that is not blank; reasoning alone is nothing."""
    for part in message.parts:
        kind = type(part)
        if kind is ToolCall or (kind is Text and part.text.strip()):  # type: ignore[union-attr]
            return False
    return True


class _Teller:
    """What is done with each event of a response. Nearly all are pieces of one text: that is opened once, on both sides."""

    __slots__ = ("_assembly", "_block", "_flow", "_grow", "_say", "_tell")

    def __init__(self, assembly: Assembly, port: RunPort) -> None:
        self._assembly = assembly
        self._tell = port.tell
        self._flow: Callable[[str, int], Say] = getattr(port, "flow", None) or partial(_flow, port.tell, {})
        self._block: object = _unopened
        self._grow: Say = _unopened
        self._say: Say = _unopened

    def consume(self, event: ProviderEvent) -> None:
        assembly = self._assembly
        if type(event) is TextDelta:
            if text := event.text:
                if event.block != self._block:
                    self._block = block = event.block
                    self._grow, self._say = assembly.flowing(block), self._flow(assembly.message_id, block)
                self._say(text)  # first: what is no text is refused there, and no part of the message
                self._grow(text)
            return
        told = assembly.feed(event)
        if told is not None:
            self._tell(told)
        elif type(event) is ResponseStarted and assembly.started is event:
            self._tell(ResponseStream(assembly.message_id, event.response_id, event.model))


def _flow(tell: Callable[[DeltaBody], object], ends: dict[int, int], message_id: str, index: int) -> Say:
    """For a port that knows no shorter way; `ends` has how long each text of the message is, since they may take turns."""

    def say(text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"a piece of text is {type(text).__name__}")
        offset = ends.get(index, 0)
        tell(TextTold(message_id, index, text, offset))
        ends[index] = offset + len(text)

    return say


def _unopened(_: str) -> None:
    raise AssertionError("no text is open")


def _set_right(assembly: Assembly, model: Model) -> tuple[StreamEnd, Message]:
    """The end as the loop sees it, and the message: calls decide, not the wording of the finish (LP-4, LP-17)."""
    end, message = assembly.end, assembly.message()
    assert end is not None
    if end.reason == "length" and _was_full(assembly.usage, model):
        info = ErrorInfo("context_overflow", "the prompt left no room for an answer")
        assembly.end = end = StreamEnd("error", end.raw_reason, info)
    if end.reason == "complete" and message.tool_calls:
        end = msgspec.structs.replace(end, reason="tool_calls")
        message = msgspec.structs.replace(message, stop_reason="tool_calls")
    elif end.reason == "tool_calls" and not message.tool_calls:
        info = ErrorInfo("protocol", "tool calls were announced and none came")
        assembly.end = end = StreamEnd("error", end.raw_reason, info)
    return end, message


def _was_full(usage: Usage | None, model: Model) -> bool:
    """A cut answer without a token, from a prompt that fills the window: an overflow that calls itself a limit (PV-9)."""
    if usage is None or usage.input is None or usage.output != 0 or not model.context_window:
        return False
    return usage.input >= 0.99 * model.context_window


def _wish(end: StreamEnd) -> int | None:
    return None if end.error is None else end.error.retry_after_ms
