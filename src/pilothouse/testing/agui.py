"""`verify_agui`: the AG-UI verifier alone, for tests of any server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from ..core.agui.events import Event, Profile, decode
from ..core.agui.reading import Lanes, ProtocolFault
from ..core.agui.verify import Phase, Verifier, Violation


def verify_agui(
    events: Iterable[Event | Mapping[str, Any] | bytes | str], *, profile: Profile = "1.0", whole: bool = True
) -> list[Event]:
    """The events, each verified where it stands; short forms (`*_CHUNK`) made long, unknown types left out.

    Args:
        events: structs, their JSON, or mappings.
        profile: `legacy` refuses what 0.0.5x clients cannot take.
        whole: the stream must have come to its end.

    Raises:
        AssertionError: one is illegal; the text says which and why.
    """
    verifier, lanes, out = Verifier(profile), Lanes(), []
    for number, given in enumerate(events):
        try:
            event = given if isinstance(given, Event) else decode(_bytes(given))
            for item in () if event is None else lanes.expand(event):
                verifier.check(item)
                out.append(item)
        except (Violation, ProtocolFault, msgspec.DecodeError) as error:
            raise AssertionError(f"event {number}: {error}") from error
    if whole and verifier.phase not in (Phase.FINISHED, Phase.FAILED):
        raise AssertionError("the stream ended without RUN_FINISHED or RUN_ERROR")
    return out


def _bytes(given: Mapping[str, Any] | bytes | str) -> bytes:
    if isinstance(given, bytes):
        return given
    return given.encode() if isinstance(given, str) else msgspec.json.encode(given)


__all__ = ["verify_agui"]
