"""The phases of an interrupt batch: what was asked, who answers it, and what is known of the answer (agent-contract §3.9).

`MOVES` is the whole machine; a step that is not in the row of a phase is illegal there. `Interrupts` holds the batch,
its generation and the attempt that answers it, and checks answers. It knows no time, no transport and no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET

from ..agent_errors import RequestPending, ResumeInvalid, StaleInterrupt
from ..messages import JSON, Value
from ..projection import Interrupt, InterruptAnswer, InterruptPhase


class Step(Enum):
    """What can happen to a batch."""

    SEEN = "the run asks"
    BOUNDARY = "the run that asked is at its boundary"
    VOID = "the run that asked failed: nothing can be answered"
    CLAIM = "a decision owns the batch"
    SENT = "it left, or may have left, this process"
    UNSENT = "it provably never left"
    STARTED = "the backend began to work on it"
    DONE = "the run that was resumed ended"
    FAILED = "the run that was resumed failed"
    LOST = "nobody saw what became of it"
    RESTORED_DONE = "the backend says that it is over"
    RESTORED_PENDING = "the backend says that it still waits"
    CLOSED = "the backend closed the batch itself"


_RECONCILED: Final = {Step.RESTORED_DONE: "none", Step.RESTORED_PENDING: "pending", Step.CLOSED: "none"}

# fmt: off
MOVES: Final[Mapping[InterruptPhase, Mapping[Step, InterruptPhase]]] = MappingProxyType({
    "none": {Step.SEEN: "collecting"},
    "collecting": {
        Step.SEEN: "collecting", Step.BOUNDARY: "pending", Step.VOID: "none", Step.LOST: "none",
        Step.CLOSED: "none",
    },
    "pending": {Step.CLAIM: "claimed", Step.VOID: "none", Step.CLOSED: "none"},
    "claimed": {Step.SENT: "resuming", Step.UNSENT: "pending", Step.LOST: "uncertain"},
    "resuming": {
        Step.STARTED: "acknowledged", Step.UNSENT: "pending", Step.LOST: "uncertain", Step.FAILED: "uncertain",
    },
    "acknowledged": {
        Step.DONE: "none", Step.SEEN: "collecting", Step.FAILED: "recovery-required", Step.LOST: "uncertain",
    },
    "uncertain": _RECONCILED,  # type: ignore[dict-item]
    "recovery-required": _RECONCILED,  # type: ignore[dict-item]
})
"""phase -> step -> phase."""
# fmt: on

RESTORED: Final[Mapping[InterruptPhase, InterruptPhase]] = MappingProxyType(
    {
        "claimed": "uncertain",
        "resuming": "uncertain",
        "acknowledged": "recovery-required",
        "collecting": "pending",
    }
)
"""What a phase becomes when it is read from a store: whoever was at work then is gone."""


class IllegalStep(RuntimeError):
    """A step that its phase does not admit: a bug of the caller."""


class Decision(Value):
    """The one answer that owns a batch: what was sent stays the same, byte for byte, under the same run id."""

    id: str
    run_id: str
    body: str


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """A batch in a store."""

    version: int
    phase: InterruptPhase
    generation: int
    batch: tuple[Interrupt, ...]
    decision: Decision | None = None


class Interrupts:
    """One batch at a time.

    Attributes:
        phase: where it is.
        batch: what is asked.
        generation: rises with each new batch, even if its ids were used before.
        decision: what answers it, or answered it without having been sent.
        raised_by: id of the run that asked.
        native: it was told in the form that is to be answered natively (AG-210).
    """

    def __init__(self) -> None:
        self.phase: InterruptPhase = "none"
        self.batch: tuple[Interrupt, ...] = ()
        self.generation = 0
        self.decision: Decision | None = None
        self.raised_by = ""
        self.native = False

    def step(self, step: Step) -> None:
        """Takes one step.

        Raises:
            IllegalStep: the phase does not admit it.
        """
        after = MOVES[self.phase].get(step)
        if after is None:
            raise IllegalStep(f"{step.name} is illegal while the batch is {self.phase}")
        self.phase = after
        if after == "none":
            self.batch, self.decision, self.native = (), None, False

    def admits(self, step: Step) -> bool:
        """Whether the step is legal now."""
        return step in MOVES[self.phase]

    def step_if(self, step: Step) -> bool:
        """Takes a step that the phase may not admit; whether it did."""
        if admitted := self.admits(step):
            self.step(step)
        return admitted

    def see(self, batch: Sequence[Interrupt], run_id: str, *, native: bool) -> None:
        """The run asks.

        Two tellings of one pause are merged, the native one wins; a late one of a batch that is being answered means
        nothing (AG-135, AG-136).

        Raises:
            ValueError: the batch is empty or names an id twice.
        """
        if not batch or len({item.id for item in batch}) != len(batch):
            raise ValueError("a batch of interrupts names at least one, and none twice")
        if self.phase in ("pending", "claimed", "resuming", "uncertain", "recovery-required"):
            same_run = run_id == self.raised_by
            if self.phase == "pending" and same_run and native and not self.native:
                self.batch, self.native = tuple(batch), True
            return
        fresh = self.phase != "collecting"
        if not fresh and self.native and not native:
            return
        self.step(Step.SEEN)
        self.raised_by, self.native, self.decision = run_id, native, None
        self.generation += fresh
        self.batch = tuple(batch)

    def restore(self, batch: Sequence[Interrupt], run_id: str) -> None:
        """A batch that the backend's record holds, or holds again."""
        if tuple(batch) == self.batch and self.phase == "pending":
            return
        if not batch:
            self.phase, self.batch, self.decision = "none", (), None
            return
        self.phase, self.batch, self.decision, self.native = "pending", tuple(batch), None, True
        self.raised_by = run_id
        self.generation += 1

    def check_open(self, action: str) -> None:
        """Refuses an action that is no answer.

        Raises:
            RequestPending: a batch is open, in whatever phase.
        """
        if self.phase != "none":
            raise RequestPending(action, [item.id for item in self.batch], self.phase)

    def check(
        self,
        value: object,
        *,
        now: datetime,
        generation: int | None = None,
        problems_of: Callable[[JSON, Mapping[str, JSON]], list[str]],
    ) -> tuple[InterruptAnswer, ...]:
        """The answers that a `resume` value holds, each checked; nothing is changed.

        Raises:
            StaleInterrupt: it was meant for another batch.
            RequestPending: a decision owns the batch already, or an unsent one is kept (`retry` repeats that).
            ResumeInvalid: with one reason an id.
        """
        if generation is not None and generation != self.generation:
            raise StaleInterrupt(generation, self.generation)
        if self.phase == "none":
            raise ResumeInvalid({"": "no request is open"})
        if self.phase != "pending" or self.decision is not None:
            kept = "kept for retry()" if self.phase == "pending" else self.phase
            raise RequestPending("answer again", [item.id for item in self.batch], kept)
        by_id = {item.id: item for item in self.batch}
        answers = tuple([_spelled_out(by_id.get(item.id), item) for item in self._answers(value)])
        problems: dict[str, str] = {}
        for answer in answers:
            asked = by_id.get(answer.id)
            if asked is None:
                problems[answer.id] = "no such request is open"
            elif answer.id in problems or sum(other.id == answer.id for other in answers) > 1:
                problems[answer.id] = "answered more than once"
            elif why := _wrong(asked, answer, now, problems_of):
                problems[answer.id] = why
        answered = {answer.id for answer in answers}
        problems |= {name: "not answered" for name in by_id if name not in answered}
        if problems:
            raise ResumeInvalid(problems)
        return answers

    def _answers(self, value: object) -> tuple[InterruptAnswer, ...]:
        if isinstance(value, InterruptAnswer):
            return (value,)
        if isinstance(value, list | tuple) and (
            not value or all(isinstance(item, InterruptAnswer) for item in value)
        ):
            if not value:
                raise ResumeInvalid({"": "the list of answers is empty"})
            return tuple(value)
        if len(self.batch) != 1:
            raise ResumeInvalid(
                {"": f"{len(self.batch)} requests are open: give a list of InterruptAnswer, one each"}
            )
        return (InterruptAnswer(self.batch[0].id, payload=value),)

    # Keeping

    def dump(self) -> bytes:
        """As a record for a store."""
        return msgspec.json.encode(_Stored(1, self.phase, self.generation, self.batch, self.decision))

    def load(self, record: bytes) -> None:
        """Takes a record over, with the phase that it has for somebody who comes later.

        Raises:
            ValueError: it is of a shape that is not known.
        """
        try:
            stored = msgspec.json.decode(record, type=_Stored)
        except msgspec.DecodeError as error:
            raise ValueError(f"a stored interrupt batch of unknown shape: {error}") from error
        if stored.version != 1 or (stored.phase == "none") != (not stored.batch):
            raise ValueError("a stored interrupt batch of unknown shape")
        self.phase = RESTORED.get(stored.phase, stored.phase)
        self.batch, self.generation, self.decision = stored.batch, stored.generation, stored.decision
        self.native = True


