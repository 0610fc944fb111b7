from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.frontends.common.connection_limits import ConnectionCaps, PortConnections, descriptors_wanted, fit


def taken(port: PortConnections, address: str, times: int) -> int:
    return sum(port.acquire(address) is not None for _ in range(times))


def test_a_port_takes_so_many_and_one_source_its_share() -> None:
    port = PortConnections(8, share=0.75)
    assert taken(port, "192.0.2.1", 20) == 6
    assert taken(port, "192.0.2.2", 20) == 2
    assert taken(port, "192.0.2.3", 20) == 0
    source = port.acquire("192.0.2.1")
    assert source is None


def test_what_is_given_back_may_be_taken_again_and_nothing_is_kept_of_who_has_left() -> None:
    port = PortConnections(4, share=0.5)
    for _ in range(100):
        sources = [port.acquire("192.0.2.1"), port.acquire("192.0.2.1")]
        assert None not in sources
        assert port.acquire("192.0.2.1") is None
        for source in sources:
            assert source is not None
            port.release(source)
    assert (len(port), len(port._held)) == (0, 0)


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("2001:db8::1", "2001:db8::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::1", "::2", False),
        ("", "", True),
    ],
)
def test_what_counts_as_one_source(first: str, second: str, are_one: bool) -> None:
    port = PortConnections(4, share=0.25)
    assert port.acquire(first) is not None
    assert (port.acquire(second) is None) is are_one


def test_trusted_proxies_may_have_all() -> None:
    port = PortConnections(8, share=0.25, exempt=[ip_network("10.0.0.0/8"), ip_network("2001:db8::/32")])
    assert taken(port, "10.1.2.3", 6) == 6
    assert taken(port, "2001:db8::1", 6) == 2
    assert port.acquire("") is None


def test_the_smallest_share_is_one_connection() -> None:
    assert taken(PortConnections(1, share=0.01), "192.0.2.1", 5) == 1


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        pytest.param(100_000, ConnectionCaps(4096, 128), id="enough"),
        pytest.param(descriptors_wanted(ConnectionCaps(4096, 128), 512), ConnectionCaps(4096, 128), id="just enough"),
        pytest.param(4096, ConnectionCaps(1536, 128), id="a usual hard limit"),
        pytest.param(1024, ConnectionCaps(240, 48), id="the usual soft limit"),
        pytest.param(64, ConnectionCaps(15, 3), id="hardly any"),
    ],
)
def test_caps_fit_into_what_may_be_open(descriptors: int, expected: ConnectionCaps) -> None:
    assert fit(ConnectionCaps(4096, 128), upstream=512, descriptors=descriptors) == expected


@given(st.integers(64, 100_000), st.integers(1, 20_000), st.integers(1, 1000), st.integers(1, 10_000))
def test_all_ports_full_at_once_leave_some_for_the_rest(descriptors: int, data: int, service: int, upstream: int) -> None:
    caps = fit(ConnectionCaps(data, service), upstream=upstream, descriptors=descriptors)
    assert 1 <= caps.data <= data
    assert 1 <= caps.service <= service
    assert 2 * (caps.data + caps.service) <= descriptors - min(256, descriptors // 4)
