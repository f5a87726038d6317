"""What a terminal shows of an agent while it answers: text once, reasoning dimmed, a tool as one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec import UNSET, json
from rich.console import Console

from ..projection import AgentMessage, AgentToolCall

# Of the control characters a terminal gets only these two from a model; the others could move its cursor.
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)

_RESULT = 200


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return text.translate(_CONTROLS)


def to_nowhere(file: IO[str]) -> None:
    """Lets a stream that cannot be written to swallow what is still to come, what it holds back included."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), file.fileno())


class Paper(Console):
    """What is printed on, with styles as arguments: what a model writes is never read as markup.

    Where it can be printed on no more (the reader of a pipe has left, the disk is full), `lost` is called, once, and
    the rest goes nowhere.
    """

    def __init__(self, lost: Callable[[], object]) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        self._lost = lost

    def print(self, *objects: Any, **options: Any) -> None:
        """As any console's; never raises for what it prints on."""
        try:
            super().print(*objects, **options)
        except OSError:
            to_nowhere(self.file)
            self._lost()

    def on_broken_pipe(self) -> None:
        """A reader that left is no reason to leave from within whatever printed."""
        raise BrokenPipeError


class Screen:
    """Prints what is new in the messages and calls of an agent."""

    def __init__(self, console: Console) -> None:
        self._write = console.print
        self._flush = console.file.flush
        self._texts: dict[str, str] = {}  # what was printed, by message
        self._thoughts: dict[str, int] = {}
        self._begun: set[str] = set()
        self._over: set[str] = set()
        self._reasoning = False
        self._open: str | None = (
            None  # the call whose line the cursor is on: the results of others name theirs again
        )

    def skip(self, messages: Sequence[AgentMessage], calls: Sequence[AgentToolCall]) -> None:
        """What is there already is not printed."""
        for message in messages:
            self._texts[message.id] = message.text
            self._thoughts[message.id] = len(message.reasoning or "")
        self._begun |= {call.id for call in calls}
        self._over |= {call.id for call in calls if _has_ended(call)}

    def messages(self, messages: Sequence[AgentMessage]) -> None:
        """Prints what was added to the answers."""
        for message in messages:
            if message.role == "assistant":
                self._thought(message)
                self._text(message)

    def _thought(self, message: AgentMessage) -> None:
        thought, known = message.reasoning or "", self._thoughts.get(message.id, 0)
        if len(thought) > known:
            self._thoughts[message.id] = len(thought)
            self._reasoning = True
            self._styled(thought[known:], "dim italic")

    def _text(self, message: AgentMessage) -> None:
        text, known = message.text, self._texts.get(message.id, "")
        if text == known or not text:
            return
        self._texts[message.id] = text
        self._end_call()
        self._end_reasoning()
        if text.startswith(known):
            self._styled(text[len(known) :], "")
        else:  # the backend corrected what it had said
            self._styled(f"\n{text}", "")
        self._flush()

    def calls(self, calls: Sequence[AgentToolCall]) -> None:
        """Prints calls that began and results that came."""
        for call in calls:
            if call.status != "pending" and call.id not in self._begun:
                self._begun.add(call.id)
                self._end_reasoning()
                self._styled(f"\n⚙ {call.name}", "cyan")
                self._styled(" …", "")
                self._open = call.id
            if _has_ended(call) and call.id not in self._over:
                self._over.add(call.id)
                if call.id != self._open:
                    self._end_call()
                    self._styled(f"⚙ {call.name}", "cyan")
                self._open = None
                self._styled(f" {call.ledger or call.status} ", "cyan")
                self._styled(f"{_said(call)[:_RESULT]}\n", "dim")

    def _styled(self, text: str, style: str) -> None:
        self._write(plain(text), style=style, end="", soft_wrap=True)

    def _end_call(self) -> None:
        if self._open is not None:
            self._open = None
            self._write()

    def _end_reasoning(self) -> None:
        if self._reasoning:
            self._reasoning = False
            self._write()


def _has_ended(call: AgentToolCall) -> bool:
    return call.result is not UNSET or call.error is not None


def _said(call: AgentToolCall) -> str:
    if call.error is not None:
        return call.error
    if call.result is UNSET:
        return ""
    return call.result if isinstance(call.result, str) else json.encode(call.result).decode()


__all__ = ["Paper", "Screen", "plain"]
