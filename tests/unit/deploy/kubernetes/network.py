"""Who may connect to whom by the NetworkPolicies of an overlay: a connection needs the leave of a policy of
both ends, where policies select them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

from tests.unit.deploy.rendered import Object, containers, of_kind, workloads

NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True)
class Pod:
    """A kind of pod, of ours or of somebody else."""

    name: str
    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: tuple[tuple[str, int, str], ...] = ()
    """(protocol, number, name) of each port that it listens on."""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    """Address of an end outside the cluster; empty for a pod."""


SUBSCRIBES = {"tidegate.io/events": "subscriber"}
STRANGERS = (
    Pod("a pod of another namespace", "default", ports=(("TCP", 80, "http"), ("TCP", 443, "https"), ("TCP", 8000, "http-alt"))),
    Pod("the API server", "(host)", ports=(("TCP", 443, "https"), ("TCP", 6443, "api"), ("TCP", 8443, "of minikube"))),
    Pod("DNS", "kube-system", {"k8s-app": "kube-dns"}, (("UDP", 53, "dns"), ("TCP", 53, "dns-tcp"))),
    Pod("Prometheus", "monitoring", {"app.kubernetes.io/name": "prometheus"}),
    Pod("a Triton that is there already", "models", ports=(("TCP", 8000, "http"), ("TCP", 8001, "grpc"), ("TCP", 8002, "metrics"))),
    Pod("an unlabelled pod of our namespace", "tidegate"),
    Pod("a subscriber", "billing", SUBSCRIBES, namespace_labels=SUBSCRIBES),
    Pod("who calls itself a subscriber", "default", SUBSCRIBES),
    Pod("another region", "(outside)", ports=(("TCP", 8000, "http"), ("TCP", 8001, "grpc"), ("TCP", 8002, "m")), address="203.0.113.10"),
    Pod("another address", "(outside)", ports=(("TCP", 8000, "http"), ("TCP", 8001, "grpc")), address="203.0.113.11"),
)


def pods(objects: Sequence[Object]) -> list[Pod]:
    """The pods of an overlay, then strangers."""
    ours = [
        Pod(
            workload["metadata"]["name"],
            workload["metadata"]["namespace"],
            workload["spec"]["template"]["metadata"]["labels"],
            tuple(("TCP", port["containerPort"], port["name"]) for each in containers(workload) for port in each.get("ports", [])),
        )
        for workload in workloads(objects)
    ]
    return [*ours, *STRANGERS]


def table(objects: Sequence[Object]) -> str:
    """Every pair that may connect, and by which ports."""
    policies = of_kind(objects, "NetworkPolicy")
    return "".join(f"{line}\n" for line in _lines(policies, pods(objects)))


def _lines(policies: Sequence[Object], everybody: Sequence[Pod]) -> Iterator[str]:
    for source in everybody:
        for target in everybody:
            if "tidegate" not in (source.namespace, target.namespace):
                continue
            open_ports = [port for port in target.ports if may_connect(policies, source, target, port)]
            if open_ports:
                yield f"{source.name} -> {target.name}: " + ", ".join(f"{number}/{protocol}" for protocol, number, _ in open_ports)


def may_connect(policies: Sequence[Object], source: Pod, target: Pod, port: tuple[str, int, str]) -> bool:
    return _allows(policies, "Egress", source, target, port) and _allows(policies, "Ingress", target, source, port)


def _allows(policies: Sequence[Object], direction: str, subject: Pod, peer: Pod, port: tuple[str, int, str]) -> bool:
    mine = [
        each["spec"]
        for each in policies
        if direction in each["spec"]["policyTypes"]
        and each["metadata"]["namespace"] == subject.namespace
        and _selects(each["spec"]["podSelector"], subject.labels)
    ]
    rules = [rule for spec in mine for rule in spec.get(direction.lower(), [])]
    return not mine or any(_permits(rule, direction, subject, peer, port) for rule in rules)


def _permits(rule: Mapping[str, Any], direction: str, subject: Pod, peer: Pod, port: tuple[str, int, str]) -> bool:
    peers, ports = rule.get("to" if direction == "Egress" else "from"), rule.get("ports")
    is_peer = peers is None or any(_is(each, subject, peer) for each in peers)
    return is_peer and (
        ports is None or any((each["protocol"], each["port"]) in ((port[0], port[1]), (port[0], port[2])) for each in ports)
    )


def _is(selector: Mapping[str, Any], subject: Pod, peer: Pod) -> bool:
    assert selector.keys() <= {"namespaceSelector", "podSelector"} or selector.keys() == {"ipBlock"}
    if "ipBlock" in selector:
        assert selector["ipBlock"].keys() == {"cidr"}
        return peer.address != "" and ip_address(peer.address) in ip_network(selector["ipBlock"]["cidr"])
    if "namespaceSelector" in selector:
        in_namespace = _selects(selector["namespaceSelector"], {NAMESPACE: peer.namespace, **peer.namespace_labels})
    else:
        in_namespace = peer.namespace == subject.namespace
    return in_namespace and _selects(selector.get("podSelector", {}), peer.labels)


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()
