"""What is asked of a run that another process drives: put into its inbox, answered by whoever holds its fence.

The holder journals it like any other command; the answer says what came of it, so refusals, which leave no trace in
the run, come back too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ..cluster import Relay
from ..commands import Ack, Command
from ..core.canonical import encode
from ..errors import (
    CommandConflict,
    InvalidCommand,
    JournalUnavailable,
    NotControllable,
    PilothouseError,
    RecoveryMismatch,
    RecoveryRefused,
    Unsupported,
)
from ..messages import Value
from ..records import Accept

RECOVER: Final = "\x01recover:"
"""What the id of an inbox entry begins with that is no command; no command's id can (`ordering`)."""


class Answered(Value):
    """An ack, or the error that the holder would have raised."""

    ack: Ack | None = None
    error: str = ""
    code: str = ""
    message: str = ""


_decoder: Final = msgspec.json.Decoder(Answered)
_commands: Final = msgspec.json.Decoder(Command)
_accepts: Final = msgspec.json.Decoder(Accept)

_RAISED: Final[Mapping[str, Callable[[Answered, str, str], PilothouseError]]] = {
    "CommandConflict": lambda _, run_id, command_id: CommandConflict(run_id, command_id),
    "InvalidCommand": lambda told, *_: InvalidCommand(told.message, told.code),
    "NotControllable": lambda told, run_id, _: NotControllable(run_id, told.code),
    "RecoveryMismatch": lambda told, *_: RecoveryMismatch(told.code, told.message),
    "RecoveryRefused": lambda told, *_: RecoveryRefused(told.code, told.message),
    "Unsupported": lambda told, *_: Unsupported(told.message, told.code),
}


def answer_of(result: Ack | PilothouseError | None) -> bytes:
    """What the holder says."""
    if isinstance(result, PilothouseError):
        return encode(Answered(None, type(result).__name__, result.code, str(result)))
    return encode(Answered(result))


def command_of(body: bytes) -> Command:
    """A command from an inbox."""
    return _commands.decode(body)


def accept_of(body: bytes) -> Accept:
    """The reasons with which a recovery was asked for."""
    return _accepts.decode(body)


async def post(relay: Relay, command: Command) -> Ack | None:
    """Puts a command into the inbox of its run; the ack, if it has one already."""
    answer = await relay.post(command.run_id, command.id, encode(command))
    return None if answer is None else _read(answer, command.run_id, command.id)


async def wait(relay: Relay, run_id: str, command_id: str, seconds: float) -> Ack | None:
    """Waits for the answer of whoever drives the run; None where there is none in time.

    Raises:
        PilothouseError: what the holder refused with.
    """
    answer = await relay.answered(run_id, command_id, timeout=seconds)
    return None if answer is None else _read(answer, run_id, command_id)


async def answered(relay: Relay, run_id: str, entry: str, seconds: float) -> bool:
    """Waits until an entry is answered at all; False where it is not in time.

    Raises:
        PilothouseError: what the holder refused with.
    """
    answer = await relay.answered(run_id, entry, timeout=seconds)
    if answer is not None:
        _read(answer, run_id, entry)
    return answer is not None


def _read(answer: bytes, run_id: str, command_id: str) -> Ack | None:
    told = _decoder.decode(answer)
    if told.error:
        made = _RAISED.get(told.error)
        raise made(told, run_id, command_id) if made is not None else JournalUnavailable(told.message)
    return told.ack


__all__ = ["RECOVER", "accept_of", "answer_of", "answered", "command_of", "post", "wait"]
