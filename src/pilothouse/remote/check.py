"""Asking a backend what became of a run: our control API, or a function of the host (AG-115 … AG-121)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlencode

import msgspec

from ..agent_errors import AgentError
from ..agents.answers import interrupt_of
from ..commands import Request
from ..core.agui.events import AGUIMessage
from ..core.agui.events import Interrupt as WireInterrupt
from ..core.agui.told import interrupt_of as told_interrupt
from ..core.agui.told import told
from ..core.classify import of_kind
from ..core.display import Told
from ..messages import JSON
from ..projection import AgentMessage, Interrupt, Reconciled, ReconcileRequest
from .control import RunControlClient

Reconcile: TypeAlias = Callable[[ReconcileRequest], Awaitable[Reconciled]]


class Verdict(NamedTuple):
    """What a backend says of a run. `over` means that it ended without failing."""

    kind: Literal["over", "waiting", "failed", "running", "unknown"]
    messages: list[Told] | None = None
    state: dict[str, JSON] | None = None
    batch: tuple[Interrupt, ...] = ()
    error: AgentError | None = None


class Hydrated(NamedTuple):
    """A thread as our server has it; `run_id` of the run that lives or waits."""

    messages: list[Told]
    batch: tuple[Interrupt, ...]
    run_id: str


async def ask_control(control: RunControlClient, url: str, thread_id: str, run_id: str) -> Verdict:
    """Reads the view of the run, and what the thread holds where that is an answer.

    Raises:
        AgentError: it could not be asked.
    """
    try:
        view = await control.run(run_id)
    except AgentError as error:
        if error.status == 404:
            return Verdict("unknown")
        raise
    status, outcome = str(view.get("status")), view.get("outcome") or {}
    if status == "unknown" and not outcome.get("settled"):
        return Verdict("unknown")
    found = await hydrated(control, url, thread_id)
    if status == "failed":
        after = outcome.get("retry_after_ms")
        failure = of_kind(
            str(outcome.get("kind")),
            str(outcome.get("message") or outcome.get("kind")),
            code=outcome.get("code"),
            retryable=bool(outcome.get("retryable")),
            retry_after=None if after is None else after / 1000,
        )
        return Verdict("failed", found.messages, error=failure)
    if status == "waiting":
        requests = [msgspec.convert(item, Request) for item in view.get("requests") or []]
        batch = tuple([interrupt_of(item) for item in requests if item.kind != "external"])
        return Verdict("waiting" if batch else "over", found.messages, batch=batch)
    if status in ("accepted", "running", "stopping"):
        return Verdict("running") if view.get("live") else Verdict("unknown")
    return Verdict("over", found.messages)


async def hydrated(control: RunControlClient, url: str, thread_id: str) -> Hydrated:
    """The thread as the server shows it to a client that comes."""
    found = await control.get(f"{url}?{urlencode({'threadId': thread_id, 'messages': 'agui'})}")
    messages = msgspec.convert(found.get("messages") or [], list[AGUIMessage])
    waiting: Mapping[str, Any] = found.get("interrupts") or {}
    pending = msgspec.convert(waiting.get("pending") or [], list[WireInterrupt])
    live: Mapping[str, Any] = found.get("activeRun") or {}
    run_id = str(waiting.get("runId") or live.get("runId") or "")
    return Hydrated(told(messages), tuple([told_interrupt(item) for item in pending]), run_id)


async def ask_reconcile(
    reconcile: Reconcile, thread_id: str, run_id: str, batch: tuple[Interrupt, ...], generation: int
) -> Verdict:
    """Asks the host's function; an answer that contradicts itself is none (AG-139).

    Raises:
        ValueError: a new batch without a newer generation, or one with a status that leaves none.
    """
    found = await reconcile(ReconcileRequest(thread_id, run_id, batch, generation))
    if found.batch and (found.status != "completed" or found.generation <= generation):
        raise ValueError("a new batch comes with status completed and a larger generation")
    if found.status in ("unknown", "acknowledged"):
        return Verdict("unknown")
    messages = None if found.messages is None else [told_message(item) for item in found.messages]
    state = found.state if isinstance(found.state, dict) else None
    if found.status == "pending":
        return Verdict("waiting", messages, state)
    return Verdict("waiting" if found.batch else "over", messages, state, found.batch)


def told_message(message: AgentMessage) -> Told:
    """A message that the host gives, as a backend would tell it."""
    return Told(
        message.id,
        message.role,
        message.content,
        message.reasoning,
        tool_call_id=message.tool_call_id,
        name=message.name,
        run_id=message.run_id,
        extra=message.extra,
    )


def join_url(url: str, thread_id: str, run_id: str) -> str:
    """Where a run is joined from its start."""
    return f"{url}?{urlencode({'runId': run_id, 'threadId': thread_id, 'offset': '-1'})}"


__all__ = [
    "Hydrated",
    "Reconcile",
    "Verdict",
    "ask_control",
    "ask_reconcile",
    "hydrated",
    "join_url",
    "told_message",
]
