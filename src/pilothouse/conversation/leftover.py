"""Steering that a run returned at its end, for the next one (AC-132): read from facts, so a restart loses none."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any, Final

from msgspec import Struct

from ..commands import Command, FollowUp, Steer
from ..events import CommandReceived, InputReturned, StopRequested
from ..messages import Message

given_again: Final[ContextVar[bool]] = ContextVar("pilothouse_given_again", default=False)
"""Steering that is given to the next run has passed the interceptor when it was said first (AC-132)."""


class Leftover(Struct, frozen=True):
    """An input that the head run did not take."""

    run_id: str
    command: Command

    @property
    def message(self) -> Message:
        """What was to be said."""
        body = self.command.body
        assert isinstance(body, Steer | FollowUp)
        return body.message


class Inputs:
    """Folds the facts about inputs of one run."""

    __slots__ = ("_known", "_returned", "_run_id", "_stopped")

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._known: dict[str, Command] = {}
        self._returned: list[str] = []
        self._stopped = False

    def add(self, fact: object) -> None:
        """Takes a fact; others than those about inputs and stops are ignored."""
        if isinstance(fact, CommandReceived):
            if isinstance(fact.command.body, Steer | FollowUp):
                self._known[fact.command.id] = fact.command
        elif isinstance(fact, StopRequested):
            self._stopped = True
        elif isinstance(fact, InputReturned) and fact.reason == "run_ended":
            self._returned.append(fact.command_id)

    def left(self) -> tuple[Leftover, ...]:
        """What was returned although nobody stopped the run, in the order in which it was given."""
        if self._stopped or not self._returned:
            return ()
        returned = set(self._returned)
        return tuple([Leftover(self._run_id, self._known[name]) for name in self._known if name in returned])


def left_over(run_id: str, facts: Iterable[Any]) -> tuple[Leftover, ...]:
    """The same from the facts of a run."""
    inputs = Inputs(run_id)
    for fact in facts:
        inputs.add(fact)
    return inputs.left()


def again(item: Leftover, run_id: str) -> Command:
    """The command for the next run: its id derives from the old one, so that it is given once (RC-36)."""
    return Command(f"{item.command.id[:120]}+{run_id[:60]}", run_id, item.command.body)
