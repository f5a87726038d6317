"""Limits of a child process on itself."""

from __future__ import annotations

from contextlib import suppress


def bound_memory(most: int) -> None:
    """This process gets no more than `most` bytes of memory of its own, where the system can say so (Linux)."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


__all__ = ["bound_memory"]
