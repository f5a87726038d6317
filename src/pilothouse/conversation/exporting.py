"""What surfaces fetch of AI controllers: bytes by name, read-only (TC-124)."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import copy_context

from ..errors import InvalidTarget
from .calling import HookCaller
from .controllers import Export
from .setup import Setup


async def export(setup: Setup, key: str, name: str, parameters: Mapping[str, str]) -> Export:
    """Fetches one export, within `hook_timeout`.

    Raises:
        InvalidTarget: there is none of that name. ValueError: a parameter is wrong. HookTimeout: it took too long.
    """
    composition = setup.composition
    member = None if composition is None else composition.by_key.get(key)
    exporter = None if member is None else member.exports.get(name)
    if exporter is None:
        raise InvalidTarget(f"there is no export {name!r} of an AI controller {key!r}")
    caller = HookCaller(copy_context(), setup.clock, setup.options["hook_timeout"])
    found = await caller.call(key, f"export {name}", exporter, dict(parameters))
    if not isinstance(found, Export):
        raise TypeError(f"export {name!r} of {key} must give an Export, got {type(found).__name__}")
    return found
