"""Reads a fleet's servers from the EndpointSlices of Kubernetes Services.

Follows the API reference of `discovery.k8s.io/v1`: a slice holds up to 1,000 endpoints of one address family, and an
endpoint may be in two slices for a moment, while the controller moves it. Called by `fleet/adapters/kubernetes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.core.endpoints import ListedServer, TritonEndpoints, authority
from control_plane.core.names import POOL_NAME

POOL_LABEL = "tidegate.io/pool"
BUDGET_LABEL = "tidegate.io/memory-budget"
"""Labels of the Service, which its slices carry, too: the servers' pool, and the bytes that models may take on each."""

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|Ti|k|M|G|T|)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_FAMILIES = ("IPv4", "IPv6")
"""Address families in the order in which they are preferred; a Service of both has slices of each."""

Slice = Mapping[str, Any]
"""An EndpointSlice as JSON."""


class UnusableSlices(Exception):
    """The slices do not say where the servers are; the text says what would be right."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The servers of a Service by name, and those whose pods end."""

    servers: Mapping[str, ListedServer]
    ending: frozenset[str]


def endpoints(slices: Iterable[Slice], known: Iterable[str]) -> Endpoints:
    """Read the slices of one Service.

    A server is listed once it serves, and then (`known`) until its pod ends: one that fails its readiness for a
    while must not be drained of its models, and the gateway sees for itself who answers.

    Raises UnusableSlices.
    """
    found: dict[str, ListedServer] = {}
    ending = set[str]()
    known = frozenset(known)
    ordered = sorted(
        (each for each in slices if each.get("addressType") in _FAMILIES), key=lambda each: _FAMILIES.index(each["addressType"])
    )
    for each in ordered:
        for server, conditions in _read(each):
            serves = conditions.get("serving", conditions.get("ready", True))
            if conditions.get("terminating"):
                ending.add(server.name)
            elif serves or server.name in known:
                found.setdefault(server.name, server)
    # A pod that ends stays so, so a slice that says otherwise beside one that says that is the older one.
    return Endpoints({name: server for name, server in found.items() if name not in ending}, frozenset(ending))


def _read(it: Slice) -> Iterator[tuple[ListedServer, Mapping[str, Any]]]:
    """Yield the servers of one slice with their conditions, of which those that are unknown are left out."""
    labels = it.get("metadata", {}).get("labels") or {}
    pool, budget = _pool(labels.get(POOL_LABEL, "")), _bytes(labels.get(BUDGET_LABEL))
    members = [each for each in it.get("endpoints") or () if each.get("addresses")]
    ports = _ports(it) if members else {}
    for each in members:
        address = each["addresses"][0]
        # Of a slice's addresses only the first is to be used; a controller never writes more.
        node = authority(address, ports["node"]) if "node" in ports else ""
        where = TritonEndpoints(address, ports["http"], ports["grpc"], ports.get("metrics"), node=node)
        place = {"zone": each.get("zone"), "node": each.get("nodeName")}
        server = ListedServer(
            (each.get("targetRef") or {}).get("name") or address,
            where,
            pool,
            {name: value for name, value in place.items() if value},
            budget,
        )
        yield server, {name: value for name, value in (each.get("conditions") or {}).items() if value is not None}


def _ports(it: Slice) -> dict[str, int]:
    ports = {each.get("name"): each.get("port") for each in it.get("ports") or ()}
    if missing := [name for name in ("http", "grpc") if not isinstance(ports.get(name), int)]:
        raise UnusableSlices(
            f"the Service has no port named {' and none named '.join(missing)}; name its ports http, grpc and metrics, "
            "and node, where nodes run its Tritons"
        )
    return {name: port for name, port in ports.items() if isinstance(port, int)}


def _pool(text: str) -> str:
    if text and not POOL_NAME.fullmatch(text):
        raise UnusableSlices(f"the Service's label {POOL_LABEL} is no name of a pool, got {text!r}")
    return text


def _bytes(text: str | None) -> int | None:
    """Bytes of a Kubernetes quantity such as 70Gi."""
    if text is None:
        return None
    if (match := _QUANTITY.fullmatch(text)) is None:
        raise UnusableSlices(f"the Service's label {BUDGET_LABEL} is no number of bytes such as 70Gi, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])
