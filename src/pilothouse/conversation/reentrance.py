"""Whether a call of `send()` would wait for itself: it is awaited inside a hook or tool of the send it waits for (TC-91).

A task of its own is no part of the hook, even where the hook started it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..loop.context import current
from ..loop.running import is_call

if TYPE_CHECKING:
    from .sending import Sender


def is_inside(sender: Sender) -> bool:
    """Whether this is the task of a hook or tool of a send of this conversation that is not over."""
    task = asyncio.current_task()
    around, live = sender.around, sender.stage.reply
    if around is not None and task is around.caller.task and task is not None:
        return True
    if live is None or task is None:
        return False
    call = current.get()
    if call is not None and call.run_id == live.id and is_call(task):
        return True
    return sender.setup.runs.is_driven_by(task, live.id)


def would_wait() -> UsageError:
    """The error that says what to do instead."""
    return UsageError(
        "cannot send from inside a hook or tool of the live send because it would wait for itself: start it with "
        "asyncio.create_task(agent.send(…)), and keep the task"
    )