def diagram() -> str:
    """The table as a Mermaid state diagram; the docs hold it and a test compares."""
    lines = ["stateDiagram-v2", "    [*] --> none"]
    for phase, row in MOVES.items():
        moves: dict[str, list[str]] = {}
        for step, to in row.items():
            if to != phase:
                moves.setdefault(to, []).append(step.value.replace(":", ","))
        lines += [f"    {_node(phase)} --> {_node(to)}: {'; '.join(said)}" for to, said in moves.items()]
    return "\n".join(lines) + "\n"


def _node(phase: str) -> str:
    return phase.replace("-", "_")


def _spelled_out(asked: Interrupt | None, answer: InterruptAnswer) -> InterruptAnswer:
    """True and False to a question whose answer is an object with `approved` (AG-142)."""
    schema = None if asked is None else asked.response_schema
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    wants = isinstance(properties, Mapping) and properties.get("approved", {}).get("type") == "boolean"
    if wants and isinstance(answer.payload, bool):
        return InterruptAnswer(answer.id, answer.status, {"approved": answer.payload})
    return answer


def _wrapped(schema: Mapping[str, JSON]) -> dict[str, JSON]:
    """So that a problem names the payload; local references go on pointing into the schema itself."""
    definitions = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    return {"type": "object", "properties": {"payload": schema}, **definitions}


def _wrong(
    asked: Interrupt,
    answer: InterruptAnswer,
    now: datetime,
    problems_of: Callable[[JSON, Mapping[str, JSON]], list[str]],
) -> str:
    if answer.status == "cancelled":
        return "" if answer.payload is UNSET else "a cancelled answer has no payload"
    if asked.expires_at is not None and asked.expires_at <= now:
        return "it has expired and can only be cancelled"
    if isinstance(asked.response_schema, Mapping) and answer.payload is not UNSET:
        return "; ".join(problems_of({"payload": answer.payload}, _wrapped(asked.response_schema)))
    return ""


__all__ = ["MOVES", "RESTORED", "Decision", "IllegalStep", "Interrupts", "Step", "diagram"]
