"""`pilothouse chat`: a conversation in the terminal, with any agent: ours here, or whatever an AG-UI endpoint serves.

It holds an `Agent` and knows nothing of what is behind it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import typer

from ..agent_contracts import Agent
from ..agent_errors import AgentError
from ..agents.signals import watch
from ..errors import NothingToDo, PilothouseError, UsageError
from ..projection import AgentMessage
from .explain import explain
from .process import run
from .questions import Questions
from .screen import Paper, Screen, plain

HELP = """Ctrl-C   stop the answer
/retry   answer the last message again
/stop    end what waits for an answer
/new     a new thread
/thread  this thread's id
/help    this
/quit    leave (or Ctrl-D)"""

_PROBE_S: Final = 5.0


def chat(target: str | None, *, model: str | None, db: str, thread: str | None, message: str | None) -> None:
    """Chats until Ctrl-D, or sends one message."""
    raise typer.Exit(run(lambda: _chat(target, model, db, thread, message)))


async def _chat(
    target: str | None, model: str | None, db: str, thread: str | None, message: str | None
) -> int:
    def say(text: str) -> None:
        typer.echo(text, err=True)

    remote = _is_url(target)
    source = _remote(target, say) if remote else _here(target, model, db, say)
    async with source as make:
        terminal = Terminal(make, drives=not remote)
        try:
            if message is None:
                terminal.greet()
            await terminal.open(thread)
            if message is not None:
                return await terminal.once(message)
            await terminal.talk()
        finally:
            await terminal.aclose()
    return 0


Make = Callable[[str | None], Any]
"""Makes an agent for a thread, or for a new one."""


def _is_url(target: str | None) -> bool:
    return target is not None and target.partition("://")[0] in ("http", "https")


@asynccontextmanager
async def _here(
    target: str | None, model: str | None, db: str, say: Callable[[str], None]
) -> AsyncIterator[Make]:
    """Agents over conversations of this process."""
    from ..agents.local import LocalAgent
    from ..runs.controller import RunController
    from .agents import Agents, template_of
    from .places import journal_at

    journal = journal_at(db)
    # The agent first: if it cannot be loaded, no journal is left behind.
    async with Agents(target, model, say) as definition:
        template = template_of(definition)
        async with journal:
            await journal.open()
            async with RunController(template.runtime, journal=journal) as runs:
                yield lambda thread: LocalAgent(template.joined(runs, thread))


@asynccontextmanager
async def _remote(url: str | None, say: Callable[[str], None]) -> AsyncIterator[Make]:
    """Agents behind an address: an AG-UI endpoint, or the root of a Pilothouse server."""
    from ..remote.agui import AGUIAgent
    from ..remote.control import RunControlClient

    assert url is not None
    parts = urlsplit(url)
    token = os.environ.get("PILOTHOUSE_TOKEN") or None
    async with RunControlClient(
        f"{parts.scheme}://{parts.netloc}", auth=token, timeout_s=_PROBE_S
    ) as control:
        names = await _agents_of(control)
        ours = names is not None
        if ours and not parts.path.strip("/"):
            name = "default" if "default" in (names or ()) or not names else names[0]
            url = f"{control.url}/agui/{name}"
        say(f"agent {url}" + ("" if ours else " (AG-UI)"))
        yield lambda thread: AGUIAgent(
            url, thread_id=thread, auth=token, control=control if ours else None, on_violation="repair"
        )


async def _agents_of(control: Any) -> list[str] | None:
    """The agents of a Pilothouse server; None where none answers as one."""
    try:
        found = await control.agents()
    except AgentError as error:
        if error.kind == "connection":
            raise UsageError(f"{control.url} does not answer: {error}") from error
        return None
    items = found.get("items", found.get("agents")) if isinstance(found, dict) else None
    if not isinstance(items, list):
        return None
    return [str(item.get("name") if isinstance(item, dict) else item) for item in items]


class Terminal:
    """Reads lines, prints answers; Ctrl-C stops the answer that is being written.

    Args:
        make: makes an agent.
        drives: it is driven by this process, so an answer ends with it.
    """

    def __init__(self, make: Make, *, drives: bool) -> None:
        self._make = make
        self._drives = drives
        # Styles are arguments: what a model writes is never read as markup.
        self._console = Paper(self._read_by_nobody)
        self._agent: Any = None
        self._questions: Questions | None = None
        self._unread = False  # whoever read what is printed has left
        self._left: list[Any] = []  # a conversation that nobody holds would stop its run

    def _read_by_nobody(self) -> None:
        self._unread = True
        if self._agent is not None:
            self._agent.stop()

    def greet(self) -> None:
        """Says what can be typed."""
        self._console.print(HELP, style="dim")

    async def open(self, thread: str | None) -> None:
        """Opens a thread, or begins one; what is being answered there is read to its end."""
        await self.aclose()
        self._agent = await self._make(thread).open()
        for message in self._agent.messages.get()[-6:]:
            if message.role in ("user", "assistant") and message.text and _is_whole(message):
                self._console.print(f"{message.role}: ", style="dim", end="")
                self._console.print(plain(message.text), soft_wrap=True)
        if self._agent.status.get() == "running":
            await self._answer(self._followed)
            return
        if (error := self._agent.error.get()) is not None:
            self._tell(_told(error))
        self._ask()

    async def _followed(self) -> str:
        """Reads an answer that somebody else asked for."""
        async for status in watch(self._agent.status):
            if status != "running":
                break
        return "paused" if self._pending() else "success"

    async def aclose(self) -> None:
        """Lets go of the agent. Closing its conversation would end a run that waits for an answer, so that stays."""
        if self._agent is not None:
            agent, self._agent = self._agent, None
            self._left.append(agent)
            await agent.aclose()

    async def once(self, text: str) -> int:
        """One message, one answer; 1 if it did not complete, or nobody was there to read it."""
        code = await self._answer(lambda: self._agent.submit(text)) or int(self._unread)
        if self._pending():
            self._tell(f"it waits for an answer, which can be given later: --thread {self._agent.thread_id}")
        return code

    async def talk(self) -> None:
        """The dialogue."""
        while not self._unread:
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
                    self.greet()
                case "/thread":
                    self._console.print(self._agent.thread_id)
                case "/new":
                    await self.open(None)
                case "/stop":
                    await self._stop()
                case "/retry":
                    await self._answer(self._agent.retry)
                case _ if line[0] == "/" and line[1:].isalpha():
                    self._tell(f"no command {line}: /help lists them")
                case _ if self._pending():
                    await self._reply(line)
                case _:
                    await self._answer(lambda line=line: self._agent.submit(line))  # type: ignore[misc]

    # Answers of the agent

    async def _answer(self, act: Callable[[], Any]) -> int:
        agent: Agent[Any] = self._agent
        screen = Screen(self._console)
        messages = agent.messages.get()
        screen.skip([message for message in messages if _is_whole(message)], agent.tool_calls.get())
        screen.messages(messages)
        leave = [agent.messages.subscribe(screen.messages), agent.tool_calls.subscribe(screen.calls)]
        try:
            with self._interrupting(agent.stop):
                outcome = await act()
        except asyncio.CancelledError:  # the program is to end: so does the answer, on the record
            await self._end()
            raise
        except NothingToDo as error:
            self._tell(str(error))
            return 1
        except PilothouseError as error:
            self._tell(explain(error), "red")
            self._ask()
            return 1
        finally:
            for end in leave:
                end()
        return self._ended(outcome)

    async def _end(self) -> None:
        """Stops what this process drives, and waits for the end, be it that Ctrl-C asked for it already."""
        if self._drives:
            await self._agent.stop()
            async for stopping in watch(self._agent.stopping):
                if not stopping:
                    return

    def _ended(self, outcome: str) -> int:
        """Says how it ended, where that is not by itself clear; 0 for an answer."""
        self._console.print()
        agent: Agent[Any] = self._agent
        if outcome == "nothing":
            self._tell("there is nothing to retry")
            return 1
        if (error := agent.error.get()) is not None:
            self._tell(_told(error))
            return 1
        if outcome == "paused":
            self._ask()
            return 1
        if outcome == "aborted":
            self._tell("cancelled")
            return 1
        last = agent.messages.get()[-1:]
        reason = last[0].delivery.reason if last else None
        if reason is not None:
            self._tell(
                "truncated: the answer was cut by an output limit"
                if reason == "truncated"
                else f"incomplete: {reason}"
            )
        return 0 if reason in (None, "truncated") else 1

    # Questions of the agent

    def _pending(self) -> bool:
        signal_ = self._agent.interrupt
        asked = None if signal_ is None else signal_.get()
        return asked is not None and asked.resumable

    def _ask(self) -> None:
        """Shows what the agent wants to know, the first of it."""
        self._questions = None
        if not self._pending():
            return
        batch = getattr(self._agent, "interrupts", None)
        items = () if batch is None else batch.batch.get()
        if items:
            self._questions = Questions(items, self._agent.tool_calls.get())
            self._show_question(self._questions)

    def _show_question(self, questions: Questions) -> None:
        about, question = questions.shown()
        if about:
            self._tell(about, "dim")
        self._tell(question, "magenta")

    async def _reply(self, line: str) -> None:
        """The line answers the question that is shown; with the last one all answers go out."""
        if self._questions is None:
            self._ask()
        questions = self._questions
        if questions is None:
            self._tell("what it waits for cannot be answered here")
        elif not questions.take(line):
            self._tell("answer with y or n; /stop ends it, /quit leaves and it stays open")
        elif not questions.complete:
            self._show_question(questions)
        else:
            self._questions = None
            await self._answer(lambda: self._agent.submit(resume=questions.answers))

    async def _stop(self) -> None:
        """Ends what waits; a backend that cannot be stopped is told that there will be no answer."""
        questions = self._questions
        if not self._pending():
            self._tell("nothing waits for an answer")
        elif await self._agent.stop() != "nothing":
            self._questions = None
            self._tell("cancelled")
        elif questions is not None:
            self._questions = None
            await self._answer(lambda: self._agent.submit(resume=questions.dropped()))

    @contextmanager
    def _interrupting(self, do: Callable[[], object]) -> Iterator[None]:
        """For as long Ctrl-C does this. Where a loop has no signal handlers (Windows) it ends the program."""
        loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)
        try:
            loop.add_signal_handler(signal.SIGINT, do)
        except (NotImplementedError, RuntimeError):
            yield
            return
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(
                signal.SIGINT, before
            )  # which cancels what runs, in order, and raises nothing amid it

    def _stay(self) -> None:
        """Ctrl-C at the prompt: the thread that reads a line cannot be interrupted, so leaving is Ctrl-D's."""
        self._console.print("\nCtrl-D or /quit leaves", style="dim")
        _prompt()

    def _tell(self, line: str, style: str = "yellow") -> None:
        self._console.print(plain(line), style=style, soft_wrap=True)


def _is_whole(message: AgentMessage) -> bool:
    return message.delivery.phase == "complete"


def _told(error: AgentError) -> str:
    """An error in one line: in the provider's words where there are some, and what can be done."""
    cause = error.__cause__
    said = (
        explain(cause)
        if isinstance(cause, PilothouseError) and not isinstance(cause, AgentError)
        else explain(error)
    )
    return f"{said}: {error.detail}" if error.detail else said


def _prompt() -> None:
    sys.stdout.write("\n> ")
    sys.stdout.flush()


def _read() -> str:
    """A line of the person: with a history and keys that edit it where there is a terminal."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        with suppress(ImportError):  # Windows has none
            import readline  # noqa: F401 - what `input` edits with
        sys.stdout.write("\n")
        return input("> ")
    _prompt()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
