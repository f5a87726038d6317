"""The exception tree, split by who is wrong.

    PilothouseError
    ├── UsageError            the host asked for something that cannot be
    │   ├── ConfigError ⊃ ToolDefinitionError, DuplicateTool, ControllerInUse
    │   ├── AgentBusy, AgentClosed, NotOpened, NothingToDo, InvalidTarget, RunUnknown
    │   ├── MessageTooLong, ConversationFull, AttachmentTooLarge
    │   ├── InvalidSpec, InvalidCommand, Unsupported ⊃ ThreadBusy, CursorAhead
    │   ├── RunConflict, ThreadConflict, CommandConflict, DuplicateConflict
    │   ├── RunNotFound, CommandNotFound, ArtifactNotFound
    │   ├── NotControllable, OwnedElsewhere
    │   └── SendRefused, SendAbandoned, DeadReply
    ├── HookError             what a host plugged into a send failed
    │   ├── HookTimeout, PostponeTimeout         (both also TimeoutError)
    │   └── CommitFailed
    ├── ReplyTimeout          the whole send took too long (also TimeoutError)
    ├── ProviderError         the model's side failed (recorded, given to on_error)
    │   ├── SendTimeout, StreamIdleTimeout       (both also TimeoutError)
    │   ├── StreamEndedEarly, ProviderContractError
    │   └── UploadError ⊃ PermanentUploadError
    ├── ToolError             a tool says something to the model
    │   └── ToolStopped, OutcomeUnknown
    ├── RunError              what a runtime or run did
    │   ├── StartRefused, StartUnknown
    │   ├── OutcomeError      the awaited run did not complete
    │   │   └── ReplyFailed, ReplyIncomplete, ReplyCancelled
    │   ├── RecordRefused, ProtocolViolation     (raised into a runtime)
    │   └── RecoveryMismatch, RecoveryRefused
    └── JournalError          the store is away, full, broken or somebody else's
        ├── JournalUnavailable, JournalBusy, JournalFull
        ├── JournalCorrupt, JournalVersion
        └── SeqConflict, FenceConflict, ThreadMoved

Every error has a stable `code`, `retryable`, its fields, and a text of the form "cannot <do> while/because …".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .messages import JSON

if TYPE_CHECKING:
    from typing import Protocol

    class Reply(Protocol):
        """The handle of a send, as an error names it."""

        id: str

    from .events import Outcome
    from .responses import ErrorInfo


class PilothouseError(Exception):
    """Root of everything that Pilothouse raises on purpose."""

    code: str = "error"
    retryable: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies and other processes: as it is, not built again from its text. A live `Reply` stays behind."""
        return _rebuilt, (type(self), self.args), {k: v for k, v in vars(self).items() if k != "reply"}


def _rebuilt(kind: type[PilothouseError], args: tuple[Any, ...]) -> PilothouseError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# Usage: the host is wrong


class UsageError(PilothouseError):
    """The call cannot be served as it is; nothing was changed."""

    code = "usage"


class ConfigError(UsageError):
    """A configuration that cannot work; names the field and the value."""

    code = "config"


class ToolDefinitionError(ConfigError):
    """A function cannot become a tool; names the parameter."""

    code = "tool_definition"


class DuplicateTool(ConfigError):
    """Two tools of one send have the same name; names both owners."""

    code = "duplicate_tool"

    def __init__(self, name: str, owners: tuple[str, ...]) -> None:
        self.name, self.owners = name, owners
        super().__init__(f"tools: two are called {name!r} ({' and '.join(owners)}): give one a namespace")


class ControllerInUse(ConfigError):
    """An AI controller serves one conversation at a time."""

    code = "controller_in_use"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"cannot use AI controller {key!r} because another conversation has it: close that one, or make another"
        )


class AgentBusy(UsageError):
    """A send is in progress."""

    code = "thread_busy"

    def __init__(self, action: str, state: str, reply_id: str | None = None) -> None:
        self.action, self.state, self.reply_id = action, state, reply_id
        which = f" (reply {reply_id})" if reply_id else ""
        super().__init__(f"cannot {action} while {state}{which}: abort() or wait")


class AgentClosed(UsageError):
    """The conversation was closed."""

    code = "closed"

    def __init__(self, action: str) -> None:
        self.action = action
        super().__init__(f"cannot {action} while closed")


class NotOpened(UsageError):
    """The thread has runs that were not loaded."""

    code = "not_opened"

    def __init__(self, action: str, thread_id: str) -> None:
        self.action, self.thread_id = action, thread_id
        super().__init__(
            f"cannot {action} while thread {thread_id} is not opened: use `async with agent` or open()"
        )


class NothingToDo(UsageError):
    """There is no message that wants an answer."""

    code = "nothing_to_do"


