"""Which AG-UI event is legal when: the verifier, for what we read and for what we write (agent-contract §3.15).

Two tables. `LEGAL` says which kinds of event the phase of a stream admits; a kind that is not there is a violation.
`_RULES` says what each event needs of what is open, and opens or closes it. Run ids are not compared: a stream may tell
several runs one after the other, and names other than those of the request are legal on the wire.

The profile `legacy` adds what the 0.0.5x clients cannot take (SV-91).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from msgspec import UNSET

from . import events as agui
from .events import Event, Profile


class Violation(ValueError):
    """An event that is not legal here. The text names it and says why."""

    def __init__(self, event: Event, why: str) -> None:
        self.event, self.why = event, why
        super().__init__(f"{event.type}: {why}")


class Phase(Enum):
    """Where a stream is."""

    NEW = "new"  # nothing was said
    OPEN = "open"  # a run is open
    FINISHED = "finished"  # it finished; it may still turn out to have failed, or another run may follow
    FAILED = "failed"  # it failed; only another run may follow


_ALL: Final = frozenset(agui.TYPES)

LEGAL: Final[Mapping[Phase, frozenset[str]]] = MappingProxyType(
    {
        Phase.NEW: frozenset({"RUN_STARTED", "RUN_ERROR"}),
        Phase.OPEN: _ALL - {"RUN_STARTED"},
        Phase.FINISHED: frozenset({"RUN_STARTED", "RUN_ERROR"}),
        Phase.FAILED: frozenset({"RUN_STARTED"}),
    }
)

_SUBAGENTS: Final = frozenset({"SUBAGENT_STARTED", "SUBAGENT_FINISHED", "SUBAGENT_ERROR"})
_OPERATIONS: Final = MappingProxyType(
    {
        "add": {"path", "value"},
        "remove": {"path"},
        "replace": {"path", "value"},
        "move": {"from", "path"},
        "copy": {"from", "path"},
        "test": {"path", "value"},
    }
)


class Verifier:
    """Follows one stream, event by event. `check` raises; nothing is repaired here.

    Attributes:
        phase: where the stream is.
    """

    def __init__(self, profile: Profile = "1.0") -> None:
        self.phase = Phase.NEW
        self._legacy = profile == "legacy"
        self._forget()

    def _forget(self) -> None:
        """Tracking is reset by each RUN_STARTED."""
        self._open: dict[str, dict[str, str]] = {
            "text message": {},
            "tool call": {},
            "reasoning span": {},
            "reasoning message": {},
        }  # kind -> id -> owner
        self._steps: set[tuple[str, str]] = set()
        self._subagents: dict[str, bool] = {}  # id -> active
        self._owners: dict[str, str] = {}  # text message -> owner

    @property
    def open(self) -> tuple[str, ...]:
        """What is open, in words: nothing may be when a run finishes."""
        found = [f"{kind} {name}" for kind, ids in self._open.items() for name in ids]
        found += [f"step {name}" for _, name in sorted(self._steps)]
        return (*found, *[f"subagent {name}" for name, active in self._subagents.items() if active])

    def closings(self) -> Iterator[Event]:
        """The events that would end what is open, innermost kinds first: nothing of it is guessed."""
        for kind, close in _CLOSERS.items():
            for name, owner in self._open[kind].items():
                yield close(name, subagent_run_id=owner or UNSET)
        for owner, name in sorted(self._steps):
            yield agui.StepFinished(name, subagent_run_id=owner or UNSET)
        for name, active in self._subagents.items():
            if active:
                yield agui.SubagentFinished(subagent_run_id=name)

    def check(self, event: Event) -> None:
        """Takes the next event.

        Raises:
            Violation: it is not legal here; nothing was changed.
        """
        kind = event.type
        if kind not in LEGAL[self.phase]:
            raise Violation(event, _OUT_OF_PHASE[self.phase])
        if self._legacy:
            self._check_legacy(event)
        if (owner := event.subagent_run_id) is not UNSET and kind in _UNOWNED:
            raise Violation(event, f"it cannot belong to a subagent ({owner})")
        rule = _RULES.get(kind)
        if rule is not None:
            rule(self, event)

    def check_all(self, stream: Iterable[Event]) -> None:
        """Takes a whole stream, which must have come to an end."""
        for event in stream:
            self.check(event)
        if self.phase not in (Phase.FINISHED, Phase.FAILED):
            raise ValueError("the stream ended without RUN_FINISHED or RUN_ERROR")

    def _check_legacy(self, event: Event) -> None:
        if event.type in _SUBAGENTS or event.subagent_run_id is not UNSET:
            raise Violation(event, "0.0.5x clients know no subagents")
        if isinstance(event, agui.RunFinished):
            outcome = event.outcome
            if isinstance(outcome, agui.CancelledEnd):
                raise Violation(event, "0.0.5x clients know no cancelled outcome")
            if isinstance(outcome, agui.Success) and outcome.pending_tool_call_ids is not UNSET:
                raise Violation(event, "0.0.5x clients know no pending tool calls")

    # Rules

    def _started(self, event: agui.RunStarted) -> None:
        self._forget()
        self.phase = Phase.OPEN

    def _finished(self, event: agui.RunFinished) -> None:
        if left := self.open:
            raise Violation(event, f"still open: {', '.join(left)}")
        if isinstance(event.outcome, agui.Interrupted) and not event.outcome.interrupts:
            raise Violation(event, "an interrupt outcome names at least one interrupt")
        self.phase = Phase.FINISHED

    def _failed(self, event: agui.RunError) -> None:
        self.phase = Phase.FAILED

    def _open_one(self, kind: str, name: str, event: Event) -> None:
        if name in self._open[kind]:
            raise Violation(event, f"{kind} {name} is open already")
        self._open[kind][name] = _owner(event)

    def _need(self, kind: str, name: str, event: Event) -> None:
        owner = self._open[kind].get(name)
        if owner is None:
            raise Violation(event, f"{kind} {name} is not open")
        if (named := event.subagent_run_id) is not UNSET and named != owner:
            raise Violation(event, f"{kind} {name} belongs to {owner or 'the agent'}")

    def _close(self, kind: str, name: str, event: Event) -> None:
        self._need(kind, name, event)
        del self._open[kind][name]

    def _text_start(self, event: agui.TextMessageStart) -> None:
        known = self._owners.get(event.message_id)
        if known is not None and event.subagent_run_id is not UNSET and event.subagent_run_id != known:
            raise Violation(event, f"text message {event.message_id} belongs to {known or 'the agent'}")
        self._open_one("text message", event.message_id, event)
        self._owners.setdefault(event.message_id, _owner(event))

    def _call_start(self, event: agui.ToolCallStart) -> None:
        parent = event.parent_message_id
        owner = None if parent is UNSET else self._owners.get(parent)
        if owner is not None and event.subagent_run_id is not UNSET and event.subagent_run_id != owner:
            raise Violation(event, f"its parent message {parent} belongs to {owner or 'the agent'}")
        self._open_one("tool call", event.tool_call_id, event)

    def _step_started(self, event: agui.StepStarted) -> None:
        step = (_owner(event), event.step_name)
        if step in self._steps:
            raise Violation(event, f"step {event.step_name} is open already")
        self._steps.add(step)

    def _step_finished(self, event: agui.StepFinished) -> None:
        step = (_owner(event), event.step_name)
        if step not in self._steps:
            raise Violation(event, f"step {event.step_name} is not open")
        self._steps.remove(step)

    def _operations(self, event: agui.StateDelta | agui.ActivityDelta) -> None:
        for operation in event.delta if isinstance(event, agui.StateDelta) else event.patch:
            needed = _OPERATIONS.get(operation.get("op", ""))
            if needed is None or not needed <= operation.keys():
                raise Violation(event, f"{operation} is no operation of RFC 6902")
            for name in ("path", "from"):
                pointer = operation.get(name, "")
                if not isinstance(pointer, str) or (pointer and pointer[0] != "/"):
                    raise Violation(event, f"{pointer!r} is no JSON pointer")

    def _subagent_started(self, event: agui.SubagentStarted) -> None:
        name = self._named(event)
        if name in self._subagents:
            raise Violation(event, f"subagent {name} was started before")
        parent = event.parent_subagent_run_id
        if parent is not UNSET and parent not in self._subagents:
            raise Violation(event, f"its parent {parent} was not started")
        self._subagents[name] = True

    def _subagent_ended(self, event: agui.SubagentFinished | agui.SubagentError) -> None:
        name = self._named(event)
        if not self._subagents.get(name):
            raise Violation(event, f"subagent {name} is not active")
        self._subagents[name] = False

    def _named(self, event: Event) -> str:
        name = event.subagent_run_id
        if name is UNSET:
            raise Violation(event, "it names no subagent")
        return name


def _owner(event: Event) -> str:
    return "" if event.subagent_run_id is UNSET else event.subagent_run_id


def _opens(kind: str) -> Callable[[Verifier, Any], None]:
    return lambda verifier, event: verifier._open_one(kind, event.message_id, event)  # noqa: SLF001


def _needs(kind: str, field: str) -> Callable[[Verifier, Any], None]:
    return lambda verifier, event: verifier._need(kind, getattr(event, field), event)  # noqa: SLF001


def _closes(kind: str, field: str) -> Callable[[Verifier, Any], None]:
    return lambda verifier, event: verifier._close(kind, getattr(event, field), event)  # noqa: SLF001


_OUT_OF_PHASE: Final = MappingProxyType(
    {
        Phase.NEW: "a stream begins with RUN_STARTED",
        Phase.OPEN: "the run before it has not ended",
        Phase.FINISHED: "the run has finished",
        Phase.FAILED: "the run has failed",
    }
)

_CLOSERS: Final[Mapping[str, Callable[..., Event]]] = MappingProxyType(
    {
        "tool call": agui.ToolCallEnd,
        "reasoning message": agui.ReasoningMessageEnd,
        "reasoning span": agui.ReasoningEnd,
        "text message": agui.TextMessageEnd,
    }
)

_UNOWNED: Final = frozenset({"RUN_STARTED", "RUN_FINISHED", "RUN_ERROR", "MESSAGES_SNAPSHOT"})

_RULES: Final[Mapping[str, Callable[[Verifier, Any], None]]] = MappingProxyType(
    {
        "RUN_STARTED": Verifier._started,  # noqa: SLF001 - the class's own table
        "RUN_FINISHED": Verifier._finished,  # noqa: SLF001
        "RUN_ERROR": Verifier._failed,  # noqa: SLF001
        "TEXT_MESSAGE_START": Verifier._text_start,  # noqa: SLF001
        "TEXT_MESSAGE_CONTENT": _needs("text message", "message_id"),
        "TEXT_MESSAGE_END": _closes("text message", "message_id"),
        "TOOL_CALL_START": Verifier._call_start,  # noqa: SLF001
        "TOOL_CALL_ARGS": _needs("tool call", "tool_call_id"),
        "TOOL_CALL_END": _closes("tool call", "tool_call_id"),
        "REASONING_START": _opens("reasoning span"),
        "REASONING_END": _closes("reasoning span", "message_id"),
        "REASONING_MESSAGE_START": _opens("reasoning message"),
        "REASONING_MESSAGE_CONTENT": _needs("reasoning message", "message_id"),
        "REASONING_MESSAGE_END": _closes("reasoning message", "message_id"),
        "STEP_STARTED": Verifier._step_started,  # noqa: SLF001
        "STEP_FINISHED": Verifier._step_finished,  # noqa: SLF001
        "STATE_DELTA": Verifier._operations,  # noqa: SLF001
        "ACTIVITY_DELTA": Verifier._operations,  # noqa: SLF001
        "SUBAGENT_STARTED": Verifier._subagent_started,  # noqa: SLF001
        "SUBAGENT_FINISHED": Verifier._subagent_ended,  # noqa: SLF001
        "SUBAGENT_ERROR": Verifier._subagent_ended,  # noqa: SLF001
    }
)
"""What an event needs of what is open. A kind without a rule is legal whenever a run is open."""


__all__ = ["LEGAL", "Phase", "Verifier", "Violation"]
