"""What the exports of the AI controllers that ship have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

STAGED: Final = "staged"
"""The parameter that asks for what the answer under way would leave behind, as far as it has got."""


def only(given: Mapping[str, str], *names: str) -> None:
    """Refuses parameters that there are not.

    Raises:
        ValueError: names one.
    """
    if unknown := set(given) - set(names):
        raise ValueError(f"there is no parameter {min(unknown)!r}")


def wants_staged(given: Mapping[str, str]) -> bool:
    """Whether the staged state is asked for.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    if (said := given.get(STAGED, "0")) not in ("0", "1"):
        raise ValueError(f"{STAGED} must be 0 or 1, not {said!r}")
    return said == "1"


__all__ = ["STAGED", "only", "wants_staged"]
