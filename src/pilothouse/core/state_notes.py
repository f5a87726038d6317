"""Notes of a shared state: what each of them makes of it (TC-120)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..messages import JSON
from .jsonpatch import PatchError, apply_patch

NOTE: Final = "pilothouse/state"
"""The name of the notes, and of the extension by which a run's request carries its first one."""

STAGED: Final = "controllers/staged"
"""The name of the notes of what a call has staged: the key of its AI controller, and the value."""


def noted(state: Mapping[str, JSON], note: JSON) -> dict[str, JSON]:
    """The state after a note of it, `{"snapshot": object}` or `{"delta": operations}` (RFC 6902, all or none).

    Raises:
        PatchError: the note is none, does not apply, or makes something else than an object of the state.
    """
    if not isinstance(note, Mapping):
        raise PatchError("a note of the state is an object")
    if "delta" in note:
        if not isinstance(note["delta"], list):
            raise PatchError("a delta is a list of operations")
        made = apply_patch(dict(state), note["delta"])
    else:
        made = note.get("snapshot")
    if not isinstance(made, dict):
        raise PatchError("a state is an object")
    return made


def escaped(key: str) -> str:
    """A key as a token of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")


__all__ = ["NOTE", "STAGED", "escaped", "noted"]