class InvalidTarget(UsageError):
    """No such message, or one that the action does not apply to."""

    code = "invalid_target"


class RunUnknown(UsageError):
    """Nobody knows how the thread's last run ended; recover, retry or abandon it."""

    code = "unknown"

    def __init__(self, run_id: str, cause: str) -> None:
        self.run_id, self.cause = run_id, cause
        super().__init__(f"nobody knows how run {run_id} ended ({cause}): recover, retry or abandon it")


class MessageTooLong(UsageError):
    """The message exceeds `max_message_length`."""

    code = "message_too_long"

    def __init__(self, length: int, limit: float) -> None:
        self.length, self.limit = length, limit
        super().__init__(f"message has {length} characters, the limit is {limit} (max_message_length)")


class ConversationFull(UsageError):
    """The conversation would exceed `max_messages`."""

    code = "conversation_full"

    def __init__(self, count: int, limit: float) -> None:
        self.count, self.limit = count, limit
        super().__init__(
            f"conversation would have {count} messages, the limit is {limit} (max_messages): go on in a new one"
        )


class AttachmentTooLarge(UsageError):
    """The inline bytes of one message exceed `max_attachment_bytes`."""

    code = "attachment_too_large"

    def __init__(self, size: int, limit: float) -> None:
        self.size, self.limit = size, limit
        super().__init__(f"attachments have {size} bytes, the limit is {limit} (max_attachment_bytes)")


class _Coded(PilothouseError):
    """Base of errors whose code depends on the case."""

    def __init__(self, message: str, code: str | None = None) -> None:
        if code is not None:
            self.code = code
        super().__init__(message)


class InvalidSpec(_Coded, UsageError):
    """A run specification that cannot be accepted; `code` says why."""

    code = "invalid_spec"


class InvalidCommand(_Coded, UsageError):
    """A malformed command; no run was touched."""

    code = "invalid_command"


class Unsupported(_Coded, UsageError):
    """The runtime does not declare what is asked; `code` names the feature."""

    code = "unsupported"


class ThreadBusy(Unsupported):
    """The last run of the thread has not ended, and its runtime takes one at a time.

    Attributes:
        thread_id: the thread.
        run_id: that run.
        requests: ids of what it waits for; empty where it works.
    """

    code = "thread_busy"

    def __init__(self, thread_id: str, run_id: str, requests: tuple[str, ...] = ()) -> None:
        self.thread_id, self.run_id, self.requests = thread_id, run_id, requests
        run = f"runs.run({run_id!r})"
        if requests:
            why = f"waits for an answer to {', '.join(requests)}"
            way = f"give it with approve(), deny() or answer() of {run}, or stop that run with its cancel()"
        else:
            why, way = "has not ended", f"wait for its end, or stop it with cancel() of {run}"
        super().__init__(f"cannot start a run in thread {thread_id} while run {run_id} {why}: {way}")


class CursorAhead(UsageError):
    """The reader knows more than the journal: it read another lifetime of this id."""

    code = "cursor_ahead"

    def __init__(self, run_id: str, after: int, last_seq: int) -> None:
        self.run_id, self.after, self.last_seq = run_id, after, last_seq
        super().__init__(f"cannot read run {run_id} after fact {after}: its last fact is {last_seq}")


class RunConflict(UsageError):
    """This run id stands for other content."""

    code = "run_conflict"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"cannot start run {run_id} because that id stands for other content")


class ThreadConflict(UsageError):
    """Somebody else moved the head of the thread."""

    code = "thread_conflict"

    def __init__(self, thread_id: str, head: str | None) -> None:
        self.thread_id, self.head = thread_id, head
        super().__init__(
            f"cannot start a run in thread {thread_id} because its head is now {head}: somebody else has written to it, "
            "so load it again (`open()` of the conversation) first"
        )


class CommandConflict(UsageError):
    """This command id stands for other content."""

    code = "command_conflict"

    def __init__(self, run_id: str, command_id: str) -> None:
        self.run_id, self.command_id = run_id, command_id
        super().__init__(f"cannot record command {command_id} because that id stands for other content")


class DuplicateConflict(UsageError):
    """This event id stands for other content."""

    code = "duplicate_conflict"

    def __init__(self, run_id: str, event_id: str) -> None:
        self.run_id, self.event_id = run_id, event_id
        super().__init__(f"cannot record event {event_id} because that id stands for other content")


class RunNotFound(UsageError):
    """No such run."""

    code = "not_found"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"no run {run_id}")


class CommandNotFound(UsageError):
    """No such command."""

    code = "not_found"

    def __init__(self, run_id: str, command_id: str) -> None:
        self.run_id, self.command_id = run_id, command_id
        super().__init__(f"no command {command_id} in run {run_id}")


class ArtifactNotFound(UsageError):
    """No such artifact."""

    code = "not_found"

    def __init__(self, digest: str) -> None:
        self.digest = digest
        super().__init__(f"no artifact {digest}")


