"""AI controllers: plug-ins that contribute tools to a conversation, and hooks around each of its sends (seed 003).

What a plug-in is and what it is told. Who calls it when is `around`; several at once are `composition`;
state that the model changes is `staging`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias, runtime_checkable
from weakref import ref

from msgspec import Struct, field

from ..core.delivery import ENDINGS, Ending, case_of_refusal, words
from ..errors import UsageError
from ..events import Outcome
from ..loop.tools import ToolLike
from ..messages import JSON, Media, Usage
from .extras import Refused

if TYPE_CHECKING:
    from .reply import Reply

RequestKind: TypeAlias = Literal["send", "continue", "retry", "regenerate"]
CommitResult: TypeAlias = Literal["committed", "discarded", "failed"]


class RequestEvent(Struct, frozen=True):
    """A send that is about to be committed; the same object for every hook and for the request listener.

    Attributes:
        message_id: of the user message, in the conversation, the journal, and as the address of its attachments.
        text, attachments: of the user message, as the interceptor left it.
        kind: `continue`, `retry` and `regenerate` have no new user message.
        state: the patch of the shared state that came with the send.
        original_text: what was given, where the interceptor replaced it.
        resumed: the run was begun by an earlier process and is taken up again.
    """

    reply: Reply
    thread_id: str
    message_id: str | None
    text: str
    attachments: tuple[Media, ...] = ()
    kind: RequestKind = "send"
    state: Mapping[str, JSON] | None = None
    original_text: str | None = None
    resumed: bool = False


class ResponseMetadata(Struct, frozen=True):
    """Of the model response read last, as far as it was told.

    Attributes:
        finish_reason: the provider's own word, never mapped; None where it tells none.
    """

    finish_reason: str | None = None
    usage: Usage | None = None
    model: str | None = None


class HookFailure(Struct, frozen=True):
    """A hook that raised after the outcome was fixed: it changed nothing.

    Attributes:
        key: of the controller; empty for a listener.
        hook: its name: `on_response`, `apply`, `on_change`, `response_listener`.
    """

    key: str
    hook: str
    error: BaseException


class ResponseEvent(Struct, frozen=True):
    """How a send ended.

    Attributes:
        text: everything that was received, also when the send failed.
        outcome: `Refused` where the send ended before it was a run.
        error: None for every end that is no failure: completed, truncated, incomplete, cancelled.
        ending: the outcome in one word; success is `completed`.
        begun: keys of the controllers whose `on_request` was entered: without it there is nothing to release.
        commits: what became of staged state, by key of the controllers that had any.
        hook_errors: of the hooks that ran before this one.
    """

    reply: Reply
    thread_id: str
    text: str
    outcome: Outcome | Refused
    error: BaseException | None
    ending: Ending
    metadata: ResponseMetadata | None = None
    begun: frozenset[str] = frozenset()
    commits: Mapping[str, CommitResult] = field(default_factory=dict)
    hook_errors: tuple[HookFailure, ...] = ()


class Export(Struct, frozen=True):
    """Bytes that a controller gives to a surface."""

    media_type: str
    data: bytes
    filename: str | None = None


Exporter: TypeAlias = Callable[[Mapping[str, str]], Awaitable[Export]]
"""Makes an export from query parameters, read-only.

Raises:
    ValueError: a parameter is wrong; the text says which.
"""


@runtime_checkable
class AIController(Protocol):
    """Any object with `get_tools()`. Everything else is optional; attributes are stable for the life of the object.

    `on_request(event)` and `on_response(event)` are sync or async and run on the event loop that owns the conversation.
    `namespace` is put before the names of the tools, `instructions` go into the system prompt, `exports` are fetched by
    surfaces, `aclose()` closes what it holds; a conversation closes those whose `is_open` was not true when they were
    registered. `BaseAIController` has the rest, with its defaults.
    """

    def get_tools(self) -> Sequence[ToolLike]:
        """The tools of the next send; [] for none. Cheap, without side effects: called at registration and in each send."""
        ...


class BaseAIController:
    """The protocol with its defaults. Subclass it or not."""

    namespace: str = ""
    instructions: str | None = None
    exports: Mapping[str, Exporter] = MappingProxyType({})

    def get_tools(self) -> Sequence[ToolLike]:
        """No tools."""
        return ()

    def on_request(self, event: RequestEvent, /) -> Awaitable[None] | None:
        """Called before a send is committed, in the order of the controllers; raising refuses the send.

        The moment to lock a surface, take a snapshot of what the tools go by, and capture thread locals: context
        variables reach the tools by themselves.
        """

    def on_response(self, event: ResponseEvent, /) -> Awaitable[None] | None:
        """Called once when a send ends, in the reverse order, also without an `on_request` before it.

        The moment to release what `on_request` took. What it raises is logged and changes nothing: a commit that can
        fail belongs in `StagedController.prepare`.
        """


_current: Final[ContextVar[ref[Reply] | None]] = ContextVar("pilothouse_reply", default=None)
"""Weak: tasks of an ended run stay in memory for a while, its reply need not."""


def enter_reply(reply: Reply) -> None:
    """From here on this context works for that send."""
    _current.set(ref(reply))


def ending_of(outcome: Outcome | Refused) -> Ending:
    """An outcome in one word (RC-86)."""
    row = ENDINGS[case_of_refusal(outcome.error)] if isinstance(outcome, Refused) else words(outcome)
    assert row.ending is not None
    return row.ending


def current_reply() -> Reply:
    """The send that this code runs for: in hooks and tools, also in worker threads.

    Raises:
        UsageError: no send is under way here.
    """
    found = _current.get()
    if found is None:
        raise UsageError("cannot get the current reply outside of a hook or tool of a send")
    reply = found()
    if reply is None:
        raise UsageError("cannot get the current reply because it is over, and nobody has kept it")
    return reply


__all__ = [
    "AIController",
    "BaseAIController",
    "CommitResult",
    "Ending",
    "Export",
    "Exporter",
    "HookFailure",
    "RequestEvent",
    "RequestKind",
    "ResponseEvent",
    "ResponseMetadata",
    "current_reply",
    "ending_of",
    "enter_reply",
]
