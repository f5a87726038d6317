"""How long things may take and how much they may hold. Seconds unless the name says otherwise."""

from __future__ import annotations

from msgspec import Struct


class RunTiming(Struct, frozen=True, kw_only=True):
    """Time limits of a run controller (specs: README, time limits)."""

    start: float = 60.0
    command: float = 30.0
    recover: float = 60.0
    replay_item: float = 2.0
    stop_grace: float = 10.0
    kill_grace: float = 5.0
    lease: float = 30.0
    append_alarm: float = 10.0
    partial_interval: float | None = 0.5
    keep_finished: float = 60.0
    park_after: float = 300.0
    poll: float = 0.25


class RunLimits(Struct, frozen=True, kw_only=True):
    """Size limits of a run controller (RC §3.12)."""

    max_fact_bytes: int = 256 * 1024
    max_artifact_bytes: int = 64 * 1024 * 1024
    max_run_facts: int = 100_000
    max_run_bytes: int = 256 * 1024 * 1024
    max_pending: int = 64
    max_inbox: int = 64
    follower_bytes: int = 4 * 1024 * 1024
    partial_bytes: int = 4 * 1024
    max_live_runs: int = 10_000
    max_extension_bytes: int = 16 * 1024


class RunStats(Struct, frozen=True):
    """What a run controller holds in this process.

    Attributes:
        live: runs that are driven here.
        finished: runs that are over here and still in memory.
        zombies: runs whose task ignored its end and was given up, so far.
    """

    live: int
    finished: int
    zombies: int


RESERVED_FACTS = 512
"""Facts kept back of `max_run_facts`, so that a full run can still be stopped, settled and ended."""
