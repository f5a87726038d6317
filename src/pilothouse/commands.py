"""Commands, requests and acks: what is asked of a run, what a run asks, and how both are answered."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import field

from .messages import JSON, Message, Part, Value

StopSource: TypeAlias = Literal["user", "deadline", "shutdown", "parent"]

# Resolutions of a request


class InputAnswer(Value, tag="input", tag_field="kind"):
    """An answer to a request for input."""

    content: JSON


class Allow(Value, tag="allow", tag_field="kind"):
    """A call may run, `once` or, as far as the policy remembers it, in the whole thread; with these arguments."""

    scope: Literal["once", "thread"] = "once"
    arguments: dict[str, JSON] | None = None


class Deny(Value, tag="deny", tag_field="kind"):
    """No; legal for every kind of request."""

    reason: str = ""


class ExternalResult(Value, tag="external", tag_field="kind"):
    """The result of a call that ran somewhere else, at a client for example."""

    content: tuple[Part, ...] = ()
    is_error: bool = False


Resolution: TypeAlias = InputAnswer | Allow | Deny | ExternalResult

RequestKind: TypeAlias = Literal["input", "approval", "external"]


class Request(Value):
    """What a run asks of a person or the host. While a blocking one is open the run is *waiting*."""

    id: str
    kind: RequestKind
    blocking: bool = True
    prompt: str = ""
    schema: JSON = None
    call_id: str | None = None
    operation_digest: str | None = None
    scopes: tuple[str, ...] = ("once",)
    expires_at_ms: int | None = None
    data: JSON = None


# Commands


class Steer(Value, tag="steer", tag_field="kind"):
    """A message for the next turn boundary of a run that is going on."""

    message: Message


class FollowUp(Value, tag="follow_up", tag_field="kind"):
    """A message for when the run would stop."""

    message: Message


class Answer(Value, tag="answer", tag_field="kind"):
    """The resolution of an open request."""

    request_id: str
    resolution: Resolution


class Cancel(Value, tag="cancel", tag_field="kind"):
    """Stop the run."""

    reason: str
    source: StopSource = "user"


class Withdraw(Value, tag="withdraw", tag_field="kind"):
    """Take a queued steer or follow-up back."""

    command_id: str


class Replace(Value, tag="replace", tag_field="kind"):
    """Put another message in the place of a queued one."""

    command_id: str
    message: Message


CommandBody: TypeAlias = Steer | FollowUp | Answer | Cancel | Withdraw | Replace
CommandKind: TypeAlias = Literal["steer", "follow_up", "answer", "cancel", "withdraw", "replace"]


TERMINATE: Final = "pilothouse/terminate"
"""Extension of an answer: true where the external result that it gives ends the asking, if nothing else is open (LP-6)."""


class Command(Value):
    """An order for a run; idempotent by `id`. Build it once and send it as often as needed."""

    id: str
    run_id: str
    body: CommandBody
    extensions: dict[str, JSON] = field(default_factory=dict)


AckState: TypeAlias = Literal[
    "received",  # recorded; the runtime has not answered
    "accepted",  # it will have, or has, an effect
    "applied",  # the effect is a fact
    "returned",  # it will never have one: the input went back to its sender
    "rejected",  # refused for the state of the run
    "unsupported",  # this runtime has no such thing
]


class Ack(Value):
    """The answer to a command, projected from facts; the seqs are 0 where there is none yet."""

    command_id: str
    run_id: str
    state: AckState
    duplicate: bool = False
    received_seq: int = 0
    answered_seq: int = 0
    applied_seq: int = 0
    code: str = ""
    message: str = ""


__all__ = [
    "TERMINATE",
    "Ack",
    "AckState",
    "Allow",
    "Answer",
    "Cancel",
    "Command",
    "CommandBody",
    "CommandKind",
    "Deny",
    "ExternalResult",
    "FollowUp",
    "InputAnswer",
    "Replace",
    "Request",
    "RequestKind",
    "Resolution",
    "Steer",
    "StopSource",
    "Withdraw",
]
