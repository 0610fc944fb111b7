"""A real API server with its etcd, from the programs of `KUBEBUILDER_ASSETS` (kube-apiserver, etcd), as envtest starts them.

The gateway's service account is a user of a static token, bound by deploy/kubernetes' own Roles. Nothing else of Kubernetes
runs: no controller, scheduler or kubelet.
"""

from __future__ import annotations

import csv
import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.redis_server import free_port
from tests.tls_files import Authority

ASSETS = Path(os.environ["KUBEBUILDER_ASSETS"]) if "KUBEBUILDER_ASSETS" in os.environ else None
WHY_NOT = "KUBEBUILDER_ASSETS names no folder with kube-apiserver and etcd"
_START_S = 120.0
_MANIFESTS = Path(__file__).parents[1] / "deploy/kubernetes"
_OURS = (
    "base/gateway/discovery.yaml",
    "components/lease/rights.yaml",
    "components/model-resources/definition.yaml",
    "components/model-resources/rights.yaml",
)
_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/tidegate/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/tidegate/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/tidegate/rolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "EndpointSlice": "/apis/discovery.k8s.io/v1/namespaces/tidegate/endpointslices",
    "Lease": "/apis/coordination.k8s.io/v1/namespaces/tidegate/leases",
    "Model": "/apis/tidegate.io/v1alpha1/namespaces/tidegate/models",
}


def is_there() -> bool:
    return ASSETS is not None and all((ASSETS / name).exists() for name in ("kube-apiserver", "etcd"))


@dataclass
class RealApi:
    """The server, for an administrator; `account` is the folder in which the gateway finds its token."""

    url: str
    account: Path
    admin: httpx.Client

    def apply(self, it: Mapping[str, Any]) -> None:
        """Create or replace an object."""
        collection, name = _COLLECTIONS[it["kind"]], it["metadata"]["name"]
        held = self.get(it["kind"], name)
        if held is None:
            self.admin.post(collection, json=it).raise_for_status()
        else:
            metadata = {**it["metadata"], "resourceVersion": held["metadata"]["resourceVersion"]}
            self.admin.put(f"{collection}/{name}", json={**it, "metadata": metadata}).raise_for_status()

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        answer = self.admin.get(f"{_COLLECTIONS[kind]}/{name}")
        return None if answer.status_code == 404 else dict(answer.raise_for_status().json())

    def delete(self, kind: str, name: str) -> None:
        """Delete an object, if there is one."""
        if (answer := self.admin.delete(f"{_COLLECTIONS[kind]}/{name}")).status_code != 404:
            answer.raise_for_status()


@contextmanager
def real_api(folder: Path) -> Iterator[RealApi]:
    assert ASSETS is not None, WHY_NOT
    authority = Authority(folder)
    served = authority.issue("kubernetes")
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("gateway-token\n")
    (account / "namespace").write_text("tidegate")
    (account / "ca.crt").write_bytes(authority.certificate.read_bytes())
    with (folder / "tokens.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ("admin-token", "admin", "1", "system:masters"),
                ("gateway-token", "system:serviceaccount:tidegate:gateway", "2", "system:serviceaccounts,system:serviceaccounts:tidegate"),
            ]
        )
    etcd_port, etcd_peer_port, port = free_port(), free_port(), free_port()
    etcd, peers, url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{etcd_peer_port}", f"https://127.0.0.1:{port}"
    of_etcd = ("data-dir", folder / "etcd"), ("listen-client-urls", etcd), ("advertise-client-urls", etcd), ("listen-peer-urls", peers)
    of_server = (
        ("etcd-servers", etcd),
        ("bind-address", "127.0.0.1"),
        ("secure-port", port),
        ("cert-dir", folder / "certificates"),
        ("tls-cert-file", served.certificate),
        ("tls-private-key-file", served.key),
        ("service-account-issuer", "https://kubernetes.default.svc"),
        ("service-account-key-file", served.key),
        ("service-account-signing-key-file", served.key),
        ("service-cluster-ip-range", "10.0.0.0/24"),
        ("authorization-mode", "RBAC"),
        ("token-auth-file", folder / "tokens.csv"),
        ("disable-admission-plugins", "ServiceAccount"),
    )
    with ExitStack() as ends:
        _start(ends, folder, ASSETS / "etcd", of_etcd)
        _start(ends, folder, ASSETS / "kube-apiserver", of_server)
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        headers = {"authorization": "Bearer admin-token"}
        admin = ends.enter_context(httpx.Client(base_url=url, headers=headers, verify=tls, timeout=30.0, trust_env=False))
        _await_ready(admin, folder)
        api = RealApi(url, account, admin)
        api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tidegate"}})
        for path in _OURS:
            for it in yaml.safe_load_all((_MANIFESTS / path).read_text()):
                if it["kind"] in _COLLECTIONS:
                    api.apply(it)
        yield api


def _start(ends: ExitStack, folder: Path, program: Path, flags: tuple[tuple[str, object], ...]) -> None:
    words = [str(program), *(f"--{name}={value}" for name, value in flags)]
    log = ends.enter_context((folder / f"{program.name}.log").open("wb"))
    process = subprocess.Popen(words, stdout=log, stderr=log)
    ends.callback(process.wait)
    ends.callback(process.kill)


def _await_ready(admin: httpx.Client, folder: Path) -> None:
    deadline_s = time.monotonic() + _START_S
    while True:
        try:
            if admin.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline_s, (folder / "kube-apiserver.log").read_text()[-3000:]
        time.sleep(0.2)
