"""`pilothouse chat`: a conversation in the terminal."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from ..conversation.controller import AgentController
from ..conversation.extras import Refused
from ..conversation.reply import Reply
from ..errors import NothingToDo, UsageError
from ..events import (
    CallFinished,
    CallStarted,
    Completed,
    Delta,
    MessageAdded,
    PartialSaved,
    ReasoningTold,
    RequestOpened,
    TextTold,
    Truncated,
)
from ..journal.sqlite import SQLiteJournal
from ..messages import Text
from ..runs.controller import RunController
from .agents import Agents, template_of
from .explain import ended, explain

HELP = """/retry  answer the last message again     /new     a new thread
/quit   leave (or Ctrl-D)                 /thread  this thread's id
Ctrl-C  stop the answer                   /help    this"""


def chat(target: str | None, *, model: str | None, db: Path, thread: str | None, message: str | None) -> None:
    """Chats until Ctrl-D, or sends one message."""
    raise typer.Exit(asyncio.run(_chat(target, model, db, thread, message)))


async def _chat(
    target: str | None, model: str | None, db: Path, thread: str | None, message: str | None
) -> int:
    def say(text: str) -> None:
        typer.echo(text, err=True)

    async with SQLiteJournal(db) as journal:
        await journal.open()
        async with Agents(target, model, say) as definition:
            template = template_of(definition)
            async with RunController(template.runtime, journal=journal) as runs:
                terminal = Terminal(template, runs)
                await terminal.open(thread)
                if message is not None:
                    return await terminal.once(message)
                await terminal.talk()
    return 0


class Terminal:
    """Reads lines, prints answers; Ctrl-C stops the answer that is being written."""

    def __init__(self, template: AgentController, runs: RunController) -> None:
        self._template = template
        self._runs = runs
        # Styles are arguments: what a model writes is never read as markup.
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._agent = template

    async def open(self, thread: str | None) -> None:
        """Opens a thread, or begins one."""
        self._agent = self._template.joined(self._runs, thread)
        await self._agent.open()
        for message in self._agent.messages[-6:]:
            if message.role in ("user", "assistant") and message.text:
                self._console.print(f"{message.role}: ", style="dim", end="")
                self._console.print(plain(message.text), soft_wrap=True)
        if self._agent.error is not None:
            self._tell(str(self._agent.error))

    async def once(self, text: str) -> int:
        """One message, one answer; 1 if it did not complete."""
        return await self._answer(text)

    async def talk(self) -> None:
        """The dialogue."""
        self._console.print(HELP, style="dim")
        while True:
            try:
                with self._interrupting(self._stay):
                    line = (await asyncio.to_thread(_read)).strip()
            except EOFError:
                self._console.print()
                return
            match line:
                case "":
                    continue
                case "/quit" | "/exit":
                    return
                case "/help":
                    self._console.print(HELP, style="dim")
                case "/thread":
                    self._console.print(self._agent.thread_id)
                case "/new":
                    await self.open(None)
                case "/retry":
                    await self._answer(None)
                case _ if line[0] == "/" and line[1:].isalpha():
                    self._tell(f"no command {line}: /help lists them")
                case _:
                    await self._answer(line)

    async def _answer(self, text: str | None) -> int:
        try:
            with self._interrupting(self._agent.abort):
                return await self._send(text)
        except NothingToDo as error:
            self._tell(str(error))
            return 1
        except UsageError as error:
            self._tell(str(error), "red")
            return 1

    @contextmanager
    def _interrupting(self, do: Callable[[], object]) -> Iterator[None]:
        """For as long Ctrl-C does this. Where a loop has no signal handlers (Windows) it ends the program."""
        loop = asyncio.get_running_loop()
        try:
            loop.add_signal_handler(signal.SIGINT, do)
        except (NotImplementedError, RuntimeError):
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _stay(self) -> None:
        """Ctrl-C at the prompt: the thread that reads a line cannot be interrupted, so leaving is Ctrl-D's."""
        self._console.print("\nCtrl-D or /quit leaves", style="dim")
        _prompt()

    def _tell(self, line: str, style: str = "yellow") -> None:
        self._console.print(plain(line), style=style, soft_wrap=True)

    async def _send(self, text: str | None) -> int:
        agent = self._agent
        reply = await (agent.retry() if text is None else agent.send(text))
        if reply.run is not None:
            await self._show(reply)
        outcome = await reply.wait()
        self._console.print()
        if isinstance(outcome, Completed | Truncated):
            return 0
        if isinstance(outcome, Refused):
            said = explain(outcome.error)
        else:
            said = ended(outcome) if reply.error is None else explain(reply.error)
        self._tell(said)
        return 1

    async def _show(self, reply: Reply) -> None:
        """Prints the run as it is told; what was said before we began to listen comes from its facts."""
        assert reply.run is not None
        printer = Printer(self._console)
        async with reply.run.stream() as items:
            async for item in items:
                printer.take(item.body if isinstance(item, Delta) else item.fact)


class Printer:
    """Text once, however it comes: as deltas, or whole with the message. Reasoning is dimmed, a tool is one line."""

    def __init__(self, console: Console) -> None:
        self._write = console.print
        self._flush = console.file.flush
        self._printed: dict[str, dict[int, int]] = {}  # characters by message and part
        self._reasoning = False

    def take(self, said: object) -> None:
        """Prints one fact or delta, if it says something to a reader."""
        match said:
            case ReasoningTold(text=text):
                self._reasoning = True
                self._styled(text, "dim italic")
            case TextTold(message_id=message_id, index=index, offset=offset, text=text):
                self._text(message_id, index, offset, text)
            case PartialSaved(part="text", message_id=message_id, index=index, offset=offset, text=text):
                self._text(message_id, index, offset, text)
            case MessageAdded(message=message) if message.role == "assistant":
                printed = sum(self._printed.pop(message.id, {}).values())
                self._print(message.text[printed:])
            case CallStarted(tool=tool):
                self._end_reasoning()
                self._styled(f"\n⚙ {tool}", "cyan")
                self._styled(" …", "")
            case CallFinished(outcome=outcome, content=content):
                shown = "".join(part.text for part in content if isinstance(part, Text))
                self._styled(f" {outcome} ", "cyan")
                self._styled(f"{shown[:200]}\n", "dim")
            case RequestOpened(request=request):
                self._styled(f"\nasks: {request.prompt or request.kind}\n", "magenta")
            case _:
                pass

    def _text(self, message_id: str, index: int, offset: int, text: str) -> None:
        """What of a piece was not printed yet: offsets say what a reader has (RC-20)."""
        parts = self._printed.setdefault(message_id, {})
        printed = parts.get(index, 0)
        if offset <= printed < offset + len(text):
            parts[index] = offset + len(text)
            self._print(text[printed - offset :])

    def _print(self, text: str) -> None:
        if text:
            self._end_reasoning()
            self._styled(text, "")
            self._flush()

    def _styled(self, text: str, style: str) -> None:
        self._write(plain(text), style=style, end="", soft_wrap=True)

    def _end_reasoning(self) -> None:
        if self._reasoning:
            self._reasoning = False
            self._write()


# Of the control characters a terminal gets only these two from a model; the others could move its cursor.
_CONTROLS = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROLS |= dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)


def plain(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return text.translate(_CONTROLS)


def _prompt() -> None:
    sys.stdout.write("\n> ")
    sys.stdout.flush()


def _read() -> str:
    _prompt()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
