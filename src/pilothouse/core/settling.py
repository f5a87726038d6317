"""What the writer must put in front of a fact in the same append, and which event id a fact has.

The settling of everything open before an end (RC-27), the implied acceptance of a command whose effect a fact is
(RC-22), and `run_started` in front of a runtime's first fact. All pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from ..events import (
    AnyFact,
    CallFinished,
    CallObserved,
    CallProposed,
    CallStarted,
    CommandAnswered,
    CommandReceived,
    Completed,
    Failed,
    Incomplete,
    InputReturned,
    Lane,
    MessageAdded,
    ModelAttemptEnded,
    ModelRequested,
    OutputAdded,
    PartialSaved,
    RequestClosed,
    RequestOpened,
    RequestResolved,
    RunAbandoned,
    RunAccepted,
    RunEnded,
    RunStarted,
    StartRefused,
    StopRequested,
    Truncated,
    TurnEnded,
    TurnStarted,
)
from ..records import Draft
from . import calls as ledger
from .rules import HOST_PREFIX
from .run import HOST, RUNTIME, Phase, RunState

# What the writer puts in front

SETTLED: Final = frozenset[type]({RunEnded, RunAbandoned, StartRefused})
"""Ends: what is open is settled in front of them."""


def expand(state: RunState, draft: Draft, lane: Lane) -> list[tuple[Draft, Lane]]:
    """What must stand before this draft in the same append; `state` is the state right before it.

    `run_started` before a runtime's first fact; the implied acceptance of a command whose effect this is (RC-22);
    the settling of everything open before an end (RC-27).
    """
    fact = draft.fact
    front: list[tuple[Draft, Lane]] = []
    if lane == RUNTIME and not state.started and not isinstance(fact, RunStarted):
        early_end = isinstance(fact, RunEnded) and isinstance(fact.outcome, Incomplete | Failed)
        if not early_end and state.phase in (Phase.ACCEPTED, Phase.STOPPING):
            front.append((Draft(RunStarted()), RUNTIME))
    if (
        draft.causation is not None
        and isinstance(fact, MessageAdded | RequestResolved)
        and (command := state.commands.get(draft.causation)) is not None
        and not command.answer
    ):
        answer = CommandAnswered(command.command.id, "accepted", implied=True)
        front.append((Draft(answer, causation=command.command.id), HOST))
    if type(fact) in SETTLED:
        front += [(settling, HOST) for settling in settle(state, fact)]  # type: ignore[arg-type]
    return front


def settle(state: RunState, end: RunEnded | RunAbandoned | StartRefused) -> Iterable[Draft]:
    """The facts that close what is open before an end, so that no reader has to infer ends (RC-27)."""
    completed = isinstance(end, RunEnded) and isinstance(end.outcome, Completed | Truncated)
    for call in state.calls.values():
        if completed and call.mediated:
            continue  # judged: a completion with an open mediated call is a violation
        yield Draft(ledger.settle(call, "run_ended", by=HOST))
    if not completed:
        for request_id in state.requests:
            yield Draft(RequestClosed(request_id, "run_ended"))
    for command_id in state.left_over():
        yield Draft(InputReturned(command_id, "run_ended"), causation=command_id)


_IDS: Final[dict[type, Callable[[Any], str]]] = {
    RunAccepted: lambda _: "accepted",
    StartRefused: lambda _: "end",
    RunStarted: lambda _: "started",
    CommandReceived: lambda fact: f"command:{fact.command.id}",
    CommandAnswered: lambda fact: f"command:{fact.command_id}:answer",
    StopRequested: lambda _: "stop",
    TurnStarted: lambda fact: f"turn:{fact.turn}:started",
    TurnEnded: lambda fact: f"turn:{fact.turn}:ended",
    ModelRequested: lambda fact: f"turn:{fact.turn}:request:{fact.attempt}",
    ModelAttemptEnded: lambda fact: f"turn:{fact.turn}:request:{fact.attempt}:end",
    MessageAdded: lambda fact: f"message:{fact.message.id}",
    PartialSaved: lambda fact: (
        f"partial:{fact.message_id}:{fact.part}:{fact.index}:{fact.offset if fact.text else 'named'}"
    ),
    OutputAdded: lambda fact: f"output:{fact.output_id}",
    CallProposed: lambda fact: f"call:{fact.call_id}:proposed",
    CallStarted: lambda fact: f"call:{fact.call_id}:started:{fact.attempt}",
    CallObserved: lambda fact: f"call:{fact.call_id}:observed:{fact.attempt}",
    CallFinished: lambda fact: f"call:{fact.call_id}:finished",
    RequestOpened: lambda fact: f"request:{fact.request.id}",
    RequestResolved: lambda fact: f"request:{fact.request_id}:end",
    RequestClosed: lambda fact: f"request:{fact.request_id}:end",
    InputReturned: lambda fact: f"command:{fact.command_id}:returned",
    RunAbandoned: lambda _: "end",
    RunEnded: lambda _: "end",
}


def event_id_of(fact: AnyFact, seq: int, lane: Lane = RUNTIME) -> str:
    """The event id of a fact that was given none: what it names, so that the store itself refuses a second (RC-13).

    Facts that name nothing (notes, losses, …) are told apart by their number. What the host writes has ids that no
    runtime can take.
    """
    make = _IDS.get(type(fact))
    made = f"{fact.kind}@{seq}" if make is None else make(fact)
    return HOST_PREFIX + made if lane == HOST else made