_NOT_OURS = {
    "binding": "it was started under another binding: use the agent that drove it, or abandon it",
    "descriptor_changed": "another agent, or another version of it, drove it: use that one, or abandon it",
    "vocabulary": "a newer Pilothouse wrote it: upgrade this one",
}


class NotControllable(UsageError):
    """The run was registered under another contract; it is readable history (RC-85)."""

    code = "not_controllable"

    def __init__(self, run_id: str, why: str) -> None:
        self.run_id, self.why = run_id, why
        super().__init__(f"cannot control run {run_id} because {_NOT_OURS.get(why, why)}")


class OwnedElsewhere(UsageError):
    """Another process drives the run."""

    code = "owned_elsewhere"

    def __init__(self, run_id: str, owner: str) -> None:
        self.run_id, self.owner = run_id, owner
        super().__init__(f"cannot control run {run_id} because {owner} drives it")


class SendRefused(UsageError):
    """An interceptor refused the message before it was committed; the draft is on `reply.user_message`.

    Attributes:
        reply: the send; None where a steering or follow-up message of a running one was refused.
        reason: what the interceptor said, None if nothing.
    """

    code = "send_refused"

    def __init__(self, reply: Reply | None = None, reason: str | None = None) -> None:
        self.reply, self.reason = reply, reason
        super().__init__(reason or "cannot send because the interceptor refused the message")


class SendAbandoned(UsageError):
    """The conversation was closed while the send waited; the draft is on `reply.user_message`."""

    code = "send_abandoned"

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(f"cannot send reply {reply.id} because the conversation was closed while it waited")


class DeadReply(UsageError):
    """The send that this belongs to is over: nothing of it counts any more."""

    code = "dead_reply"

    def __init__(self, reply_id: str) -> None:
        self.reply_id = reply_id
        super().__init__(f"cannot change anything for reply {reply_id} because it is over")


# Hooks: what a host plugged into a send


class HookError(PilothouseError):
    """A hook, interceptor or listener did not do its part."""

    code = "hook"


class HookTimeout(HookError, TimeoutError):
    """A hook exceeded `hook_timeout` and was cancelled."""

    code = "hook_timeout"

    def __init__(self, key: str, hook: str, seconds: float) -> None:
        self.key, self.hook, self.seconds = key, hook, seconds
        where = f"{hook} of {key}" if key else hook
        super().__init__(f"{where} did not end within {seconds:g} s")


class PostponeTimeout(HookError, TimeoutError):
    """Nobody completed a postponed message in time."""

    code = "postpone_timeout"

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(f"the postponed message was not completed within {seconds:g} s")


class CommitFailed(HookError):
    """Staged state could not be prepared: no state was changed; `__cause__` says why."""

    code = "commit"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the state of {key} could not be committed: no state was changed")


class ReplyTimeout(PilothouseError, TimeoutError):
    """The whole send took longer than `reply_timeout`."""

    code = "reply_timeout"

    def __init__(self, reply_id: str, seconds: float) -> None:
        self.reply_id, self.seconds = reply_id, seconds
        super().__init__(f"reply {reply_id} did not end within {seconds:g} s")


# Provider: the model's side failed


class ProviderError(PilothouseError):
    """A model's response failed. `info` has the kind, the provider's own words, and a hint when to ask again."""

    code = "provider"

    def __init__(self, message: str, info: ErrorInfo | None = None) -> None:
        self.info = info
        if info is not None:
            self.code = info.code or info.kind
            self.retryable = info.retryable
        super().__init__(message)


class SendTimeout(ProviderError, TimeoutError):
    """No response began in time."""

    code = "send_timeout"
    retryable = True


class StreamIdleTimeout(ProviderError, TimeoutError):
    """A response fell silent."""

    code = "idle_timeout"
    retryable = True


class StreamEndedEarly(ProviderError):
    """A response ended without saying so."""

    code = "unknown"


class ProviderContractError(ProviderError):
    """The provider object does not do what the contract says."""

    code = "provider_contract"


class UploadError(ProviderError):
    """An upload failed; another attempt may help."""

    code = "upload"
    retryable = True


class PermanentUploadError(UploadError):
    """An upload failed in a way that another attempt cannot help."""

    code = "upload_refused"
    retryable = False


# Tools: what they say to the model


class ToolError(PilothouseError):
    """Raise it in a tool: the message reaches the model."""

    code = "tool_error"

    def __init__(self, message: str, *, data: JSON = None) -> None:
        self.data = data
        super().__init__(message)


class ToolStopped(ToolError):
    """Raise it in a tool that stopped before its effect: an unknown outcome becomes a cancelled one."""

    code = "tool_stopped"


