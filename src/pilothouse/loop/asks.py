"""Calls that wait for somebody: for an approval, for a client that runs them, for a person's words (LP-33 … LP-37, TL-16).

What was asked is durable before anybody waits for it. An answer is recorded together with what it allows; where that
cannot start yet, alone. After an approval nothing changes the arguments and nothing asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol, TypeVar, final

from ..cancel import ENDING
from ..commands import TERMINATE, Allow, Deny, ExternalResult, InputAnswer, Request, Resolution
from ..contracts import PendingCommand
from ..core.calls import CallState, operation_digest, text_parts
from ..errors import RecordRefused, ToolError, ToolStopped
from ..events import CallFinished, RequestClosed, RequestOpened
from ..messages import JSON, ToolCall
from .answer_router import AnswerRouter, Waiting
from .approval import as_data
from .checking import Checker, Ready, Refusal
from .item import Item, resolved
from .recorder import Entry
from .results import BadResult, content_of
from .schema import InvalidArguments, reader_of
from .spill import Spill
from .tool_host import ToolHost
from .tools import ToolResult
from .work import Work

logger: Final = logging.getLogger("pilothouse.loop")
T = TypeVar("T")


class Finish(Protocol):
    """Records the one result of a call."""

    def __call__(self, end: CallFinished, *before: Entry) -> None:
        """Records it, with what stands before it in the same append."""
        ...


@final
class Asks:
    """Everything of one batch that waits for somebody."""

    def __init__(
        self,
        work: Work,
        answers: AnswerRouter,
        checker: Checker,
        tool_host: ToolHost,
        spill: Spill,
        finish: Finish,
        wake: Callable[[], object],
    ) -> None:
        self._wake = wake
        self._work = work
        self._answers = answers
        self._checker = checker
        self._tool_host = tool_host
        self._spill = spill
        self._finish = finish
        self._to_open: list[tuple[Item, Request]] = []
        self._open: dict[str, Item] = {}  # request id -> the call that waits for it
        self._approvals: set[str] = set()
        self._allowed: list[Item] = []
        self._asked: dict[str, int] = {}  # questions of each human call so far

    @property
    def open(self) -> bool:
        """Whether a call waits for somebody."""
        return bool(self._open)

    @property
    def approvals(self) -> bool:
        """Whether an approval of the batch is unanswered."""
        return bool(self._approvals)

    @property
    def items(self) -> Sequence[Item]:
        """The calls that wait."""
        return list(self._open.values())

    def allowed(self) -> list[Item]:
        """Calls that were allowed since the last look."""
        allowed, self._allowed = self._allowed, []
        return allowed

    def drop_all(self) -> list[tuple[Item, str]]:
        """Waits for nobody any more; gives the calls with their requests."""
        dropped = [(item, request_id) for request_id, item in self._open.items()]
        for request_id in self._open:
            self._answers.forget(request_id)
        self._open.clear()
        self._approvals.clear()
        return dropped

    # Asking

    def consider(self, item: Item) -> Item | None:
        """The call if it may start by itself; None if somebody is asked first, or if it never runs."""
        ready = item.frozen
        decision = self._checker.decide(ready, self._tool_host.rules(self._work.thread_id))
        if decision.way == "deny":
            self._refuse(item.call, "denied", decision.reason)
            return None
        if decision.way == "run":
            return self._after_approval(item)
        if not self._work.attended:
            self._refuse(
                item.call, "denied", "This call needs a person's approval, and nobody can give it here."
            )
            return None
        digest = operation_digest(ready.tool.name, ready.digest, ready.effect)
        policy = self._work.plan.config.approval
        about: dict[str, JSON] = {"about": dict(ready.tool.about)} if ready.tool.about else {}
        request = Request(
            f"approval:{item.call.call_id}:{digest[:12]}",
            "approval",
            prompt=f"May {ready.tool.name} run?",
            call_id=item.call.call_id,
            operation_digest=digest,
            scopes=("once", "thread"),
            expires_at_ms=self._expiry(policy.timeout),
            data={**as_data(self._checker.view(ready), decision.reason, ready.digest), **about},
        )
        self._to_open.append((item, request))
        return None

    def _after_approval(self, item: Item) -> Item | None:
        """A tool without a function is run by a client: its answer is the result (TL-16)."""
        ready = item.frozen
        if not ready.tool.external:
            return item
        request = Request(
            f"external:{item.call.call_id}",
            "external",
            call_id=item.call.call_id,
            expires_at_ms=self._expiry(ready.tool.timeout or None),
            data={"tool": ready.tool.name, "arguments": ready.arguments},
        )
        self._to_open.append((item, request))
        return None

    def _expiry(self, seconds: float | None) -> int | None:
        return None if seconds is None else self._work.clock.time_ms() + round(seconds * 1000)

    @property
    def asks(self) -> bool:
        """Whether there is something to be asked."""
        return bool(self._to_open)

    async def ask_all(self) -> None:
        """Opens what is to be asked, together; durable on return.

        Raises:
            Stopped: the run is being stopped.
        """
        to_open, self._to_open = self._to_open, []
        if not to_open:
            return
        for item, request in to_open:
            self._expect(item, request)
        facts: list[Entry] = []
        for item, request in to_open:
            facts += [*item.resolution(), RequestOpened(request)]
        await self._work.recorder.write(*facts)

    def _expect(self, item: Item, request: Request) -> None:
        self._open[request.id] = item
        if request.kind == "approval":
            self._approvals.add(request.id)
        answered = self._approval_answered if request.kind == "approval" else self._external_answered
        self._answers.expect(Waiting(request, answered, self._expired))

    def _close(self, request_id: str) -> Item:
        self._answers.forget(request_id)
        self._approvals.discard(request_id)
        return self._open.pop(request_id)

    def _refuse(self, call: ToolCall, reason: str, text: str, *before: Entry) -> None:
        self._finish(CallFinished(call.call_id, "refused", text_parts(text), True, reason), *before)

    # Answers

    async def _approval_answered(self, pending: PendingCommand, resolution: Resolution) -> None:
        command = pending.command
        request_id = command.body.request_id  # type: ignore[union-attr]
        item = self._open[request_id]
        if isinstance(resolution, Allow):
            ready = item.frozen
            if resolution.arguments is not None:
                edited = self._checker.accept(item.call, ready.tool, resolution.arguments)
                if isinstance(edited, Refusal):
                    await pending.reject("invalid_arguments", edited.text)
                    return
                ready = edited
            if resolution.scope == "thread":
                try:
                    rule = self._work.plan.config.approval.rule(self._checker.view(ready), ready.tool)
                except ENDING:
                    raise
                except BaseException:
                    logger.exception("what is to be remembered of tool %s could not be told", ready.tool.name)
                    await pending.reject("answer_mismatch", "It cannot be remembered: allow it once.")
                    return
                self._tool_host.remember(self._work.thread_id, rule)
            item.ready = ready
            item.approved_by = request_id
            item.answer = resolved(request_id, resolution, command.id)
            self._close(request_id)
            if (next_item := self._after_approval(item)) is not None:
                self._allowed.append(next_item)
            else:
                await self.ask_all()
        elif isinstance(resolution, Deny):
            self._close(request_id)
            self._denied(item.call, resolution, resolved(request_id, resolution, command.id))
            await self._work.recorder.write()
        else:
            await pending.reject("answer_mismatch")

    def _denied(self, call: ToolCall, resolution: Deny, *before: Entry) -> None:
        reason = f": {resolution.reason}" if resolution.reason else "."
        self._refuse(call, "denied", f"A person did not allow this call{reason}", *before)

    async def _external_answered(self, pending: PendingCommand, resolution: Resolution) -> None:
        command = pending.command
        request_id = command.body.request_id  # type: ignore[union-attr]
        call = self._open[request_id].call
        record = resolved(request_id, resolution, command.id)
        if isinstance(resolution, ExternalResult):
            terminate = bool(command.extensions.get(TERMINATE))
            end = await self._external_end(call, resolution, terminate=terminate)
            self._close(request_id)
            self._finish(end, record)
        elif isinstance(resolution, Deny):
            self._close(request_id)
            self._denied(call, resolution, record)
        else:
            await pending.reject("answer_mismatch")
            return
        await self._work.recorder.write()

    async def _external_end(self, call: ToolCall, result: ExternalResult, *, terminate: bool) -> CallFinished:
        try:
            content = content_of(ToolResult(result.content, is_error=result.is_error))
        except BadResult as bad:
            text = f"{call.tool} ran, but its result cannot be written down: {bad}."
            return CallFinished(call.call_id, "failed", text_parts(text), True, "bad_result", "bad_result")
        marks = ("terminate",) if terminate else ()
        end = CallFinished(call.call_id, "succeeded", content.parts, content.is_error, marks=marks)
        return await self._spill.fit(end, self._work.tools.get(call.tool))

    def _expired(self, request: Request) -> None:
        item = self._close(request.id)
        closing = (
            (RequestClosed(request.id, "expired"),) if request.id in self._work.port.state.requests else ()
        )
        self._refuse(item.call, "expired", "Nobody answered in time; this call was not run.", *closing)

    async def settle(self, waiting: Sequence[Item]) -> None:
        """Records answers whose calls cannot start yet, so that they are neither lost nor asked for again."""
        answers = [fact for item in waiting for fact in item.resolution()]
        if answers:
            await self._work.recorder.write(*answers)

    # A person's words

    def asker(self, ready: Ready) -> Callable[[str, type[Any] | None], Awaitable[Any]]:
        """What `ToolContext.ask` does for this call."""

        async def ask(prompt: str, schema: type[Any] | None) -> Any:
            return await self._ask_person(ready, prompt, schema)

        return ask

    async def _ask_person(self, ready: Ready, prompt: str, schema: type[Any] | None) -> Any:
        call_id = ready.call.call_id
        number = self._asked[call_id] = self._asked.get(call_id, 0) + 1
        # From call and position: a tool that is entered again gets the answers that were given before (TL-12).
        request_id = f"ask:{call_id}:{number}"
        read, json_schema = reader_of(schema)
        if (answer := self._work.answers.get(request_id)) is not None:
            return _said(answer, read)
        request = Request(request_id, "input", prompt=prompt, schema=json_schema, call_id=call_id)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def answered(pending: PendingCommand, resolution: Resolution) -> None:
            try:
                said = _said(resolution, read)
            except InvalidArguments as problem:
                await pending.reject("answer_mismatch", str(problem))
                return
            except ToolError as denial:
                said = denial
            self._answers.forget(request_id)
            await self._work.recorder.write(resolved(request_id, resolution, pending.command.id))
            self._work.answers[request_id] = resolution
            if not future.done():
                future.set_result(said)

        self._answers.expect(Waiting(request, answered, lambda _: None))
        if self._answers.ready:
            self._wake()
        try:
            if request_id not in self._work.port.state.requests:
                await self._work.port.record(RequestOpened(request))
            said = await future
        except RecordRefused as refusal:
            raise ToolStopped(f"the run is being stopped ({refusal.code})") from None
        finally:
            self._answers.forget(request_id)
        if isinstance(said, ToolError):
            raise said
        return said

    # Resume

    async def take_up(self, item: Item, known: CallState) -> Item | None:
        """A call that an earlier attachment left waiting: the same request stays open, nothing asks again (LP-36)."""
        request = self._work.past_requests.get(known.request_id or "")
        tool = self._work.tools.get(known.tool)
        if request is None or tool is None:
            self._lost(item, known, "tool_gone", f"The tool {known.tool} is not there any more.")
            return None
        data = request.data if isinstance(request.data, dict) else {}
        given = data.get("arguments", known.arguments)
        if isinstance(known.resolution, Allow) and known.resolution.arguments is not None:
            given = known.resolution.arguments
        found = self._checker.accept(item.call, tool, given)
        if isinstance(found, Refusal) or not _same_operation(found, request, known):
            self._lost(item, known, "tool_changed", f"The tool {known.tool} has changed; it was not run.")
            return None
        item.ready = found
        if known.request_open:
            self._expect(item, request)
            return None
        return await self._resolved_before(item, known)

    async def _resolved_before(self, item: Item, known: CallState) -> Item | None:
        resolution = known.resolution
        if isinstance(resolution, Allow):
            item.approved_by = known.request_id
            return self._after_approval(item)
        if isinstance(resolution, Deny):
            self._denied(item.call, resolution)
        elif isinstance(resolution, ExternalResult):
            self._finish(await self._external_end(item.call, resolution, terminate=False))
        else:
            self._refuse(item.call, "expired", "Nobody answered in time; this call was not run.")
        return None

    def _lost(self, item: Item, known: CallState, reason: str, text: str) -> None:
        closing = (
            (RequestClosed(known.request_id, "superseded"),)
            if known.request_open and known.request_id
            else ()
        )
        self._refuse(item.call, reason, text, *closing)


def _same_operation(ready: Ready, request: Request, known: CallState) -> bool:
    if request.kind != "approval":
        return True
    edited = isinstance(known.resolution, Allow) and known.resolution.arguments is not None
    return edited or operation_digest(ready.tool.name, ready.digest, ready.effect) == request.operation_digest


def _said(resolution: Resolution, read: Callable[[JSON], Any]) -> Any:
    """What a person said, as the tool wants it.

    Raises:
        InvalidArguments: it does not fit.
        ToolError: the person refused to say.
    """
    if isinstance(resolution, InputAnswer):
        return read(resolution.content)
    reason = resolution.reason if isinstance(resolution, Deny) else ""
    raise ToolError(f"The person did not answer{f': {reason}' if reason else '.'}")
