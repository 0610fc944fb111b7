from __future__ import annotations

from typing import Any

import pytest

from control_plane.core.endpoints import ListedServer, TritonEndpoints
from control_plane.fleet.domain.endpoint_slices import UnusableSlices, endpoints
from control_plane.settings import split_place
from tests.kubernetes_api import endpoint, endpoint_slice


def names(*slices: dict[str, Any], known: tuple[str, ...] = ()) -> list[str]:
    return sorted(endpoints(slices, known).servers)


def test_an_endpoint_is_a_server_with_its_place_pool_and_budget() -> None:
    found = endpoints([endpoint_slice("s", endpoint("triton-a", "10.0.0.1"), pool="long", memory_budget="70Gi")], ())
    where = TritonEndpoints("10.0.0.1", 8000, 8001, 8002)
    assert found.servers == {"triton-a": ListedServer("triton-a", where, "long", {"zone": "a", "node": "node-1"}, 70 * 2**30)}


@pytest.mark.parametrize(
    ("conditions", "is_known", "is_listed"),
    [
        pytest.param({}, False, True, id="ready"),
        pytest.param({"ready": None, "serving": None, "terminating": None}, False, True, id="nothing is said"),
        pytest.param({"ready": False, "serving": False}, False, False, id="not ready yet"),
        pytest.param({"ready": False, "serving": False}, True, True, id="not ready for a while"),
        pytest.param({"ready": False, "serving": None}, False, False, id="an older controller, not ready"),
        pytest.param({"ready": False, "serving": True, "terminating": True}, True, False, id="ends, and still serves"),
        pytest.param({"ready": False, "serving": False, "terminating": True}, True, False, id="ends"),
    ],
)
def test_who_is_listed(conditions: dict[str, bool | None], is_known: bool, is_listed: bool) -> None:
    one = endpoint_slice("s", endpoint("a", "10.0.0.1", **conditions))
    assert names(one, known=("a",) if is_known else ()) == (["a"] if is_listed else [])


def test_an_endpoint_in_two_slices_is_one_server_and_ends_if_either_says_so() -> None:
    one, two = endpoint_slice("s1", endpoint("a", "10.0.0.1")), endpoint_slice("s2", endpoint("a", "10.0.0.1"))
    assert names(one, two) == ["a"]
    ends = endpoint_slice("s2", endpoint("a", "10.0.0.1", terminating=True))
    assert names(one, ends) == names(ends, one) == []


def test_of_two_address_families_the_first_is_used() -> None:
    four, six = endpoint_slice("s4", endpoint("a", "10.0.0.1")), endpoint_slice("s6", endpoint("a", "fd00::1"), family="IPv6")
    for order in ([four, six], [six, four]):
        assert endpoints(order, ()).servers["a"].endpoints.host == "10.0.0.1"
    assert endpoints([six], ()).servers["a"].endpoints.host == "fd00::1"
    assert names(endpoint_slice("s", endpoint("a", "triton.example"), family="FQDN")) == []


def test_without_a_pod_a_server_is_named_by_its_address() -> None:
    outside = {**endpoint("x", "192.0.2.7", zone=None), "targetRef": None, "nodeName": None, "conditions": {}}
    assert endpoints([endpoint_slice("s", outside)], ()).servers == {
        "192.0.2.7": ListedServer("192.0.2.7", TritonEndpoints("192.0.2.7", 8000, 8001, 8002))
    }


def test_metrics_are_optional_and_the_other_ports_are_not() -> None:
    it = endpoint_slice("s", endpoint("a", "10.0.0.1"))
    it["ports"] = [port for port in it["ports"] if port["name"] != "metrics"]
    assert endpoints([it], ()).servers["a"].endpoints.metrics_port is None
    it["ports"] = [port for port in it["ports"] if port["name"] != "grpc"]
    with pytest.raises(UnusableSlices, match="no port named grpc; name its ports http, grpc and metrics"):
        endpoints([it], ())


@pytest.mark.parametrize(("family", "address", "node"), [("IPv4", "10.0.0.1", "10.0.0.1:8500"), ("IPv6", "fd00::1", "[fd00::1]:8500")])
def test_a_port_called_node_is_the_nodes_of_the_same_pod(family: str, address: str, node: str) -> None:
    it = endpoint_slice("s", endpoint("a", address), family=family)
    it["ports"].append({"name": "node", "port": 8500, "protocol": "TCP"})
    assert endpoints([it], ()).servers["a"].endpoints.node == node
    assert split_place(node) == (address, 8500)


def test_an_empty_slice_says_nothing() -> None:
    assert names({**endpoint_slice("s"), "endpoints": None, "ports": None}) == []


@pytest.mark.parametrize(("text", "expected"), [("70Gi", 70 * 2**30), ("1.5Gi", 3 * 2**29), ("80G", 80 * 10**9), ("1024", 1024)])
def test_budgets(text: str, expected: int) -> None:
    found = endpoints([endpoint_slice("s", endpoint("a", "10.0.0.1"), memory_budget=text)], ())
    assert found.servers["a"].memory_budget == expected


@pytest.mark.parametrize("text", ["", "70GiB", "-1", "much", "1e9"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(UnusableSlices, match="no number of bytes such as 70Gi"):
        endpoints([endpoint_slice("s", endpoint("a", "10.0.0.1"), memory_budget=text)], ())
