"""The tool phase: the calls of one message, from their checks to their results (LP-27 … LP-37, LP-42 … LP-46).

All calls are checked before any starts (but see `batch_policy`). Then a call starts as soon as nothing holds it up; those
that may start together share the append of their intents, which is durable before any of them is entered. The run's
task waits for ends, answers, the stop and the time limits together, on one future. Every call gets exactly one result;
in the context they stand in call order, whatever the order in which they ended.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast, final

from msgspec.structs import replace

from ..core.calls import NOT_RUN_TEXT, REPEATABLE, result_message, settle, text_parts
from ..events import CallFinished, CallHeartbeat, Noted, RequestClosed
from ..messages import Message, ToolCall
from .admission import Admission
from .after import After
from .answer_router import AnswerRouter
from .asks import Asks
from .checking import Checker, Ready, Refusal
from .guards import REJECTIONS, Guards
from .item import Item
from .past import past_of
from .recorder import Entry, Stopped
from .running import Running
from .spill import Spill
from .stuck import StuckWatch
from .timers import Alarm
from .tool_host import ToolHost
from .waiting import Wakeup
from .work import Work
from .yielding import YieldWatch

if TYPE_CHECKING:
    from ..core.calls import CallState

logger: Final = logging.getLogger("pilothouse.loop")

SHIELD: Final = 5.0
"""Seconds that writing results may take after the run's task was cancelled from outside (LP-46)."""


