"""What remote clients need of HTTP: a `Wire` to send on, credentials, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from ..agent_errors import AgentError
from ..core.classify import of_status
from ..responses import Timeouts

Auth: TypeAlias = str | Mapping[str, str] | Callable[[], "Mapping[str, str] | Awaitable[Mapping[str, str]]"]
"""A bearer token, headers, or a function that is asked for headers before each request."""


class Stream(Protocol):
    """An answer whose head is in."""

    @property
    def status(self) -> int:
        """HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Lower-case names."""
        ...

    async def read(self) -> bytes:
        """The next bytes; b"" at the regular end. Raises `transport.BrokenBody`."""
        ...

    async def read_error(self, timeout_s: float) -> bytes:
        """An error's body, as much as comes in time."""
        ...


class Wire(Protocol):
    """What opens requests; `transport.Transport` is one."""

    def request(
        self, method: str, url: str, *, headers: Mapping[str, str], content: bytes, timeouts: Timeouts
    ) -> AbstractAsyncContextManager[Stream]:
        """One request. Raises `transport.NoAnswer`."""
        ...

    async def aclose(self) -> None:
        """Closes its connections."""
        ...


TIMEOUTS: Final = Timeouts(connect=15.0, error_body=5.0)


async def credentials(auth: Auth | None) -> dict[str, str]:
    """The headers of a request."""
    if auth is None:
        return {}
    if isinstance(auth, str):
        return {"authorization": f"Bearer {auth}"}
    if isinstance(auth, Mapping):
        return dict(auth)
    found = auth()
    return dict(await found if isawaitable(found) else found)


async def refusal(answer: Stream) -> AgentError:
    """The error of an answer ≥ 400, in the server's own words where it has some."""
    body = await answer.read_error(TIMEOUTS.error_body)
    problem = _problem(body)
    said = next((str(problem[name]) for name in _WORDS if problem.get(name)), "")
    if not said and not problem:
        said = body.decode("utf-8", "replace").strip().partition("\n")[0][:300]
    message = f"HTTP {answer.status}" + (f": {said}" if said else "")
    code = problem.get("code")
    after = answer.headers.get("retry-after", "")
    return of_status(
        answer.status,
        message,
        code=code if isinstance(code, str) else None,
        retry_after=float(after) if after.isdigit() else None,
    )


_WORDS: Final = ("detail", "message", "error", "title")


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


__all__ = ["TIMEOUTS", "Auth", "Stream", "Wire", "credentials", "refusal"]