class OutcomeUnknown(ToolError):
    """Raise it in a tool whose effect may have happened: the call ends *unknown* and nothing repeats it."""

    code = "outcome_unknown"


# Runs: what a runtime or run did


class RunError(PilothouseError):
    """Something about a run, not about the call."""

    code = "run"


class StartRefused(RunError):
    """A runtime raises it before its first fact: a promise that no work exists."""

    def __init__(self, code: str, message: str = "", *, retryable: bool = False) -> None:
        self.code, self.retryable = code, retryable
        super().__init__(message or f"the runtime refused to start: {code}")


class StartUnknown(RunError):
    """The runtime did not begin in time; the run is left alone and may still start."""

    code = "start_unknown"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(f"run {run_id} was registered but did not start in time")


class OutcomeError(RunError):
    """The awaited run ended in another way than by completing."""

    def __init__(self, outcome: Outcome, run_id: str, message: str | None = None) -> None:
        self.outcome, self.run_id = outcome, run_id
        kind = type(outcome).__name__.lower()
        self.code = getattr(outcome, "kind", None) or kind
        self.retryable = bool(getattr(outcome, "retryable", False))
        detail = getattr(outcome, "message", "") or getattr(outcome, "reason", "")
        super().__init__(message or f"run {run_id} is {kind}" + (f": {detail}" if detail else ""))


class ReplyFailed(OutcomeError):
    """The reply failed, or nobody knows how it ended; `__cause__` is its error."""


class ReplyIncomplete(OutcomeError):
    """The reply came to a declared end without a finished answer."""


class ReplyCancelled(OutcomeError):
    """The reply was stopped. Not an `asyncio.CancelledError`: nobody cancelled the waiting task."""


class RecordRefused(RunError):
    """A fact was not stored because of an honest race or a bad form; the run goes on."""

    def __init__(self, code: str, why: str = "") -> None:
        self.code, self.why = code, why
        super().__init__(f"cannot record because of {code}" + (f": {why}" if why else ""))


class ProtocolViolation(RunError):
    """The runtime broke the contract; the run is unknown and the port closed."""

    def __init__(self, code: str, why: str) -> None:
        self.code, self.why = code, why
        super().__init__(f"{code}: {why}")


class RecoveryMismatch(RunError):
    """What the runtime tells is not what the journal holds; still unknown."""

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        super().__init__(message or f"cannot recover because of {code}")


class RecoveryRefused(RunError):
    """A recovery cannot be tried now."""

    def __init__(self, code: str, message: str = "") -> None:
        self.code = code
        super().__init__(message or f"cannot recover because of {code}")


# Journal: the store


class JournalError(PilothouseError):
    """The store could not do it."""

    code = "journal"


class JournalUnavailable(JournalError):
    """The store cannot be reached or opened; the text says what to do."""

    code = "journal_unavailable"
    retryable = True


class JournalBusy(JournalError):
    """Another writer held the store for too long."""

    code = "journal_busy"
    retryable = True


class JournalFull(JournalError):
    """No space left."""

    code = "journal_full"
    retryable = True


class JournalCorrupt(JournalError):
    """Stored bytes are not what was stored; only this run is affected."""

    code = "journal_corrupt"

    def __init__(self, run_id: str, seq: int, why: str = "") -> None:
        self.run_id, self.seq = run_id, seq
        super().__init__(f"run {run_id} is corrupt at fact {seq}" + (f": {why}" if why else ""))


class DispatchUnavailable(PilothouseError):
    """The engine that gives runs to workers cannot be reached; runs wait in the journal meanwhile."""

    code = "dispatch_unavailable"
    retryable = True


class JournalVersion(JournalError):
    """The store was written by a newer Pilothouse, or is not ours."""

    code = "journal_version"


class SeqConflict(JournalError):
    """The head is not where the writer thought; `actual` is its seq."""

    code = "seq_conflict"

    def __init__(self, run_id: str, expected: int, actual: int) -> None:
        self.run_id, self.expected, self.actual = run_id, expected, actual
        super().__init__(f"run {run_id}: expected head {expected}, found {actual}")


class FenceConflict(JournalError):
    """Another owner has taken the run over; `actual` is its fence."""

    code = "fence_conflict"

    def __init__(self, run_id: str, fence: int, actual: int) -> None:
        self.run_id, self.fence, self.actual = run_id, fence, actual
        super().__init__(f"run {run_id}: fence {fence} was replaced by {actual}")


class ThreadMoved(JournalError):
    """A thread record has another revision than expected."""

    code = "thread_moved"

    def __init__(self, thread_id: str, revision: int | None) -> None:
        self.thread_id, self.revision = thread_id, revision
        super().__init__(f"record of thread {thread_id} is now at revision {revision}")


__all__ = [name for name, item in list(globals().items()) if isinstance(item, type) and name[0] != "_"]
