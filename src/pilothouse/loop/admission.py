"""The way into calls: which may start now, the record of the intent, and the entering itself (LP-28 … LP-30, TL-4)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import msgspec

from ..cancel import ENDING
from ..events import CallStarted
from ..messages import UNSET, ToolCall
from .asks import Asks
from .checking import Ready, Refusal
from .context import Progress, ToolContext
from .item import Item
from .running import Running
from .stuck import StuckWatch
from .tool_host import ToolHost
from .waiting import Wakeup
from .work import Work

logger: Final = logging.getLogger("pilothouse.loop")
_encode: Final = msgspec.json.Encoder().encode


@final
class Admission:
    """Lets the calls of one run in, batch by batch.

    Args:
        work: the run.
        tool_host: what tools share.
        asks: the calls that wait for somebody.
        wakeup: rings the phase, when a call has ended or something became free.
        refuse: gives a call that may not start its result.
    """

    def __init__(
        self,
        work: Work,
        tool_host: ToolHost,
        asks: Asks,
        wakeup: Wakeup,
        refuse: Callable[[ToolCall, Refusal], None],
    ) -> None:
        self._work = work
        self._tool_host = tool_host
        self._asks = asks
        self._wakeup = wakeup
        self._refuse = refuse
        self._calls: Sequence[ToolCall] = ()
        self._sequential = False

    def begin(self, calls: Sequence[ToolCall]) -> None:
        """Opens for another batch."""
        tools = self._work.tools
        self._calls = calls
        self._sequential = self._work.plan.config.tool_execution == "sequential" or (
            tools.any_sequential and any(tools.is_sequential(call.tool) for call in calls)
        )

    def choose(self, queue: list[Item], running: Sequence[Running]) -> tuple[list[Item], list[Item]]:
        """The calls that may start now, with what they need, and those that go on waiting (LP-29, LP-30, TL-4)."""
        policy = self._work.plan.config.batch_policy
        if not queue or (policy == "after_approvals" and self._asks.approvals):
            return [], queue
        room = 1 if self._sequential else self._work.plan.limits.parallel_tools
        room -= len(running)
        human = bool(running) and any(other.ready.effect == "human" for other in running)
        first_asked = min([item.index for item in self._asks.items], default=len(self._calls))
        chosen: list[Item] = []
        waiting: list[Item] = []
        for at, item in enumerate(queue):
            if len(chosen) >= room:
                waiting += queue[at:]
                break
            ready = item.frozen
            held = human and ready.effect == "human"
            if self._sequential and (waiting or item.index > first_asked):  # strictly in source order
                held = True
            if held or not self._tool_host.resources.take(ready.resource, self._wakeup):
                waiting.append(item)
                continue
            if not self._count(item):
                self._tool_host.resources.give_back(ready.resource)
                continue
            human = human or ready.effect == "human"
            chosen.append(item)
        return chosen, waiting

    def _count(self, item: Item) -> bool:
        """Counts a start against the limits; refuses the call if it is one too many (LP-38)."""
        work, name = self._work, item.frozen.tool.name
        limits = work.plan.limits
        if item.attempt > 1:
            return True
        if work.calls_total >= limits.tool_calls or work.calls_started.get(name, 0) >= limits.per_tool.get(
            name, limits.tool_calls
        ):
            self._refuse(item.call, Refusal("limit", f"The limit of calls of {name} in this run is reached."))
            return False
        work.count_call(name)
        return True

    def give_back(self, chosen: Sequence[Item]) -> None:
        """Takes a choice back: nothing of it was entered."""
        for item in chosen:
            self._tool_host.resources.give_back(item.frozen.resource)
            if item.attempt == 1:
                self._work.count_call(item.frozen.tool.name, -1)

    def intent(self, item: Item) -> CallStarted:
        """The record that a call is about to be entered; durable before it is."""
        ready = item.frozen
        # By their spelling: for Python 1 and true are equal, for a reader of the facts they are not.
        changed = _encode(ready.arguments) != _encode(ready.call.arguments)
        return CallStarted(
            ready.call.call_id,
            item.attempt,
            ready.tool.name,
            ready.digest,
            ready.effect,
            ready.key,
            ready.arguments if changed else None,
            item.approved_by,
        )

    def enter(self, item: Item, *, yielding: bool) -> Running:
        """Enters a call whose intent is durable; `yielding` asks it from the start to hand its work over."""
        work, ready = self._work, item.frozen
        tool = ready.tool
        limit = work.plan.config.tool_timeout if tool.timeout is UNSET else tool.timeout
        if ready.effect == "human":  # a person is not hurried
            limit = None
        now = work.clock.monotonic()
        due = None if limit is None else now + limit
        context: ToolContext[Any] = ToolContext(
            run_id=work.run_id,
            thread_id=work.thread_id,
            turn=work.turn,
            call_id=ready.call.call_id,
            attempt=item.attempt,
            idempotency_key=ready.key,
            deps=self._tool_host.deps,
            deadline=due,
            now=work.clock.monotonic,
            progress=Progress(ready.call.call_id, work.port.tell),
            ask=self._asks.asker(ready) if ready.effect == "human" else None,
            detach=self._tool_host.detach,
            budget=work,
            parent=work.port,
        )
        if yielding:
            context.yield_token.set("steering")
        watch = self._watch_over(ready, item.attempt, limit, now)
        running = Running(ready, item.attempt, context, self._tool_host, due=due, began=now, watch=watch)
        running.enter(self._wakeup.ring)
        return running

    def _watch_over(self, ready: Ready, attempt: int, limit: float | None, now: float) -> StuckWatch | None:
        config, tool = self._work.plan.config.stuck_tool, ready.tool
        if config is None or ready.effect == "human" or not tool.supervised or tool.name in config.exclude:
            return None
        declared = limit
        if tool.expected is not None:
            try:
                told = tool.expected(ready.arguments)
                declared = None if told is None else float(told)
            except ENDING:
                raise
            except BaseException:
                logger.exception("the expected time of tool %s could not be told", tool.name)
        return StuckWatch(config, ready.effect, attempt, declared, now)
