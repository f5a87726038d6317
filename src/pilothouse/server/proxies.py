"""Proxies that are trusted: who really asks, where, and by which scheme (SV-241).

Anybody can send `X-Forwarded-For`. So nothing forwarded counts unless the peer of the connection is a proxy that the host
has named; of a chain, the last entry that is no such proxy is the client. From everybody else the headers are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from msgspec import Struct

from ..errors import ConfigError


class Asked(Struct, frozen=True):
    """Who asks.

    Attributes:
        peer: the client's address; None if it is not known.
        scheme: by which it came.
        headers: of the request; `host` is the name that the client asked for.
        proxy: the trusted proxy that it came through, or None.
    """

    peer: str | None
    scheme: str
    headers: Mapping[str, str]
    proxy: str | None = None


class Networks:
    """Addresses and networks, as `10.0.0.2`, `10.0.0.0/8`, `fd00::/8`.

    Raises:
        ConfigError: something is neither.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        for name in names:
            try:
                self._networks.append(ip_network(name))
            except ValueError as error:
                raise ConfigError(f"trusted_proxies wants addresses or networks: {error}") from None

    def __bool__(self) -> bool:
        return bool(self._networks)

    def __contains__(self, address: str | None) -> bool:
        if address is None or not self._networks:
            return False
        try:
            found = ip_address(address.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)  # how a socket for both families shows IPv4
        return any((mapped or found) in network for network in self._networks)


class Proxies:
    """The proxies in front of a server."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._trusted = Networks(trusted)

    def asked(self, scope: MutableMapping[str, Any], headers: Mapping[str, str]) -> Asked:
        """Who asks; forwarded headers are read from a trusted peer only."""
        client = scope.get("client")
        peer = None if client is None else client[0]
        scheme = scope.get("scheme", "http")
        if peer not in self._trusted:
            return Asked(peer, scheme, headers)
        said = _listed(scope["headers"])
        name = (said.get("x-forwarded-host") or [""])[-1]
        proto = (said.get("x-forwarded-proto") or [""])[-1].lower()
        return Asked(
            self._client(said.get("x-forwarded-for", [])),
            proto if proto in ("http", "https") else scheme,
            {**headers, "host": name} if name else headers,
            peer,
        )

    def _client(self, chain: Sequence[str]) -> str | None:
        """The last address of a chain that is no proxy of ours; what is no address hides what stands before it."""
        for entry in reversed(chain):
            address = _address(entry)
            if address is None or address not in self._trusted:
                return address
        return None


_READ = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})


def _listed(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    """The entries of forwarded headers, in order; proxies add to a line or add a line."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        if name.lower() in _READ:
            entries = [entry.strip() for entry in value.decode("latin-1").split(",")]
            found.setdefault(name.decode("latin-1").lower(), []).extend(entries)
    return found


def _address(entry: str) -> str | None:
    """An address without its port; None if it is none."""
    if entry.startswith("["):
        entry = entry[1:].partition("]")[0]
    elif entry.count(":") == 1:
        entry = entry.partition(":")[0]
    try:
        return str(ip_address(entry))
    except ValueError:
        return None


__all__ = ["Asked", "Networks", "Proxies"]
