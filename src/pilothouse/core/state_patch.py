"""Notes of a shared state, and what they change (TC-120).

A note is `{"snapshot": object}` or `{"delta": operations}`; a delta is applied whole or not at all, and nothing that was
given is changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Final

from ..messages import JSON
from .jsonpatch import PatchError, apply_patch

NOTE: Final = "pilothouse/state"
"""The name of the notes, and of the extension by which a run's request carries its first one."""


def escaped(token: str) -> str:
    """A key as a token of a pointer."""
    return token.replace("~", "~0").replace("/", "~1")


def patched(document: Mapping[str, JSON], operations: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    """The document with all operations applied.

    Raises:
        PatchError: one cannot be applied, or the result is no object; nothing was changed.
    """
    made = apply_patch(dict(document), operations)
    if not isinstance(made, dict):
        raise PatchError("the result is no object")
    return made


def noted(state: Mapping[str, JSON], note: JSON) -> dict[str, JSON]:
    """The state after a note of it.

    Raises:
        PatchError: the note is none, or does not apply.
    """
    if isinstance(note, Mapping):
        if isinstance(snapshot := note.get("snapshot"), Mapping):
            return deepcopy(dict(snapshot))
        if isinstance(delta := note.get("delta"), Sequence) and not isinstance(delta, str):
            return patched(state, delta)
    raise PatchError("a note of the state has a snapshot, which is an object, or a delta")


__all__ = ["NOTE", "PatchError", "escaped", "noted", "patched"]
