from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.auth.domain.client_address import client_address_of

TRUSTED = [ip_network("10.0.0.0/8"), ip_network("fd00::/8")]

ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6).filter(lambda address: address.ipv4_mapped is None))
OUTSIDE = ADDRESSES.filter(lambda address: not any(address in network for network in TRUSTED))
HEADERS = st.one_of(st.text(max_size=200), st.lists(st.one_of(ADDRESSES.map(str), st.text(max_size=20))).map(",".join))


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "source"),
    [
        pytest.param("192.0.2.1", None, "192.0.2.1", id="no proxy"),
        pytest.param("10.0.0.1", None, "10.0.0.1", id="a proxy that says nothing"),
        pytest.param("192.0.2.1", "198.51.100.7", "192.0.2.1", id="a caller that says something is not believed"),
        pytest.param("10.0.0.1", "198.51.100.7", "198.51.100.7", id="a proxy is believed"),
        pytest.param("10.0.0.1", "1.1.1.1, 198.51.100.7", "198.51.100.7", id="what the caller had put before is not"),
        pytest.param("10.0.0.1", "198.51.100.7, 10.0.0.2", "198.51.100.7", id="two proxies"),
        pytest.param("10.0.0.1", "1.1.1.1,198.51.100.7,10.0.0.2", "198.51.100.7", id="two proxies and a forged one"),
        pytest.param("10.0.0.1", "10.9.9.9, 198.51.100.7", "198.51.100.7", id="a forged proxy"),
        pytest.param("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3", id="all trusted: the first of them"),
        pytest.param("10.0.0.1", "", "10.0.0.1", id="empty"),
        pytest.param("10.0.0.1", "garbage", "10.0.0.1", id="garbage from a proxy"),
        pytest.param("10.0.0.1", "1.1.1.1, garbage, 10.0.0.2", "10.0.0.2", id="no further than garbage"),
        pytest.param("10.0.0.1", "unknown", "10.0.0.1", id="what RFC 7239 calls unknown"),
        pytest.param("10.0.0.1", "198.51.100.7:4711", "198.51.100.7", id="with a port"),
        pytest.param("10.0.0.1", "[2001:db8::7]:4711", "2001:db8::7", id="IPv6 with a port"),
        pytest.param("10.0.0.1", "2001:db8::7", "2001:db8::7", id="IPv6"),
        pytest.param("10.0.0.1", "2001:DB8:0::7", "2001:db8::7", id="one spelling of each"),
        pytest.param("fd00::1", "198.51.100.7", "198.51.100.7", id="a proxy over IPv6"),
        pytest.param("::ffff:10.0.0.1", "198.51.100.7", "198.51.100.7", id="a proxy over IPv4, as a socket for both says it"),
        pytest.param("10.0.0.1", "::ffff:198.51.100.7", "198.51.100.7", id="the same of a caller"),
        pytest.param("10.0.0.1", "fe80::1%<script>", "fe80::1", id="a zone is made up easily"),
        pytest.param("", "198.51.100.7", "", id="a Unix socket has no address to trust"),
        pytest.param("10.0.0.1", "0x7f.1", "10.0.0.1", id="no address as C would read it"),
        pytest.param("10.0.0.1", "010.0.0.1", "10.0.0.1", id="no octal"),
    ],
)
def test_sources(peer: str, forwarded_for: str | None, source: str) -> None:
    assert client_address_of(peer, forwarded_for, TRUSTED) == source


@given(ADDRESSES, st.none() | HEADERS)
def test_without_trusted_proxies_the_header_has_no_say(peer: IPv4Address | IPv6Address, forwarded_for: str | None) -> None:
    assert client_address_of(str(peer), forwarded_for, []) == str(peer)


@given(OUTSIDE, st.none() | HEADERS)
def test_nobody_but_a_trusted_proxy_is_believed(peer: IPv4Address | IPv6Address, forwarded_for: str | None) -> None:
    assert client_address_of(str(peer), forwarded_for, TRUSTED) == str(peer)


@given(HEADERS, OUTSIDE, st.lists(st.sampled_from(["10.0.0.2", "10.1.2.3", "fd00::2"]), max_size=3))
def test_a_caller_cannot_hide_behind_what_it_writes(forged: str, caller: IPv4Address | IPv6Address, proxies: list[str]) -> None:
    """Each proxy appends the address it was reached from; what the caller made up stands before the caller's
    own address.
    """
    assert client_address_of("10.0.0.1", ", ".join([forged, str(caller), *proxies]), TRUSTED) == str(caller)


@given(st.text(max_size=50), HEADERS)
def test_whatever_comes_there_is_an_answer(peer: str, forwarded_for: str) -> None:
    source = client_address_of(peer, forwarded_for, TRUSTED)
    assert source == peer or source.isprintable()
