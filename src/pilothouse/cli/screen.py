"""What a terminal shows of an agent while it answers: text once, reasoning dimmed, a tool as one line."""

from __future__ import annotations

from collections.abc import Sequence

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
        self._earlier: set[str] = set()  # calls whose line was printed before: their result names them again

    def skip(self, messages: Sequence[AgentMessage], calls: Sequence[AgentToolCall]) -> None:
        """What is there already is not printed."""
        for message in messages:
            self._texts[message.id] = message.text
            self._thoughts[message.id] = len(message.reasoning or "")
        self._begun |= {call.id for call in calls}
        self._over |= {call.id for call in calls if _has_ended(call)}
        self._earlier = self._begun - self._over

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
            if _has_ended(call) and call.id not in self._over:
                self._over.add(call.id)
                if call.id in self._earlier:
                    self._styled(f"⚙ {call.name}", "cyan")
                self._styled(f" {call.ledger or call.status} ", "cyan")
                self._styled(f"{_said(call)[:_RESULT]}\n", "dim")

    def _styled(self, text: str, style: str) -> None:
        self._write(plain(text), style=style, end="", soft_wrap=True)

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


__all__ = ["Screen", "plain"]
