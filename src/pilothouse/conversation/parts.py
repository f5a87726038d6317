"""What a conversation is made of is looked at when it is made, so that a mistake is told there and not at the first send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ..errors import ConfigError, InvalidSpec
from ..loop.config import LoopConfig
from ..runs.starting import check_id

_NEEDS: Final = {
    "journal": ("create", "append", "read", "threads", "immediate"),
    "host": ("request_update",),
    "clock": ("time_ms", "monotonic", "sleep"),
}
"""By what each part is known, wherever it comes from."""

_WAYS: Final = {"journal": ', for example SQLiteJournal("chat.db")'}


def check_list(name: str, value: object) -> None:
    """One thing where a list of such is wanted.

    Raises:
        ConfigError: naming the argument.
    """
    if not isinstance(value, Iterable) or isinstance(value, str | type):
        shown = getattr(value, "__name__", type(value).__name__)
        raise ConfigError(f"{name} must be a list, got {shown} alone: {name}=[{shown}]")


def check_parts(*, config: object, thread_id: object, **parts: object) -> None:
    """Refuses what cannot work.

    Raises:
        ConfigError: names the argument, what it must be, and what it was.
    """
    for name, value in parts.items():
        missing = [need for need in _NEEDS[name] if not hasattr(value, need)]
        if value is not None and missing:
            has = ", ".join(_NEEDS[name])
            raise ConfigError(
                f"{name} must be a {name} ({has}){_WAYS.get(name, '')}; got {type(value).__name__} {value!r:.60}"
            )
    if config is not None and not isinstance(config, LoopConfig):
        raise ConfigError(f"config must be a LoopConfig, got {type(config).__name__}")
    if thread_id is None:
        return
    if not isinstance(thread_id, str):
        raise ConfigError(f"thread_id must be a str, got {type(thread_id).__name__}")
    try:
        check_id(thread_id, "thread_id")
    except InvalidSpec as error:
        raise ConfigError(str(error)) from None
