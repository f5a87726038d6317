"""Who asks, behind proxies that are trusted and behind others (SV-241)."""

from __future__ import annotations

import pytest

from pilothouse.errors import ConfigError
from pilothouse.server.proxies import Networks, Proxies

TRUSTED = ("10.0.0.0/8", "fd00::/8", "127.0.0.1")


def asked(peer: str | None, *headers: tuple[str, str], trusted=TRUSTED):
    lines = [("host", "inner:8700"), *headers]
    scope = {
        "client": None if peer is None else (peer, 1),
        "scheme": "http",
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines],
    }
    return Proxies(trusted).asked(scope, dict(lines))


FOR = "x-forwarded-for"
CHAINS = [
    ([(FOR, "1.2.3.4")], "1.2.3.4"),
    ([(FOR, "6.6.6.6, 1.2.3.4")], "1.2.3.4"),  # what stands before it is the client's claim
    ([(FOR, "6.6.6.6"), (FOR, "1.2.3.4")], "1.2.3.4"),  # some proxies add a line
    ([(FOR, "1.2.3.4, 10.0.0.9, 10.0.0.8")], "1.2.3.4"),  # a chain of ours
    ([(FOR, "1.2.3.4:5678")], "1.2.3.4"),
    ([(FOR, "[2001:db8::1]:5678")], "2001:db8::1"),
    ([(FOR, "2001:db8::1")], "2001:db8::1"),
    ([(FOR, "127.0.0.1")], None),  # nobody but proxies
    ([(FOR, "6.6.6.6, unknown")], None),  # what is no address hides what stands before it
    ([(FOR, "6.6.6.6, ")], None),
    ([(FOR, "")], None),
    ([], None),
]


@pytest.mark.parametrize(("headers", "client"), CHAINS)
def test_the_client_is_the_last_that_is_no_proxy_of_ours(headers, client: str | None) -> None:
    """SV-241: a client cannot name itself."""
    found = asked("10.0.0.2", *headers)
    assert (found.peer, found.proxy) == (client, "10.0.0.2")
    direct = asked("1.1.1.1", *headers)
    assert (direct.peer, direct.proxy) == ("1.1.1.1", None)


@pytest.mark.parametrize("peer", ["10.0.0.2", "::ffff:10.0.0.2", "fd00::7", "127.0.0.1"])
def test_scheme_and_host_are_what_a_trusted_proxy_says(peer: str) -> None:
    """SV-241: the nearest proxy's word counts; a scheme that is none does not."""
    said = [("x-forwarded-proto", "http, HTTPS"), ("x-forwarded-host", "evil.example, chat.example")]
    found = asked(peer, *said)
    assert (found.scheme, found.headers["host"]) == ("https", "chat.example")
    assert asked(peer, ("x-forwarded-proto", "javascript")).scheme == "http"


@pytest.mark.parametrize("peer", ["1.1.1.1", "11.0.0.2", "::ffff:1.1.1.1", "somewhere", None])
def test_nothing_is_read_from_anybody_else(peer: str | None) -> None:
    """SV-241."""
    said = [("x-forwarded-proto", "https"), ("x-forwarded-host", "evil.example"), (FOR, "10.0.0.2")]
    found = asked(peer, *said)
    assert (found.peer, found.scheme, found.headers["host"], found.proxy) == (
        peer,
        "http",
        "inner:8700",
        None,
    )
    nobody = asked("10.0.0.2", *said, trusted=())
    assert (nobody.peer, nobody.proxy) == ("10.0.0.2", None)


@pytest.mark.parametrize("wrong", ["proxy.example", "10.0.0.1/8", "10.0.0.0/33", "*", ""])
def test_a_name_that_is_no_network_is_a_mistake(wrong: str) -> None:
    """One line that says what is wanted."""
    with pytest.raises(ConfigError, match="trusted_proxies"):
        Networks([wrong])
