"""The options of one run, as a conversation writes them into its specification (agent-loop §2.1, AC-52)."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from ..messages import JSON, Model
from ..responses import ModelSettings
from .extras import RunExtras

_SETTINGS = frozenset(ModelSettings.__struct_fields__) - {"timeouts", "extra", "response_schema"}


def run_options(options: Mapping[str, Any], extras: RunExtras) -> dict[str, JSON]:
    """What is unset is left out; known names of `params` are settings, the rest goes to the provider as it is."""
    found: dict[str, JSON] = {}
    model = options["model"]
    if model is not None:
        found["loop.model"] = model.id if isinstance(model, Model) else model
    if options["system_prompt"] is not None:
        found["loop.system_prompt"] = options["system_prompt"]
    if params := options["params"]:
        settings = {name: value for name, value in params.items() if name in _SETTINGS}
        if extra := {name: value for name, value in params.items() if name not in _SETTINGS}:
            settings["extra"] = extra
        found["loop.settings"] = settings
    for name in ("send_timeout", "stream_idle_timeout"):
        if options[name] != inf:
            found[f"loop.{name}_ms"] = max(int(options[name] * 1000), 1)
    if extras.client_tools:
        found["loop.client_tools"] = msgspec.to_builtins(list(extras.client_tools))
    if extras.limits:
        found["loop.limits"] = dict(extras.limits)
    return found