@final
class Phase:
    """Works through the batches of one run, one after the other.

    Args:
        work: the run.
        tool_host: what tools share.
    """

    def __init__(self, work: Work, tool_host: ToolHost) -> None:
        self._work = work
        self._calls: Sequence[ToolCall] = ()
        self._tool_host = tool_host
        self._guards = Guards(work)
        self._checker = Checker(work)
        self._answers = AnswerRouter(work)
        self._wakeup = Wakeup()
        self._spill = Spill(work)
        self._asks = Asks(
            work, self._answers, self._checker, tool_host, self._spill, self._finish, self._wakeup.ring
        )
        self._after = After(work, self._checker)
        self._watch = YieldWatch(work.plan.config, work.port.commands, work.clock, self._yield)
        self._ready: list[Item] = []  # those that may start, in call order
        self._running: list[Running] = []
        self._elsewhere: list[Coroutine[Any, Any, None]] = []  # stops of what earlier attempts have begun
        self._alarm = Alarm(work.clock, self._next_due, self._wakeup.ring)
        self._admission = Admission(work, tool_host, self._asks, self._wakeup, self._refuse)
        # For all batches: what rings between two of them only lets the next one look around once more.
        self._take_backs = (
            work.scope.on_cancel(self._stopped),
            work.port.commands.on_arrival(self._arrived),
        )

    async def run(self, message: Message, *, steered: bool) -> None:
        """Gives every call of a message its result and adds the results to the context.

        Args:
            message: whose calls these are.
            steered: whether steering may still come into this run; else none is watched for.

        Raises:
            Stopped: the run is being stopped; what had started has its result, the rest is recorded as not run.
        """
        self._calls, self._checker.message = message.tool_calls, message
        if self._work.port.commands.peek("answer") is not None:
            self._wakeup.ring()  # received before this attachment, and never answered
        try:
            if steered:
                self._watch.start()
            await self._work_through()
        except asyncio.CancelledError:
            await self._wind_up()
            raise
        finally:
            for running in self._running:  # only where the run was lost in between
                running.ask("detached", 0.0)
                running.abandon()
            await self._watch.stop()
        self._work.check_stop()
        self._guards.batch_over(self._calls, self._work.finished)
        for call in self._calls:
            self._work.add(result_message(self._work.finished[call.call_id]))

    async def _work_through(self) -> None:
        try:
            await self._check_all()
        except Stopped:
            self._put_aside()
        while self._ready or self._running or self._asks.open:
            if self._work.scope.cancelled:
                self._stop()
            else:
                if self._heed_steering() and self._running:
                    await self._save()  # a person sees at once that nobody waits for the answer any more
                await self._start()
            if self._running or self._ready or self._asks.open:
                if self._asks.open:
                    await self._save()  # nothing is in flight but a person: what is known is durable
                self._alarm.look()
                if self._running:
                    await self._wakeup.wait()
                else:  # only for people, or for what is in use elsewhere
                    with self._work.time.idle():
                        await self._wakeup.wait()
                await self._collect()
        if self._elsewhere:
            await self._stop_elsewhere()

    # Before the start

    async def _check_all(self) -> None:
        """Preflight, call by call in source order."""
        self._admission.begin(self._calls)
        as_ready = self._work.plan.config.batch_policy == "as_ready"
        for index, call in enumerate(self._calls):
            if call.call_id in self._work.finished:
                continue
            await self._check(index, call)
            if as_ready:
                await self._asks.ask_all()
                await self._start()
        if self._asks.asks:
            await self._asks.ask_all()

    async def _check(self, index: int, call: ToolCall) -> None:
        known = self._work.past_calls.get(call.call_id)
        if known is not None and known.state == "awaiting":
            self._queue(await self._asks.take_up(Item(index, call), known))
            return
        past = None if known is None else await past_of(call, known, self._work.tools)
        if past is not None:
            self._work.recorder.note(*past.facts)
            if past.ready is not None:
                self._queue(Item(index, call, past.ready, past.attempt))
            elif past.end is not None:
                self._finish(past.end)
            else:
                assert past.seen is not None
                self._finish(await self._after.of_past(past.seen))
            return
        if (refused := self._guards.refusal(call)) is not None:
            breaker, text = refused
            self._refuse(call, Refusal("breaker", text), breaker)
            return
        found = await self._checker.check(call)
        if isinstance(found, Refusal):
            self._refuse(call, found)
            if found.reason in REJECTIONS:
                self._guards.rejected(call, found.text)
        else:
            self._queue(self._asks.consider(Item(index, call, found)))

    def _queue(self, item: Item | None) -> None:
        if item is not None:
            insort(self._ready, item, key=_by_index)

    def _refuse(self, call: ToolCall, refusal: Refusal, error: str | None = None) -> None:
        text = text_parts(refusal.text)
        self._finish(CallFinished(call.call_id, "refused", text, True, refusal.reason, error))

    def _finish(self, end: CallFinished, *before: Entry) -> None:
        self._work.recorder.note(*before, end)
        self._work.finished[end.call_id] = end

    def _put_aside(self) -> None:
        """Stopped between two checks: the calls that were not looked at are not run either."""
        seen = {item.call.call_id for item in [*self._ready, *self._asks.items]}
        for index, call in enumerate(self._calls):
            # What had started before is settled by the writer: it cannot be said to be not run.
            known = call.call_id in self._work.finished or call.call_id in self._work.past_calls
            if call.call_id not in seen and not known:
                self._ready.append(Item(index, call))

    # Start

    async def _start(self) -> None:
        """Starts everything that nothing holds up: intents first, durable, then the functions."""
        work = self._work
        chosen, self._ready = self._admission.choose(self._ready, self._running)
        if not chosen:
            await self._asks.settle(self._ready)
            return
        try:
            if work.port.paused:
                await work.recorder.write()  # what is finished is shown while nothing goes on (AC-55)
                with work.time.idle():
                    await work.port.gate("call")
            work.check_stop()
            facts: list[Entry] = []
            for item in chosen:
                facts += [*item.resolution(), self._admission.intent(item)]
            await work.recorder.write(*facts)
        except Stopped:
            self._admission.give_back(chosen)
            self._ready = [*chosen, *self._ready]
            return
        except BaseException:
            self._admission.give_back(chosen)
            self._ready = [*chosen, *self._ready]
            raise
        if work.scope.cancelled:  # stopped while the intents were written: none is entered, so none has run
            for item in chosen:
                self._tool_host.resources.give_back(item.frozen.resource)
                self._drop(item, item.attempt)
            return
        for item in chosen:
            self._running.append(self._admission.enter(item, yielding=self._watch.fired))
        if self._ready:
            await self._asks.settle(self._ready)

    # While they run

    def _next_due(self) -> float | None:
        times = [running.due for running in self._running if running.due is not None]
        if self._answers and (due := self._answers.due()) is not None:
            times.append(due)
        return min(times, default=None)

    async def _collect(self) -> None:
        """Takes answers, records what has ended, asks what is over its time, leaves what did not end in its grace."""
        if not self._work.scope.cancelled:
            await self._take_answers()
        now = self._work.clock.monotonic()
        before, self._running = self._running, []
        ended = [running for running in before if running.ended]
        self._running = [running for running in before if not running.ended and not self._over(running, now)]
        for running in ended:
            end = running.result()
            if self._is_left(running, end):
                continue
            if self._work.scope.cancelled and not running.entered:
                self._drop(Item(0, running.ready.call, running.ready, running.attempt), running.attempt)
                continue
            if running.stage is not None and end.outcome != "succeeded":
                self._note_stage(running)
                if running.retry:
                    self._again(running)
                    continue
            await self._settle(running, end)
        if self._work.recorder.pending and (self._running or self._asks.open):
            await self._save()  # else the last results go with the end of the turn

    def _over(self, running: Running, now: float) -> bool:
        """Does what is due by time; True if the call was left behind."""
        if running.watch is not None:
            self._supervise(running, running.watch, now)
        if running.over is None or now < running.over:
            return False
        if running.asked is None:
            running.ask("timeout", now + self._work.plan.config.cancel_grace)
            return False
        end = running.abandon()
        if self._is_left(running, end):
            return True
        self._note_stage(running)
        if running.retry and running.ready.resource is None:
            self._again(running)
        else:  # what it needs stays in use as long as it runs: there is nothing to try again with
            self._finish(end)
        return True

    def _is_left(self, running: Running, end: CallFinished) -> bool:
        """Whether a call that a shutdown cut is made again by a recovery, as after a crash, and so has no end yet."""
        if not self._work.shut_down or running.asked != "shutdown":
            return False
        return end.outcome == "cancelled" and running.ready.effect in REPEATABLE

    async def _settle(self, running: Running, end: CallFinished) -> None:
        """The end of a call becomes its result: hook, then small enough for the transcript."""
        if self._after.wants(running, end):
            end = await self._after.of(running, end)
        self._finish(await self._spill.fit(end, running.ready.tool))

    def _supervise(self, running: Running, watch: StuckWatch, now: float) -> None:
        """The stages of a call that takes too long (LP-48)."""
        config = self._work.plan.config.stuck_tool
        assert config is not None
        call_id = running.ready.call.call_id
        while (action := watch.take(now)) is not None:
            elapsed_ms = round((now - running.began) * 1000)
            if action == "heartbeat":
                self._work.port.tell(CallHeartbeat(call_id, elapsed_ms, running.attempt))
                continue
            stage = {"call": call_id, "stage": action, "elapsed_ms": elapsed_ms}
            if config.mode == "advisory":
                self._work.recorder.note(Noted("loop/stuck", {**stage, "advisory": True}))
            elif action == "yield":
                running.ask_to_yield("stuck")
                self._work.recorder.note(Noted("loop/stuck", stage))
            else:
                running.retry = action == "retry"
                running.stage = stage
                running.ask("stuck", now + config.grace)
                return

    def _note_stage(self, running: Running) -> None:
        if running.stage is not None:
            self._work.recorder.note(Noted("loop/stuck", running.stage))

    def _again(self, running: Running) -> None:
        """The same call once more, with the same key and the same arguments, whatever became of the first one's."""
        ready = running.ready
        with suppress(Exception):  # a type of the tool's own that does not take them now: then what there is
            ready = replace(ready, values=ready.tool.thaw(ready.arguments))
        self._queue(Item(self._index(running), ready.call, ready, running.attempt + 1))

    def _index(self, running: Running) -> int:
        return next(at for at, call in enumerate(self._calls) if call.call_id == running.ready.call.call_id)

    async def _take_answers(self) -> None:
        if not self._answers and self._work.port.commands.peek("answer") is None:
            return
        try:
            await self._answers.serve()
            self._answers.expire()
        except Stopped:
            return  # the next look sees the stop
        for item in self._asks.allowed():
            self._queue(item)

    async def _save(self) -> None:
        try:
            await self._work.recorder.write()
        except Stopped:
            return  # results are kept, and the next look sees the stop

    def _arrived(self, _command: object) -> None:
        self._wakeup.ring()
        self._watch.arrived()

    def close(self) -> None:
        """Ends its use; no cycle is left for the collector."""
        for take_back in self._take_backs:
            take_back()
        self._alarm.stop()  # left armed between batches: most never need it, and one timer serves them all
        del self._asks, self._watch, self._alarm, self._admission, self._take_backs

    def _yield(self) -> None:
        """Steering has arrived: whoever runs is asked to hand over, and the policy may want more (LP-25, LP-26)."""
        for running in self._running:
            running.ask_to_yield("steering")
        self._wakeup.ring()

    def _heed_steering(self) -> bool:
        """Does what the policy wants of calls (LP-25); True if it ended some."""
        policy = self._work.plan.config.steering_policy
        if policy == "boundary" or not self._watch.fired:
            return False
        ended = bool(self._ready) or self._asks.open
        for item in self._ready:
            self._finish(_steered(item.call, item.attempt - 1), *item.resolution())
        self._ready = []
        for item, request_id in self._asks.drop_all():
            self._finish(_steered(item.call, item.attempt - 1), RequestClosed(request_id, "superseded"))
        if policy == "stop_now":
            grace_until = self._work.clock.monotonic() + self._work.plan.config.cancel_grace
            for running in self._running:
                running.ask("steering", grace_until)
        return ended

    def _stop(self) -> None:
        """Nothing starts any more; what runs is asked to end (LP-43)."""
        dropped = [item for item, _ in self._asks.drop_all()]
        for item in [*self._ready, *dropped]:
            if not self._work.shut_down:  # what is only left may still run after a recovery
                self._drop(item, item.attempt - 1)
        self._ready = []
        self._ask_all(self._running)

    def _stopped(self) -> None:
        """Asks in the step of the stop itself: until the next look, what was to be entered is, and sub-agents go on."""
        # A tool that stops its own run may still return in this step, and what it did then counts.
        self._ask_all([running for running in self._running if not running.is_current])
        self._wakeup.ring()

    def _ask_all(self, those: Sequence[Running]) -> None:
        grace_until = self._work.clock.monotonic() + self._work.plan.config.cancel_grace
        for running in those:
            running.ask(self._work.scope.source or "user", grace_until)

    def _drop(self, item: Item, attempt: int) -> None:
        """A call that is not entered any more. That it was not run can be said of one that never was entered (RC-27)."""
        call, reason = item.call, self._work.scope.reason
        if item.attempt == 1:
            text = text_parts(NOT_RUN_TEXT)
            self._finish(CallFinished(call.call_id, "cancelled", text, True, reason, attempt=attempt))
            return
        known = cast("CallState", self._work.port.state.calls[call.call_id])
        self._finish(settle(known, reason, by="runtime"))
        if (stop := item.frozen.tool.stop) is not None:
            self._elsewhere.append(stop(self._work.run_id, call.call_id, reason))

    async def _stop_elsewhere(self) -> None:
        """What calls of an earlier process have begun is stopped, too, within bounds."""
        stops, self._elsewhere = self._elsewhere, []
        async with asyncio.timeout(SHIELD):
            for failed in await asyncio.gather(*stops, return_exceptions=True):
                if isinstance(failed, Exception):
                    logger.error("what a call had begun was not stopped", exc_info=failed)

    async def _wind_up(self) -> None:
        """The run's task was cancelled from outside: results of what runs are still written, within bounds (LP-46)."""
        grace_until = self._work.clock.monotonic() + self._work.plan.config.cancel_grace
        for running in self._running:
            running.ask("cancelled", grace_until)
        while self._running:
            self._alarm.look()
            await self._wakeup.wait()
            await self._collect()
        async with asyncio.timeout(SHIELD):
            await self._save()


def _by_index(item: Item) -> int:
    return item.index


def _steered(call: ToolCall, attempt: int) -> CallFinished:
    text = text_parts("This call was not run: the user sent a message.")
    return CallFinished(call.call_id, "cancelled", text, True, "steering", attempt=attempt)


__all__ = ["Phase", "Ready"]
