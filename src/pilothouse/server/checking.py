"""What a server cannot be told is refused where it is written, not when the first request meets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from ..conversation.controller import AgentController
from ..conversation.parts import check_parts
from ..core.agui.ends import Detail
from ..errors import ConfigError
from .served_agent import AutoRecover
from .settings import CORS, AGUIOptions, CancelAfter, HistoryPolicy, ServerLimits, StreamOptions, WhenBusy

FACES: Final = ("agui", "control", "copilotkit", "aisdk", "page")

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "when_busy": get_args(WhenBusy),
    "history": get_args(HistoryPolicy),
    "auto_recover": get_args(AutoRecover),
    "error_detail": get_args(Detail),
}
_KINDS: Final[Mapping[str, type]] = {
    "streams": StreamOptions,
    "limits": ServerLimits,
    "cors": CORS,
    "agui": AGUIOptions,
}


def check_options(agents: object, journal: object, auth: object, faces: object, **options: object) -> None:
    """Looks at the arguments of a `Server`.

    Raises:
        ConfigError: naming the argument, what it may be, and what it was.
    """
    _check_agents(agents)
    check_parts(config=None, thread_id=None, journal=journal)
    if auth is not None and not callable(auth):
        raise ConfigError(
            f"auth must be an authenticator, such as BearerTokens(…), got {type(auth).__name__}"
        )
    for face in _texts("faces", faces):
        if face not in FACES:
            raise ConfigError(f"there is no face {face!r}; there are {', '.join(FACES)}")
    for name, value in options.items():
        if name in _CHOICES and value not in _CHOICES[name]:
            raise ConfigError(f"{name} is {' or '.join(_CHOICES[name])}, not {value!r}")
        if name in _KINDS and value is not None and not isinstance(value, _KINDS[name]):
            raise ConfigError(f"{name} must be {_KINDS[name].__name__}(…), got {type(value).__name__}")
    for name in ("allowed_hosts", "trusted_proxies"):
        _texts(name, options[name])
    _check_on_disconnect(options["on_disconnect"])
    seconds = options["drain_timeout"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise ConfigError(f"drain_timeout must be a number of seconds, got {seconds!r}")


def _check_agents(agents: object) -> None:
    if not isinstance(agents, Mapping):
        raise ConfigError(
            f'agents must be a mapping, such as {{"default": agent}}, got {type(agents).__name__}'
        )
    for name, definition in agents.items():
        if not isinstance(definition, AgentController) and not callable(definition):
            raise ConfigError(
                f"agents[{name!r}] must be an AgentController, or a function of a RunContext that makes one, "
                f"got {type(definition).__name__}"
            )


def _texts(name: str, value: object) -> tuple[str, ...]:
    """The texts of a list; one text alone would be taken for its letters."""
    if isinstance(value, str | bytes):
        raise ConfigError(f"{name} must be a list of texts, got one: [{value!r}]")
    return tuple(value)  # type: ignore[arg-type]


def _check_on_disconnect(given: object) -> None:
    if isinstance(given, Mapping) and (wrong := set(given) - set(FACES)):
        raise ConfigError(f"on_disconnect: there is no face {min(wrong)!r}; there are {', '.join(FACES)}")
    for policy in given.values() if isinstance(given, Mapping) else (given,):
        if policy not in ("continue", "cancel") and not isinstance(policy, CancelAfter):
            raise ConfigError(f"on_disconnect is continue, cancel or CancelAfter(seconds), not {policy!r}")


__all__ = ["FACES", "check_options"]
