"""The open questions of an agent, asked one at a time: what is decided about each goes out together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import DecodeError, json

from ..projection import AgentToolCall, Interrupt, InterruptAnswer

_YES: Final = frozenset({"y", "yes", "ok"})
_NO: Final = frozenset({"n", "no"})
_LONG: Final = 300


class Questions:
    """A batch of requests while a person answers it.

    Attributes:
        items: what is asked, in order.
        answers: those that were given.
    """

    def __init__(self, items: Sequence[Interrupt], calls: Sequence[AgentToolCall]) -> None:
        self.items = tuple(items)
        self.answers: list[InterruptAnswer] = []
        self._calls = {call.id: call for call in calls}

    @property
    def complete(self) -> bool:
        """Whether each has its answer."""
        return len(self.answers) == len(self.items)

    def shown(self) -> tuple[str, str]:
        """What would run, empty if that is not known; and the question itself."""
        item = self.items[len(self.answers)]
        number = f" ({len(self.answers) + 1} of {len(self.items)})" if len(self.items) > 1 else ""
        said = item.message or item.reason or "it waits for an answer"
        return self._about(item), f"asks{number}: {said}{' [y/n]' if wants_consent(item) else ''}"

    def _about(self, item: Interrupt) -> str:
        call = self._calls.get(item.tool_call_id or "")
        if call is None or not wants_consent(item):
            return ""
        text = f"{call.name} {json.encode(dict(call.args)).decode()}"
        return text if len(text) <= _LONG else f"{text[:_LONG]}…"

    def take(self, line: str) -> bool:
        """Takes a line as the answer to the question that is shown; False if it is none."""
        item = self.items[len(self.answers)]
        if wants_consent(item):
            word = line.lower()
            if word not in _YES | _NO:
                return False
            payload: Any = word in _YES
        else:
            payload = _value(item.response_schema, line)
        self.answers.append(InterruptAnswer(item.id, payload=payload))
        return True

    def dropped(self) -> list[InterruptAnswer]:
        """All of them unanswered, for a backend that cannot be told to stop."""
        return [InterruptAnswer(item.id, "cancelled") for item in self.items]


def wants_consent(item: Interrupt) -> bool:
    """Whether yes or no is the answer."""
    schema = item.response_schema
    properties = schema.get("properties") if isinstance(schema, dict) else None
    return item.reason in ("tool_call", "confirmation") or (
        isinstance(properties, dict) and "approved" in properties
    )


def _value(schema: Any, line: str) -> Any:
    """A line as the value that is wanted: JSON where that is no text."""
    wanted = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if wanted == "string":
        return line
    try:
        return json.decode(line)
    except DecodeError:
        return line


__all__ = ["Questions", "wants_consent"]
