"""A chat in the terminal with Textual. `pip install textual && python examples/textual_chat.py [MODEL]`.

The controller's callbacks change widgets, the widgets' events call the controller; it runs on Textual's own event loop.
Without a model string an async generator plays the model.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import Footer, Input, Markdown, Static

from pilothouse import AgentController, AgentState, Message, UsageError, provider


async def parrot(messages: tuple[Message, ...]) -> AsyncIterator[str]:
    """Plays the model: says it back, a word at a time."""
    for word in f"You said: *{messages[-1].text}*".split():
        await asyncio.sleep(0.05)
        yield word + " "


class Chat(App[None]):
    """One conversation on the screen."""

    CSS = "VerticalScroll {height: 1fr} .user {color: $accent; padding: 0 1} Markdown {padding: 0 1}"
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "stop", "Stop"),
        ("ctrl+p", "pause", "Pause / go on"),
        ("ctrl+r", "retry", "Retry"),
        ("ctrl+n", "clear", "New conversation"),
    ]

    def __init__(self, agent: AgentController) -> None:
        super().__init__()
        self.agent = agent
        self.shown = 0
        self.tasks: set[asyncio.Task[None]] = set()

    def compose(self) -> ComposeResult:
        """The messages, the one that is being written, what is going on, and the composer."""
        yield VerticalScroll(id="messages")
        yield Markdown(id="live")
        yield Static("idle", id="state")
        yield Input(placeholder="Say something", id="composer")
        yield Footer()

    def on_mount(self) -> None:
        """A late interface starts from the messages that are there."""
        self.agent.subscribe(self)
        self.on_messages_change(self.agent.messages)
        self.query_one("#composer", Input).focus()

    async def on_unmount(self) -> None:
        """The screen is gone: so is the conversation."""
        await self.agent.aclose()

    # What the conversation says

    def on_state_change(self, state: AgentState) -> None:
        """The controls, by the state's name."""
        self.query_one("#state", Static).update(state.value)
        if not self.agent.is_streaming:
            self.query_one("#live", Markdown).update("")

    def on_messages_change(self, messages: tuple[Message, ...]) -> None:
        """Each finished message is one item; a shorter list is another conversation."""
        box = self.query_one("#messages", VerticalScroll)
        if len(messages) < self.shown:
            box.remove_children()
            self.shown = 0
        for message in messages[self.shown :]:
            if message.role == "user":
                box.mount(Static(message.text, classes="user", markup=False))
            elif message.text:
                box.mount(Markdown(message.text, classes=message.role))
        self.shown = len(messages)
        box.scroll_end(animate=False)

    def on_response_chunk(self, piece: str, text: str) -> None:
        """The one live item, whole: Textual draws at its own pace."""
        self.query_one("#live", Markdown).update(text)

    def on_error(self, error: Exception) -> None:
        """What arrived stays readable; retry goes on from there."""
        self.notify(f"{error} (ctrl+r to retry)", severity="error")

    # What the user says

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Sends in the background; the draft comes back if it was refused."""
        draft, event.input.value = event.value, ""
        if draft:
            self.begin(self.send(draft, event.input))

    async def send(self, draft: str, composer: Input) -> None:
        """One send, to its hand-over."""
        try:
            await self.agent.send(draft)
        except UsageError as error:
            composer.value = draft
            self.notify(str(error), severity="warning")

    def begin(self, work: object) -> None:
        """Runs something beside the screen."""
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def action_stop(self) -> None:
        """At once idle; nothing to wait for."""
        self.agent.abort()

    def action_pause(self) -> None:
        """What arrives meanwhile is kept."""
        if self.agent.state is AgentState.PAUSED:
            self.agent.resume()
        else:
            self.agent.pause()

    def action_retry(self) -> None:
        """Goes on from the last exchange; no effect of a tool is repeated."""

        async def retry() -> None:
            try:
                await self.agent.retry()
            except UsageError as error:
                self.notify(str(error), severity="warning")

        self.begin(retry())

    def action_clear(self) -> None:
        """Another conversation; the old one stays in the journal."""
        self.agent.reset()


if __name__ == "__main__":
    Chat(AgentController(provider(sys.argv[1]) if len(sys.argv) > 1 else parrot)).run()
