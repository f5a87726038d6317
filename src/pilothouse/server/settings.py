"""What a server can be told: streams, limits, cross-origin rules, and the AG-UI face."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a stream is kept alive and how it ends. Times are seconds; None is off.

    Attributes:
        keepalive: the longest silence; then a comment is sent.
        keepalive_padding, prelude_padding: bytes that fill the buffers of proxies.
        write_timeout: data waits and nothing is accepted for so long: the peer is dead.
        max_duration: a limit of our own on one connection; it ends by a cut.
        cut: how a stream ends while its run goes on: the connection drops, or (behind middleware that would turn that
            into a clean close) an error terminal is sent.
        retry_hint: after how long a client may try again.
    """

    keepalive: float = 15.0
    keepalive_padding: int = 1024
    prelude_padding: int = 2048
    write_timeout: float = 30.0
    max_duration: float | None = None
    cut: Literal["drop", "error"] = "drop"
    retry_hint: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What one request or tenant may ask for; None is off.

    Attributes:
        body: bytes of a request's body; `body_timeout` seconds for all of it to come.
        json_depth, input_messages: of a request.
        runs_per_tenant: live runs.
        streams, streams_per_tenant, followers_per_run: open connections.
        page_size: items of a list.
    """

    body: int | None = 4 * 1024 * 1024
    body_timeout: float | None = 30.0
    json_depth: int | None = 64
    input_messages: int | None = 2000
    runs_per_tenant: int | None = 16
    streams: int | None = 4000
    streams_per_tenant: int | None = 64
    followers_per_run: int | None = 64
    page_size: int = 200


_ORIGIN: Final = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+")


@dataclass(frozen=True, slots=True)
class CORS:
    """Which other origins may use the server from a browser: exact ones, or `"*"` alone.

    Raises:
        TypeError: one origin that is no list.
        ValueError: `"*"` together with credentials, or what no browser calls an origin.
    """

    origins: tuple[str, ...]
    allow_credentials: bool = False
    max_age: int = 600

    def __post_init__(self) -> None:
        given: object = self.origins
        if isinstance(given, str):  # each part of it would be allowed, too
            raise TypeError(f"CORS origins are a list: ({given!r},)")
        object.__setattr__(self, "origins", tuple(self.origins))
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"an origin is scheme://host[:port] in lower case, without a path: not {origin!r}"
                )
        if "*" in self.origins and (self.allow_credentials or len(self.origins) > 1):
            raise ValueError('CORS origins are exact ones or one "*", and "*" allows no credentials')

    def allows(self, origin: str) -> bool:
        """Whether a page of that origin may read our answers."""
        return self.origins == ("*",) or origin in self.origins


@dataclass(frozen=True, slots=True, kw_only=True)
class AGUIOptions:
    """The AG-UI face.

    Attributes:
        profile: what is assumed of a client; `auto` goes by the `protocolVersion` that it sends (SV-90).
        final_snapshot: MESSAGES_SNAPSHOT before a finish.
        steps: STEP_STARTED and STEP_FINISHED around each turn.
        on_interrupt: a CUSTOM `on_interrupt` before a finish that asks, for clients that know no other way.
        encrypted_reasoning: REASONING_ENCRYPTED_VALUE, to clients of 1.0.
        verify: checks every frame before it leaves, for finding faults; tests always do.
    """

    profile: Literal["auto", "1.0", "legacy"] = "auto"
    final_snapshot: bool = True
    steps: bool = False
    on_interrupt: bool = False
    encrypted_reasoning: bool = False
    verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """How a server that drives runs for a dispatcher does that.

    Attributes:
        config_change: the reason, kept on the record, with which runs are taken over that another configuration
            (model, prompt, tools) began; empty: they are left to workers of theirs, or to a person.
        per_principal, per_thread: runs of one that are driven at once, on all workers together.
    """

    config_change: str = ""
    per_principal: int | None = None
    per_thread: int | None = None


@dataclass(frozen=True, slots=True)
class CancelAfter:
    """A run that nobody has followed for so many seconds is cancelled."""

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 0:
            raise ConfigError(f"CancelAfter takes seconds, got {self.seconds}")


HistoryPolicy = Literal["server", "client"]
"""Whose list of messages counts: the thread's, or the client's each time."""

OnDisconnect = Literal["continue", "cancel"] | CancelAfter

WhenBusy = Literal[
    "raise",  # 409
    "steer",  # the live run takes the message in
    "queue",  # it waits for the live run's end
    "supersede",  # the live run is stopped; the new one comes behind what it said
    "rollback",  # the live run is stopped; the new one hangs where that one hangs
    "supersede_orphan",  # supersede, unless somebody follows the live run: then raise
]
"""What a new send on a busy thread means (SV-116)."""


__all__ = [
    "CORS",
    "AGUIOptions",
    "CancelAfter",
    "HistoryPolicy",
    "OnDisconnect",
    "ServerLimits",
    "StreamOptions",
    "WhenBusy",
    "WorkOptions",
]
