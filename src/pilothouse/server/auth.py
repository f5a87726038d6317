"""Who asks: principals, and the authenticators that make them of a request (SV-10, SV-17, SV-18).

An authenticator sees a request's head, never its body. It raises `Unauthenticated`; what else it raises is a fault of
ours or of the host and answered as such.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from ipaddress import ip_address
from typing import Any, Protocol, final
from urllib.parse import urlsplit

from msgspec import Struct, field

from ..errors import ConfigError, PilothouseError
from ..messages import JSON
from .proxies import Networks

FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Principal(Struct, frozen=True):
    """Who acts. `tenant` is the isolation key: nothing of one tenant can be reached by another."""

    id: str
    tenant: str
    roles: frozenset[str] = frozenset()
    attributes: Mapping[str, JSON] = field(default_factory=dict)


class AuthRequest(Struct, frozen=True):
    """A request's head. Names of headers are in lower case; of a repeated one the last value counts.

    `peer`, `scheme` and the header `host` are those of the client, also behind a proxy that is trusted: that one is `proxy`.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str | None
    scheme: str = "http"
    user: Any = None
    proxy: str | None = None


class Unauthenticated(PilothouseError):
    """Nobody, or not somebody that we know."""

    code = "unauthenticated"


class Authenticator(Protocol):
    """Makes a principal of a request."""

    async def __call__(self, request: AuthRequest, /) -> Principal:
        """Who asks.

        Raises:
            Unauthenticated: nobody that we know.
        """
        ...


def is_loopback(host: str | None) -> bool:
    """Whether an address is this machine's own."""
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0]


def same_origin(request: AuthRequest, origin: str) -> bool:
    """Whether a page of that origin was served by us."""
    found = urlsplit(origin)
    return found.scheme in ("http", "https") and found.netloc == request.headers.get("host", "")


@final
class LoopbackOnly:
    """The default: whoever is on this machine, and nobody in between.

    The Host must be this machine's (against DNS rebinding), an Origin must be ours or allowed by `origins`, and a
    forwarding header means that the peer is a proxy.
    """

    def __init__(self, allowed_hosts: Sequence[str] = (), origins: Sequence[str] = ()) -> None:
        self._hosts = frozenset(allowed_hosts)
        self._origins = frozenset(origins)

    async def __call__(self, request: AuthRequest, /) -> Principal:
        """The one principal `local` of tenant `local`."""
        headers = request.headers
        if not is_loopback(request.peer) or any(name in headers for name in FORWARDED):
            raise Unauthenticated("only this machine may ask: give the server an authenticator")
        host = host_name(headers.get("host", ""))
        if not (is_loopback(host) or host in self._hosts):
            raise Unauthenticated("the Host is not this machine's: add it to allowed_hosts")
        origin = headers.get("origin")
        allowed = origin is None or same_origin(request, origin) or self._origins & {origin, "*"}
        if not allowed:
            raise Unauthenticated("the Origin is not ours: add it to cors")
        return Principal("local", "local")


@final
class BearerTokens:
    """Tokens in the Authorization header, known by their SHA-256 in hex; compared in constant time, never logged."""

    def __init__(self, principals: Mapping[str, Principal]) -> None:
        for digest in principals:
            if len(digest) != 64 or not all(char in "0123456789abcdef" for char in digest):
                raise ConfigError("BearerTokens wants SHA-256 digests in lower-case hex, not tokens")
        self._principals = dict(principals)

    async def __call__(self, request: AuthRequest, /) -> Principal:
        """Whose token it is."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        digest = sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
        found: Principal | None = None
        for known, principal in self._principals.items():  # all of them, whether found or not
            if hmac.compare_digest(known, digest):
                found = principal
        if scheme.lower() != "bearer" or found is None:
            raise Unauthenticated("a bearer token is wanted")
        return found


@final
class TrustedHeader:
    """A header in which a proxy of ours names who is signed in; from anybody else it counts for nothing.

    Args:
        name: of the header; the proxy must set or remove it on every request.
        trusted_proxies: addresses or networks; none takes those of the server.
        tenant: of everybody; else each is a tenant of its own.
    """

    def __init__(self, name: str, trusted_proxies: Sequence[str] = (), *, tenant: str | None = None) -> None:
        self._name = name.lower()
        self._proxies = Networks(trusted_proxies)
        self._tenant = tenant

    async def __call__(self, request: AuthRequest, /) -> Principal:
        """Whom the proxy names."""
        name = request.headers.get(self._name, "").strip()
        proxied = request.proxy is not None
        if self._proxies:
            proxied = (request.proxy or request.peer) in self._proxies
        if not proxied or not name:
            raise Unauthenticated(f"the proxy names nobody in {self._name}")
        return Principal(name, self._tenant or name)


@final
class HostUser:
    """The user that the application around us found: `scope["user"]`, of Starlette's authentication, for example.

    Its identity may be borne by a cookie, so a request that changes something needs an Origin that is ours or allowed.
    """

    def __init__(self, origins: Sequence[str] = ()) -> None:
        if isinstance(origins, str):
            raise ConfigError(f"origins must be a list of texts, got one: [{origins!r}]")
        self._origins = frozenset(origins)

    async def __call__(self, request: AuthRequest, /) -> Principal:
        """That user; each is a tenant of its own."""
        user = request.user
        name = str(getattr(user, "identity", None) or getattr(user, "display_name", "") or "")
        if user is None or not getattr(user, "is_authenticated", True) or not name:
            raise Unauthenticated("nobody is signed in")
        if request.method not in SAFE_METHODS:
            origin = request.headers.get("origin")
            if origin is None or not (same_origin(request, origin) or self._origins & {origin, "*"}):
                raise Unauthenticated("a change needs an Origin that is ours or allowed")
        return Principal(name, name)


__all__ = [
    "AuthRequest",
    "Authenticator",
    "BearerTokens",
    "HostUser",
    "LoopbackOnly",
    "Principal",
    "TrustedHeader",
    "Unauthenticated",
    "is_loopback",
]
