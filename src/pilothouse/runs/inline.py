"""Running a coroutine that never suspends, in the caller's step."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def inline(work: Coroutine[object, object, T]) -> T:
    """The result of a coroutine that suspends nowhere, as with a journal that answers at once.

    Raises:
        RuntimeError: it suspended after all: the journal is not what it says.
    """
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a journal with immediate=True suspended")
