"""What an exception means to somebody who looks at an interface: one `AgentError` for anything that can be raised.

The order of `_RULES` is the rule: the first that has an answer decides. Text is read only where no field says it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from ..agent_errors import AgentError
from ..errors import JournalError, OutcomeError, PilothouseError, ProviderError, SendTimeout

Rule = Callable[[BaseException], AgentError | None]

_ABORTS: Final = frozenset({"AbortError", "CancelledError", "Cancelled", "APIUserAbortError"})
_NETWORK_CLASSES: Final = frozenset(
    {
        "ConnectError",
        "ConnectTimeout",
        "ConnectionClosed",
        "ClientConnectorError",
        "NetworkError",
        "NoAnswer",
        "BrokenBody",
        "ReadError",
        "RemoteProtocolError",
        "SSLError",
        "SSLCertVerificationError",
        "TransportError",
        "WriteError",
        "APIConnectionError",
        "gaierror",
    }
)
_NETWORK_WORDS: Final = re.compile(
    r"failed to fetch|network ?error|connection (?:refused|reset|closed|error|aborted)|name resolution"
    r"|getaddrinfo|name or service not known|no address associated|dns|econn(?:refused|reset|aborted)|enotfound|etimedout"
    r"|socket hang up|connect(?:ion)? timed? ?out|unreachable|ssl|tls|certificate|\boffline\b|all connection attempts failed",
    re.IGNORECASE,
)
_SPELLED_STATUS: Final = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?|status(?:[ _-]?code)?|code)\b[\s:='\"]{1,3}([1-5]\d\d)\b", re.IGNORECASE
)
_WAITABLE: Final = frozenset({408, 425, 429})


def classify(error: object, *, run_id: str | None = None) -> AgentError:
    """The error to show. An `AgentError` comes back as it is; of anything else it is the cause.

    Never raises, whatever the object's attributes do.
    """
    if isinstance(error, AgentError):
        return error
    if not isinstance(error, BaseException):
        return _named(AgentError(_text(error) or "the run failed", "server", retryable=True), run_id)
    try:
        found = next(made for rule in _RULES if (made := rule(error)) is not None)
    except Exception:  # noqa: BLE001 - an object whose attributes raise says nothing
        found = AgentError("the run failed", "server", retryable=True)
    if found not in _chain(error):  # one that was told before is told again as it is
        found.__cause__ = error
    return _named(found, run_id)


def of_status(
    status: int, message: str, *, code: str | None = None, retry_after: float | None = None
) -> AgentError:
    """The error of an HTTP status; 2xx and 3xx are no failure of their own and keep no status."""
    if status in (401, 403):
        return AgentError(message, "auth", status=status, code=code)
    if status >= 500 or status in _WAITABLE:
        named = "rate_limited" if status == 429 else code
        return AgentError(
            message, "server", retryable=True, status=status, code=named, retry_after=retry_after
        )
    if status >= 400:
        return AgentError(message, "server", status=status, code=code)
    return AgentError(message, "server", retryable=True, code=code)


def _named(error: AgentError, run_id: str | None) -> AgentError:
    if error.run_id is None:
        error.run_id = run_id
    return error


def _text(error: object) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001
        return ""


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    here: BaseException | None = error
    while here is not None and id(here) not in seen and len(seen) < 8:
        seen.add(id(here))
        yield here
        here = here.__cause__ or (None if here.__suppress_context__ else here.__context__)


def _ours(error: BaseException) -> AgentError | None:
    """Typed exceptions of our tree."""
    for here in _chain(error):
        if isinstance(here, AgentError):
            return here
        if isinstance(here, ProviderError) and here.info is not None:
            return of_kind(here.info.kind, _text(error), code=here.info.code, retryable=here.retryable)
        if isinstance(here, SendTimeout):
            return AgentError(_text(error), "connection", retryable=True, code=here.code)
    if isinstance(error, JournalError | OutcomeError):
        return AgentError(_text(error), "server", retryable=error.retryable, code=error.code)
    if isinstance(error, PilothouseError) and type(error).__module__.startswith("pilothouse"):
        return AgentError(_text(error), "server", retryable=error.retryable, code=error.code)
    return None


_KINDS: Final[dict[str, tuple[str, str | None]]] = {
    "auth": ("auth", None),
    "transport": ("connection", None),
    "send_timeout": ("connection", None),
    "rate_limit": ("server", "rate_limited"),
}


def of_kind(
    kind: str,
    message: str,
    *,
    code: str | None = None,
    retryable: bool = False,
    retry_after: float | None = None,
) -> AgentError:
    """The error of a failure that names one of our kinds (`responses.ErrorKind`)."""
    shown, named = _KINDS.get(kind, ("server", None))
    if shown == "connection":
        retryable = True
    return AgentError(
        message,
        shown,  # type: ignore[arg-type]
        retryable=retryable and shown != "auth",
        code=code or named or kind,
        retry_after=retry_after,
    )


def _abort(error: BaseException) -> AgentError | None:
    """An abort that nobody asked for: an asked one is no error and does not come here."""
    if type(error).__name__ in _ABORTS or _attribute(error, "name") in _ABORTS:
        return AgentError(_text(error), "connection", retryable=True)
    return None


def _status(error: BaseException) -> AgentError | None:
    for here in _chain(error):
        for source in (here, _attribute(here, "response")):
            for name in ("status", "status_code"):
                value = None if source is None else _attribute(source, name)
                if isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600:
                    return of_status(value, _text(error), retry_after=_retry_after(here))
    return None


def _retry_after(error: BaseException) -> float | None:
    told = _attribute(error, "retry_after")
    if isinstance(told, int | float) and not isinstance(told, bool):
        return float(told)
    headers = _attribute(_attribute(error, "response"), "headers")
    value = headers.get("retry-after") if hasattr(headers, "get") else None
    return float(value) if isinstance(value, str) and value.isdigit() else None


def _network(error: BaseException) -> AgentError | None:
    for here in _chain(error):
        names = {kind.__name__ for kind in type(here).__mro__}
        if names & _NETWORK_CLASSES or isinstance(here, ConnectionError | TimeoutError):
            return AgentError(_text(error), "connection", retryable=True)
    text = _text(error)
    return AgentError(text, "connection", retryable=True) if _NETWORK_WORDS.search(text) else None


def _spelled(error: BaseException) -> AgentError | None:
    found = _SPELLED_STATUS.search(_text(error))
    return None if found is None else of_status(int(found[1]), _text(error))


def _anything(error: BaseException) -> AgentError:
    return AgentError(_text(error) or "the run failed", "server", retryable=True)


def _attribute(source: Any, name: str) -> Any:
    return getattr(source, name, None)


_RULES: Final[tuple[Rule, ...]] = (_ours, _abort, _status, _network, _spelled, _anything)


__all__ = ["classify", "of_kind", "of_status"]
