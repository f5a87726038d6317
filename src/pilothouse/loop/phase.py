"""The tool phase: the calls of one message, from their checks to their results (LP-27 … LP-32, LP-42 … LP-46).

All calls are checked before any starts. Then a call starts as soon as nothing holds it up; those that may start together
share the append of their intents, which is durable before any of them is entered. The run's task waits for ends, the
stop and the time limits together, on one future. Every call gets exactly one result; in the context they stand in
call order, whatever the order in which they ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final, final

import msgspec

from ..core.calls import NOT_RUN_TEXT, result_message, text_parts
from ..events import CallFinished, CallStarted
from ..messages import UNSET, Message, ToolCall
from .bench import Bench
from .book import Stopped
from .context import Progress, ToolContext
from .past import Past, past_of
from .preflight import Ready, Refusal, check_call
from .running import Running
from .timers import Alarm
from .waiting import Wakeup
from .work import Work
from .yielding import YieldWatch

_encode: Final = msgspec.json.Encoder().encode

SHIELD: Final = 5.0
"""Seconds that writing results may take after the run's task was cancelled from outside (LP-46)."""


@final
class Phase:
    """Works through one batch.

    Args:
        work: the run.
        message: whose calls these are.
        bench: what tools share.
        steered: whether steering may still come into this run; else none is watched for.
    """

    def __init__(self, work: Work, message: Message, bench: Bench, *, steered: bool) -> None:
        self._work = work
        self._calls: Sequence[ToolCall] = message.tool_calls
        self._bench = bench
        self._steered = steered
        self._watch = YieldWatch(work.plan.config, work.port.commands, work.clock, self._yield)
        self._ready: list[tuple[Ready, int]] = []  # in call order, with the number of the attempt
        self._running: list[Running] = []
        self._wakeup = Wakeup()
        self._alarm = Alarm(work.clock, self._next_due, self._wakeup.ring)
        self._sequential = False

    async def run(self) -> None:
        """Gives every call its result and adds the results to the context.

        Raises:
            Stopped: the run is being stopped; what had started has its result, the rest is recorded as not run.
        """
        take_back = self._work.scope.on_cancel(self._wakeup.ring)
        try:
            if self._steered:
                self._watch.start()
            await self._check_all()
            while self._ready or self._running:
                if self._work.scope.cancelled:
                    self._stop()
                else:
                    self._heed_steering()
                    await self._start()
                if self._running:
                    self._alarm.look()
                    await self._wakeup.wait()
                    await self._collect()
                elif self._ready:  # what it needs is in use elsewhere
                    await self._wakeup.wait()
        except asyncio.CancelledError:
            await self._wind_up()
            raise
        finally:
            for running in self._running:  # only where the run was lost in between
                running.ask("detached", 0.0)
                running.abandon()
            self._alarm.stop()
            take_back()
            await self._watch.close()
        self._work.check_stop()
        for call in self._calls:
            self._work.add(result_message(self._work.finished[call.call_id]))

    # Before the start

    async def _check_all(self) -> None:
        """Preflight, call by call in source order, before anything starts."""
        work = self._work
        for call in self._calls:
            if call.call_id in work.finished:
                continue
            past = await past_of(call, work, work.tools)
            if past is None:
                found = check_call(call, work.tools, work.run_id)
                if isinstance(found, Refusal):
                    self._refuse(call, found)
                else:
                    self._ready.append((found, 1))
            elif past.end is not None:
                self._finish(past.end, *past.facts)
            else:
                self._take_up(past)
        mode = work.plan.config.tool_execution
        self._sequential = mode == "sequential" or any(
            ready.tool.execution == "sequential" for ready, _ in self._ready
        )

    def _take_up(self, past: Past) -> None:
        assert past.ready is not None
        self._work.book.note(*past.facts)
        self._ready.append((past.ready, past.attempt))

    def _refuse(self, call: ToolCall, refusal: Refusal) -> None:
        self._finish(CallFinished(call.call_id, "refused", text_parts(refusal.text), True, refusal.reason))

    def _finish(self, end: CallFinished, *before: object) -> None:
        self._work.book.note(*before, end)  # type: ignore[arg-type]
        self._work.finished[end.call_id] = end

    # Start

    async def _start(self) -> None:
        """Starts everything that nothing holds up: intents first, durable, then the functions."""
        work = self._work
        chosen = self._choose()
        if not chosen:
            return
        try:
            await work.port.gate("call")
            work.check_stop()
            await work.book.write(*[self._intent(ready, attempt) for ready, attempt in chosen])
        except Stopped:
            self._put_back(chosen)
            return
        except BaseException:
            self._put_back(chosen)
            raise
        if work.scope.cancelled:  # stopped while the intents were written: none is entered, so none has run
            for ready, attempt in chosen:
                self._bench.resources.give_back(ready.resource)
                self._finish(_not_run(ready.call, work.scope.reason, attempt))
            return
        for ready, attempt in chosen:
            self._enter(ready, attempt)

    def _choose(self) -> list[tuple[Ready, int]]:
        """The calls that may start now, taken out of the queue with what they need (LP-30, TL-4)."""
        room = 1 if self._sequential else self._work.plan.limits.parallel_tools
        room -= len(self._running)
        human = any(running.ready.effect == "human" for running in self._running)
        chosen: list[tuple[Ready, int]] = []
        waiting: list[tuple[Ready, int]] = []
        for item in self._ready:
            ready = item[0]
            held = len(chosen) >= room or (human and ready.effect == "human")
            if self._sequential and waiting:  # strictly one after the other, in source order
                held = True
            if held or not self._bench.resources.take(ready.resource, self._wakeup):
                waiting.append(item)
                continue
            if not self._count(ready, item[1]):
                self._bench.resources.give_back(ready.resource)
                continue
            human = human or ready.effect == "human"
            chosen.append(item)
        self._ready = waiting
        return chosen

    def _count(self, ready: Ready, attempt: int) -> bool:
        """Counts a start against the limits; refuses the call if it is one too many (LP-38)."""
        started, limits, name = self._work.calls_started, self._work.plan.limits, ready.tool.name
        if attempt == 1:
            over = started.total() >= limits.tool_calls or started[name] >= limits.per_tool.get(
                name, limits.tool_calls
            )
            if over:
                self._refuse(
                    ready.call, Refusal("limit", f"The limit of calls of {name} in this run is reached.")
                )
                return False
            started[name] += 1
        return True

    def _put_back(self, chosen: list[tuple[Ready, int]]) -> None:
        for ready, attempt in chosen:
            self._bench.resources.give_back(ready.resource)
            self._work.calls_started[ready.tool.name] -= attempt == 1
        self._ready = [*chosen, *self._ready]

    def _intent(self, ready: Ready, attempt: int) -> CallStarted:
        # By their spelling: for Python 1 and true are equal, for a reader of the facts they are not.
        changed = _encode(ready.arguments) != _encode(ready.call.arguments)
        return CallStarted(
            ready.call.call_id,
            attempt,
            ready.tool.name,
            ready.digest,
            ready.effect,
            ready.key,
            ready.arguments if changed else None,
        )

    def _enter(self, ready: Ready, attempt: int) -> None:
        work, tool = self._work, ready.tool
        limit = work.plan.config.tool_timeout if tool.timeout is UNSET else tool.timeout
        if ready.effect == "human":  # a person is not hurried
            limit = None
        due = None if limit is None else work.clock.monotonic() + limit
        context: ToolContext[Any] = ToolContext(
            run_id=work.run_id,
            thread_id=work.thread_id,
            turn=work.turn,
            call_id=ready.call.call_id,
            attempt=attempt,
            idempotency_key=ready.key,
            deps=self._bench.deps,
            deadline=due,
            now=work.clock.monotonic,
            progress=Progress(ready.call.call_id, work.port.tell),
        )
        if self._watch.fired:
            context.yield_token.set("steering")
        running = Running(ready, attempt, context, self._bench, due=due)
        self._running.append(running)
        running.enter(self._wakeup.ring)

    # While they run

    def _next_due(self) -> float | None:
        return min((running.due for running in self._running if running.due is not None), default=None)

    async def _collect(self) -> None:
        """Records what has ended, asks what is over its time, leaves what did not end in its grace."""
        now = self._work.clock.monotonic()
        still: list[Running] = []
        for running in self._running:
            if running.ended:
                self._finish(running.result())
            elif running.due is None or now < running.due:
                still.append(running)
            elif running.asked is None:
                running.ask("timeout", now + self._work.plan.config.cancel_grace)
                still.append(running)
            else:
                self._finish(running.abandon())
        ended = len(still) < len(self._running)
        self._running = still
        if ended and still:  # the last results go with the end of the turn
            await self._save()

    async def _save(self) -> None:
        try:
            await self._work.book.write()
        except Stopped:
            return  # results are kept, and the next look sees the stop

    def _yield(self) -> None:
        """Steering has arrived: whoever runs is asked to hand over, and the policy may want more (LP-25, LP-26)."""
        for running in self._running:
            running.ask_to_yield("steering")
        self._wakeup.ring()

    def _heed_steering(self) -> None:
        policy = self._work.plan.config.steering_policy
        if policy == "boundary" or not self._watch.fired:
            return
        for ready, attempt in self._ready:
            self._finish(_steered(ready.call, attempt - 1))
        self._ready = []
        if policy == "stop_now":
            grace_until = self._work.clock.monotonic() + self._work.plan.config.cancel_grace
            for running in self._running:
                running.ask("steering", grace_until)

    def _stop(self) -> None:
        """Nothing starts any more; what runs is asked to end (LP-43)."""
        scope, clock = self._work.scope, self._work.clock
        for ready, attempt in self._ready:
            if not self._work.shut_down:  # what is only left may still run after a recovery
                self._finish(_not_run(ready.call, scope.reason, attempt - 1))
        self._ready = []
        grace_until = clock.monotonic() + self._work.plan.config.cancel_grace
        for running in self._running:
            running.ask(scope.source or "user", grace_until)

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


def _steered(call: ToolCall, attempt: int) -> CallFinished:
    text = text_parts("This call was not run: the user sent a message.")
    return CallFinished(call.call_id, "cancelled", text, True, "steering", attempt=attempt)


def _not_run(call: ToolCall, reason: str, attempt: int) -> CallFinished:
    return CallFinished(call.call_id, "cancelled", text_parts(NOT_RUN_TEXT), True, reason, attempt=attempt)
