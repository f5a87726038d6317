"""Everything before a request leaves (LP-11): payload, window and budgets, and the record of what will be sent (LP-50)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from operator import is_
from typing import Final, final

import msgspec
from msgspec import Struct

from ..contracts import Provider
from ..core.prices import cost_text
from ..core.window import output_budget, window_of
from ..errors import ConfigError
from ..events import Failed, Incomplete, ModelRequested, Noted, Outcome
from ..messages import JSON, Message, Usage
from ..responses import ModelRequest, ModelSettings
from .compacting import all_messages, replace_context
from .dump import dump_of
from .hooks import HookFailed, OverWindow, Relief
from .payload import Payloads
from .recorder import Entry
from .trail import chain_of
from .work import Work, figures

_encode: Final = msgspec.json.Encoder(order="sorted").encode

PREVIEW: Final = 120
"""Characters of the last message that the manifest shows."""


class Prepared(Struct, frozen=True):
    """A request that may be sent: who gets it, and the facts that are durable before."""

    provider: Provider
    request: ModelRequest
    message_id: str
    facts: tuple[ModelRequested, Noted]
    estimate: int


@final
class Requests:
    """Makes the requests of one run."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._payloads = Payloads(work)
        self._head_of: tuple[object, ...] | None = None
        self._head_bytes = b""
        self._told_tools = ""  # the digest of the tool set that the manifest named last

    async def prepare(self) -> Prepared | Outcome:
        """The next request; or the outcome of a run that may not, or cannot, make one.

        Raises:
            Stopped: the run was stopped meanwhile.
        """
        work = self._work
        if work.requests >= work.plan.limits.requests:
            return Incomplete("limit", "requests")
        try:
            if work.compact:
                work.compact = False
                await self.relieve("asked", work.estimate(), force=True)
            provider = work.plan.provider_of(work.model)
            transforms = work.plan.config.transform_context is not None
            changed = await self._payloads.transformed() if transforms else work.context
            messages, estimate = self._measured(provider, changed)
            window = self._window()
            if window and estimate > window:
                if not await self.relieve("estimate", estimate):
                    return self._overflow(estimate, window)
                changed = await self._payloads.transformed() if transforms else work.context
                messages, estimate = self._measured(provider, changed)
                if estimate > window:
                    return self._overflow(estimate, window)
        except HookFailed as failure:
            return Failed("hook", message=str(failure))
        except ConfigError as error:
            return Failed("config", message=str(error))
        work.check_stop()
        settings = work.request_settings()
        wanted = output_budget(work.model, settings.max_output_tokens, estimate, window)
        permit = work.spending.permit(work.model, wanted, estimate)
        if permit.limit is not None:
            return Incomplete("limit", permit.limit)
        if permit.output != settings.max_output_tokens:
            settings = msgspec.structs.replace(settings, max_output_tokens=permit.output)
        return self._prepared(provider, messages, settings, estimate)

    def _measured(self, provider: Provider, context: Sequence[Message]) -> tuple[Sequence[Message], int]:
        work = self._work
        messages = self._payloads.make(provider, context)
        own = messages if not self._payloads.untouched else work.context
        estimate = work.meter.estimate(own, work.model, work.system_prompt, work.tools.specs)
        return messages, estimate

    def _window(self) -> int:
        return window_of(self._work.model, self._work.plan.config.context_window_cap)

    def heal(self) -> None:
        """Forgets what was found clean, so that the next payload is repaired from its beginning."""
        self._payloads.heal()

    # The window

    async def relieve(self, cause: str, estimate: int, *before: Entry, force: bool = False) -> bool:
        """Asks for a smaller context, at most once a response; True if there is one (LP-13).

        `before` is recorded in front of the change, and only with it.

        Raises:
            Stopped: the run was stopped meanwhile.
        """
        work = self._work
        hook = work.plan.config.over_window_relief
        if hook is None or (work.relieved and not force):
            return False
        work.relieved = work.relieved or not force
        window = self._window()
        await work.recorder.write()
        over = OverWindow(
            list(work.context), estimate, window, cause, work.model, work.tools.specs, work.scope
        )
        try:
            found = await work.hooks.call("over_window_relief", hook, over, returns=(list, tuple, Relief))
        except HookFailed as failure:
            self._note_guard("relief_failed", cause, estimate, window, failure=str(failure))
            return False
        relief = found if isinstance(found, Relief) or found is None else Relief(found)
        if relief is None or not all_messages(work, relief.messages):
            self._note_guard("relief_failed", cause, estimate, window, failure="no smaller list")
            return False
        work.recorder.note(*before)
        replace_context(work, relief.messages, relief.method)
        usage = self._spend(relief)
        used = None if usage is None else figures(usage)
        self._note_guard("relief", cause, estimate, window, method=relief.method, usage=used)
        return True

    def _spend(self, relief: Relief) -> Usage | None:
        """What making the context smaller has used counts like any request (LP-21)."""
        work, usage = self._work, relief.usage
        if usage is None:
            return None
        prices = (relief.model or work.model).prices
        if usage.cost is None and prices is not None:
            usage = msgspec.structs.replace(usage, cost=cost_text(prices, usage))
        work.spend(usage)
        work.spending.charge(usage)
        return usage

    def _overflow(self, estimate: int, window: int) -> Failed:
        self._note_guard("refused", "estimate", estimate, window)
        text = f"the request has about {estimate} tokens, the window of {self._work.model.id} is {window}"
        return Failed("context_overflow", message=text)

    def _note_guard(self, action: str, cause: str, estimate: int, window: int, **more: JSON) -> None:
        figures: dict[str, JSON] = {"guard": "window", "action": action, "cause": cause}
        self._work.recorder.note(
            Noted("loop/guard", {**figures, "estimate": estimate, "window": window, **more})
        )

    # What is recorded

    def _prepared(
        self, provider: Provider, messages: Sequence[Message], settings: ModelSettings, estimate: int
    ) -> Prepared:
        work = self._work
        work.attempt += 1
        work.requests += 1
        message_id = f"{work.run_id}-{work.turn}-{work.attempt}"
        request = ModelRequest(
            work.model,
            messages,
            work.system_prompt,
            work.tools.specs,
            settings,
            work.thread_id,
            work.attempt,
            work.scope.deadline_ms,
        )
        chain = work.trail.chain() if self._payloads.untouched else chain_of(messages)
        digest = sha256(chain.encode() + self._head(settings)).hexdigest()
        requested = ModelRequested(work.turn, work.attempt, message_id, provider.tag, work.model.id, digest)
        return Prepared(
            provider, request, message_id, (requested, self._manifest(request, chain, estimate)), estimate
        )

    def _head(self, settings: ModelSettings) -> bytes:
        """What a request has besides its messages; encoded once for as long as it stays the same."""
        work = self._work
        now = (work.model, work.system_prompt, work.tools.digest, settings)
        known = self._head_of
        if known is None or not all(map(is_, now, known)):
            self._head_of, self._head_bytes = now, _encode(now)
        return self._head_bytes

    def _manifest(self, request: ModelRequest, chain: str, estimate: int) -> Noted:
        """What the model was sent, in figures: its content is in the transcript, or in nobody's hands (LP-50)."""
        work = self._work
        sent: Sequence[Message] = work.context if self._payloads.untouched else request.messages
        last = sent[-1].text if sent else ""
        data: dict[str, JSON] = {
            "messages": len(request.messages),
            "estimate": estimate,
            "chain": chain,
            "last": last if len(last) <= PREVIEW else f"{last[:PREVIEW]}…",
        }
        if work.tools.digest != self._told_tools:
            self._told_tools = work.tools.digest
            data["tools"] = list(work.tools.names)
        if work.plan.config.wire_dump:
            data.update(dump_of(request, work.plan.config.redactor, work.plan.config.wire_dump_limit))
        return Noted("loop/request", data)
