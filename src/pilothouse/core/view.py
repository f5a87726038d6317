"""The bounded view of a run: what hosts and interfaces are shown of its state (RC-30)."""

from __future__ import annotations

from typing import Final, TypeVar

from msgspec.structs import replace

from ..commands import CommandKind, Request
from ..messages import Value
from ..records import CallView, Descriptor, Ownership, Registration, RunView, UnknownInfo
from .canonical import digest_of
from .run import STATE_NAMES, Phase, RunState

TEXT_LIMIT: Final = 512
V = TypeVar("V", bound=Value)

_INPUTS: Final[tuple[CommandKind, ...]] = ("steer", "follow_up", "withdraw", "replace")


def view(
    state: RunState,
    registration: Registration,
    *,
    fence: int,
    ownership: Ownership,
    descriptor: Descriptor | None,
) -> RunView:
    """Projects a state. `descriptor` is None where the run cannot be controlled here; then nothing can be asked.

    An orphan is shown as unknown without a write, unless it is at rest (RC-50).
    """
    spec = registration.spec
    lost = ownership == "orphaned" and not state.resting and state.phase is not Phase.TERMINAL
    phase = Phase.UNKNOWN if lost else state.phase
    return RunView(
        spec.run_id,
        state.thread_id or spec.thread_id,
        STATE_NAMES[phase],
        "unknown" if lost and state.outcome is None else state.status,
        ownership,
        state.seq,
        state.chain,
        state.first_chain[:8],
        fence,
        registration.binding,
        registration.descriptor_digest,
        tenant=spec.tenant,
        parent=spec.parent,
        turn=state.turn,
        requests=_requests(state) if state.requests else (),
        queued=tuple(state.queued),
        calls=_calls(state) if state.calls else (),
        outcome=None if state.outcome is None else _bounded(state.outcome),
        delivery=state.delivery,
        usage=state.usage,
        unknown=_unknown(state, descriptor, lost=lost),
        can=_can(phase, state, descriptor),
        created_at_ms=registration.created_at_ms,
        updated_at_ms=state.updated_at_ms,
    )


def _requests(state: RunState) -> tuple[Request, ...]:
    return tuple([_bounded(request) for _, request in sorted(state.requests.items())])


def _calls(state: RunState) -> tuple[CallView, ...]:
    return tuple(
        [
            CallView(call.call_id, call.tool, call.state, call.attempt)  # type: ignore[arg-type]
            for _, call in sorted(state.calls.items())
        ]
    )


def _bounded(value: V) -> V:
    """A value of the vocabulary whose texts are not longer than a view's may be."""
    long = {
        name: text[:TEXT_LIMIT]
        for name in value.__struct_fields__
        if type(text := getattr(value, name)) is str and len(text) > TEXT_LIMIT
    }
    return replace(value, **long) if long else value


def view_digest(found: RunView) -> str:
    """Covers what is folded from facts only: who owns the run and what can be asked are left out."""
    return digest_of(
        replace(found, ownership="none", fence=0, can=(), unknown=None, state="accepted", status="accepted")
    )


def _unknown(state: RunState, descriptor: Descriptor | None, *, lost: bool) -> UnknownInfo | None:
    if state.loss is None and not lost:
        return None
    level = None if descriptor is None else descriptor.recovery
    ways: list[str] = []
    if level in ("journal", "replay"):
        ways.append("recover")
    if level == "query":
        ways.append("check_status")
    ways.append("abandon")
    if state.phase is Phase.TERMINAL:
        ways = []
    cause, reason = ("owner_lost", "the process that drove it is gone")
    if state.loss is not None:
        cause, reason = state.loss.cause, state.loss.reason
    return UnknownInfo(cause, reason[:TEXT_LIMIT], state.loss_seq, tuple(ways))  # type: ignore[arg-type]


def _can(phase: Phase, state: RunState, descriptor: Descriptor | None) -> tuple[CommandKind, ...]:
    if descriptor is None or phase in (Phase.UNKNOWN, Phase.TERMINAL):
        return ()
    declared = set(descriptor.commands)
    if descriptor.cancel == "none":
        declared.discard("cancel")
    found: list[CommandKind] = []
    if phase is not Phase.STOPPING:
        found += [kind for kind in _INPUTS if kind in declared]
        if state.requests and "answer" in declared:
            found.append("answer")
    if "cancel" in declared:
        found.append("cancel")
    return tuple(found)
