"""What happens around one send: interceptor, hooks, listeners, and who is told of its end (TC §3.2 … §3.5).

One `Around` a send of a conversation that has any of them; a send without costs nothing. It works in a task of its own,
in the context of whoever called `send()`. Phases 3 and 4 are `admit`, phase 10 is `ended`; what lies between is the run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from ..cancel import LEAVING, is_closing
from ..errors import HookError, PostponeTimeout, ReplyTimeout, SendAbandoned, SendRefused
from ..events import Outcome
from ..loop.timers import call_later
from ..messages import JSON, MEDIA, Context, Text
from .calling import Halted, HookCaller
from .composition import Composition, Offer
from .controllers import HookFailure, RequestEvent, ResponseEvent, ending_of, enter_reply
from .entering import go_to_parent, nothing, offer, request_digest
from .extras import Refused
from .interceptor import Postponed, PromptEvent, Verdict
from .order import Order
from .reply import Reply, ReplyPhase
from .sealing import Staged
from .staging import Change, StagedController
from .states import Stored

if TYPE_CHECKING:
    from .sending import Sender

logger = logging.getLogger("pilothouse.conversation")

_NO_END_HOOKS: Final = (SendRefused, SendAbandoned)
"""Ends of which no hook is told: the message was refused, or nobody waits for it any more."""


class Around:
    """The hooks of one send.

    Attributes:
        begun: keys of the controllers whose `on_request` was entered.
        failures: of hooks that ran after the outcome was fixed.
        ending: the outcome is fixed and its hooks run, or have run.
        over: nothing more is called for this send.
        offer: the tools of this send.
        base: the runtime without the controllers' tools, as it was when the send began.
        given: digest of what the caller passed.
        restaged: what the calls that a retry keeps had staged.
        shared, at_head: the shared and the stored states where the run hangs, if not at the end of what is shown.
        went_back: states that went back in history, with what they were before.
    """

    def __init__(self, sender: Sender, reply: Reply, order: Order, *, resumed: bool = False) -> None:
        setup = sender.setup
        self._sender = sender
        self._order = order
        self.resumed = resumed
        self.base = setup.route.base
        self.given = request_digest(order.parts, order.extras, order.aim)
        self.restaged: Sequence[Staged] = ()
        self.shared: Mapping[str, JSON] | None = None
        self.at_head: dict[str, Stored] | None = None
        self.went_back: list[tuple[str, StagedController[Any], Any]] = []
        self.reply = reply
        self.composition: Composition | None = setup.composition
        self.caller = HookCaller(copy_context(), setup.clock, reply.options["hook_timeout"])
        self.caller.context.run(enter_reply, reply)
        self._before = sender.around
        sender.around = self
        self.begun: list[str] = []
        self.failures: list[HookFailure] = []
        self.ending = self.over = False
        self.offer: Offer | None = None
        self._original: str | None = None
        self._postponed: Postponed | None = None
        self._settle: Callable[[], object] | None = None
        self._overs: list[asyncio.Future[None]] = []

    @property
    def members(self) -> tuple[Any, ...]:
        """The controllers, in order."""
        return () if self.composition is None else self.composition.members

    # Phases 3 and 4

    def moved(self) -> None:
        """The run is registered: the conversation is where it hangs."""
        self.went_back = []
        if self.at_head is not None and self.composition is not None:
            self.composition.states.at_head = self.at_head
        if self.shared is not None:
            self._sender.setup.shared.replace(self.shared)

    async def admit(self) -> None:
        """Everything between the guards and the commit, then the commit; a failure is told, and raised."""
        sender, reply = self._sender, self.reply
        try:
            if await sender.repeats(reply, self._order):
                await sender.reopen(reply)
                self._finish()
                return
            await self._wait_for_before()
            await self._prepare()
            self.caller.check()
            await sender.commit(reply, self._order)
        except BaseException as error:
            if not self.ending:  # else it was told already, by the commit
                await self.failed(error)
            if reply.outcome is None or isinstance(reply.outcome, Refused):
                raise
        if not reply.committed:  # stopped before it was registered
            await self.stopped()

    async def _wait_for_before(self) -> None:
        """Hooks serve one send at a time: those of the send before are over first (AC-43)."""
        before, self._before = self._before, None
        if before is not None and not before.over:
            await before.wait_over(self.caller)
        self.caller.check()

    async def _prepare(self) -> None:
        order = self._order
        if order.kind == "send":
            await self._intercept()
        await self.request()
        await self._context()
        listener = self.reply.options["request_listener"]
        if listener is not None:
            await self.caller.call("", "request_listener", listener, self.event)

    async def _intercept(self) -> None:
        """Phase 3: the interceptor's verdict on what was said."""
        interceptor = self._sender.setup.interceptor
        reply, order = self.reply, self._order
        if interceptor is None:
            return
        assert order.parts is not None
        event = PromptEvent(
            "".join([part.text for part in order.parts if isinstance(part, Text)]),
            [part for part in order.parts if isinstance(part, MEDIA)],
            thread_id=reply.thread_id,
            reply_id=reply.id,
        )
        verdict = await self._verdict(interceptor, event)
        if verdict.rejected:
            raise SendRefused(reply, verdict.reason)
        if verdict.replaced:
            self._original = verdict.original
            order.parts = verdict.parts(order.parts)
            self._sender.guard(order)
            self._say()

    async def _verdict(self, interceptor: Callable[[PromptEvent], Any], event: PromptEvent) -> Verdict:
        try:
            nothing(await self.caller.call("", "interceptor", interceptor, event))
        except BaseException:
            if event.postponed is not None:
                event.postponed.abandon()
            event.close()
            raise
        return event.close() if event.postponed is None else await self._postponement(event.postponed)

    async def _postponement(self, postponed: Postponed) -> Verdict:
        """Waits until somebody decides, the time is over, or the send is stopped; the first of them counts."""
        loop, clock = asyncio.get_running_loop(), self._sender.clock
        decided = loop.create_future()

        def wake() -> None:
            if not decided.done():
                decided.set_result(None)

        def expire() -> None:
            postponed.complete(PostponeTimeout(postponed.timeout))

        postponed.on_done(lambda: loop.call_soon_threadsafe(wake))
        stop = call_later(clock, postponed.timeout, expire)
        deadline = self.reply.deadline
        if deadline is not None:
            deadline.hold("postponed")
        self._postponed = postponed
        try:
            await decided
        finally:
            stop()
            self._postponed = None
            postponed.abandon()
            if deadline is not None:
                deadline.go("postponed")
        self.caller.check()
        if postponed.error is not None:
            raise postponed.error
        assert postponed.verdict is not None
        return postponed.verdict

    async def request(self) -> None:
        """Phase 4: every `on_request`, in order; then the tools of all together."""
        reply, order = self.reply, self._order
        message = reply.user_message
        given = message is not None and order.parts is not None
        self.event = RequestEvent(
            reply,
            reply.thread_id,
            None if message is None else message.id,
            "" if message is None else message.text,
            () if message is None else message.attachments,
            order.kind,
            reply.patch,
            self._original if given else None,
            self.resumed,
        )
        await go_to_parent(self._sender, self, order)
        for member in self.members:
            self.caller.check()
            self.begun.append(member.key)
            hook = member.hook("on_request")
            if hook is not None:
                await self.caller.call(member.key, "on_request", hook, self.event)
        self.caller.check()
        if self.composition is not None:
            try:
                self.offer = offer(self._sender, self, order)
            except asyncio.CancelledError as error:
                raise HookError("get_tools raised CancelledError although nobody cancelled it") from error

    async def _context(self) -> None:
        """What the application adds to the message: its last part, stored with it (TC-46)."""
        source = self.reply.options["send_context"]
        if source is None or self._order.kind != "send":
            return
        text = source
        if callable(source):
            text = await self.caller.call("", "send_context", source, self.event)
        if text is not None and not isinstance(text, str):
            raise TypeError(f"send_context must give a str or None, got {type(text).__name__}")
        if text is not None and text.strip():
            assert self._order.parts is not None
            self._order.context = Context(text)
            self._say()

    def _say(self) -> None:
        """The user message as it is now."""
        message, order = self.reply.user_message, self._order
        assert message is not None
        assert order.parts is not None
        parts = order.parts if order.context is None else (*order.parts, order.context)
        self.reply.user_message = with_fields(message, parts=parts)

    # Stops before the commit

    def stop(self) -> None:
        """The send was stopped: the hook in progress is cancelled, the rest is not called."""
        self._halt(Halted())

    def expire(self, error: ReplyTimeout) -> None:
        """The whole send took too long."""
        self._halt(error)

    def _halt(self, why: BaseException) -> None:
        if self.ending:
            return
        self.caller.halt(why)
        if self._postponed is not None:
            self._postponed.complete(why)

    @property
    def postponed(self) -> bool:
        """Whether it waits for somebody's verdict."""
        return self._postponed is not None

    # Phase 10

    async def failed(self, error: BaseException) -> None:
        """A failure before the commit: who was told of the request is told of that, then the way is free."""
        sender, reply = self._sender, self.reply
        if reply.outcome is None:
            outcome: Outcome | Refused = Refused(error)
            told: BaseException | None = error
        else:  # stopped meanwhile
            outcome, told = reply.outcome, reply.error
        await self._put_back()
        if isinstance(told, _NO_END_HOOKS) or isinstance(error, asyncio.CancelledError):
            self.ending = True
            sender.refuse(reply, error)
            self._finish()
            return
        self._fix(lambda: sender.refuse(reply, error))
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.settle()
            self._finish()
        else:
            await self._tell_end(outcome, told)

    async def stopped(self) -> None:
        """It was stopped before there was a run."""
        if self.ending:
            return
        await self._put_back()
        self._fix(lambda: None)
        outcome = self.reply.outcome
        assert outcome is not None
        if isinstance(self.reply.error, _NO_END_HOOKS):
            self._finish()
        else:
            await self._tell_end(outcome, self.reply.error)

    async def gave_up(self, error: BaseException) -> None:
        """A resumed run is not taken up after all: what its hooks have taken is released."""
        self._fix(lambda: None)
        await self._tell_end(Refused(error), error)

    async def _put_back(self) -> None:
        """There is no run: states that went back in history for it are what they were."""
        self.caller.go_on()
        for key, controller, before in reversed(self.went_back):
            back = controller.state
            try:
                await self.caller.call(key, "restore", controller.restore, before)
            except Exception:
                logger.exception("the state of %s could not be put back", key)
            controller.changed(Change(back, controller.state, "history", self.reply.id))
        self.went_back = []

    def ended(
        self,
        outcome: Outcome | Refused,
        error: BaseException | None,
        settle: Callable[[], object],
        recorded: Outcome | None,
    ) -> None:
        """The run has its end: state is swapped in now, hooks are called behind it, then the send is settled.

        `recorded` is the end that is in the journal; None where nobody knows one.
        """
        if self.ending:
            if self.reply.changes is not None:  # the journal was away, and has caught up
                self.reply.changes.over(self, recorded)
            return
        self._fix(settle)
        changes = self.reply.changes
        try:
            if changes is not None:
                changes.over(self, recorded)
        finally:
            if changes is not None and changes.ends_process is not None:  # no further hook is called (TC-20)
                self.settle()
                self._finish()
            else:
                self._sender.spawn(self._tell_end(outcome, error), self.caller.context)

    def _fix(self, settle: Callable[[], object]) -> None:
        self.ending = True
        self._settle = settle
        self.caller.go_on()
        if not self.reply.dead:
            self.reply.phase = ReplyPhase.ENDING

    def settle(self) -> None:
        """Phase 11, at once: a stop does not wait for hooks whose outcome is fixed (AC-82)."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle()

    async def _tell_end(self, outcome: Outcome | Refused, error: BaseException | None) -> None:
        reply = self.reply
        event = ResponseEvent(
            reply,
            reply.thread_id,
            reply.text,
            outcome,
            error,
            ending_of(outcome),
            reply.response_metadata,
            frozenset(self.begun),
            {} if reply.changes is None else dict(reply.changes.commits),
        )
        try:
            for member in reversed(self.members):
                hook = member.hook("on_response")
                if hook is not None:
                    await self._tell(member.key, "on_response", hook, event)
            listener = reply.options["response_listener"]
            if listener is not None:
                await self._tell("", "response_listener", listener, event)
        finally:
            self.settle()
            self._finish()

    async def _tell(self, key: str, name: str, hook: Callable[..., Any], event: ResponseEvent) -> None:
        task = asyncio.current_task()
        try:
            await self.caller.call(key, name, hook, replace(event, hook_errors=tuple(self.failures)))
        except LEAVING:
            raise
        except BaseException as error:
            if is_closing(error, task):
                raise
            self.note(key, name, error)

    def note(self, key: str, name: str, error: BaseException) -> None:
        """A hook failed after the outcome was fixed."""
        self.failures.append(HookFailure(key, name, error))
        self.reply.hook_errors = tuple(self.failures)
        self._sender.stage.notifier.failed(error, name)

    def _finish(self) -> None:
        self.over = True
        if self._sender.around is self:
            self._sender.around = None
        waiters, self._overs = self._overs, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_over(self, caller: HookCaller | None = None) -> None:
        """Waits until nothing more is called for this send; a stop of the caller's send ends the waiting."""
        if self.over:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._overs.append(waiter)
        if caller is None:
            await waiter
        else:
            await caller.wait(waiter)


__all__ = ["Around"]
