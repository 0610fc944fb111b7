"""A real control plane of Kubernetes, from the programs of `KUBEBUILDER_ASSETS`: etcd and kube-apiserver, as envtest starts
them, and where they are there and asked for kube-controller-manager and kube-scheduler.

No kubelet runs: `tests/e2e/deploy/process_kubelet.py` stands in for it. The gateway has the token that the server itself issues
to its service account, and only the rights of deploy/kubernetes' own Roles.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.redis_server import free_port
from tests.tls_files import Authority, Identity

ASSETS = Path(os.environ["KUBEBUILDER_ASSETS"]) if "KUBEBUILDER_ASSETS" in os.environ else None
API = ("kube-apiserver", "etcd")
CONTROLLERS = ("kube-controller-manager", "kube-scheduler")
WHY_NOT = "KUBEBUILDER_ASSETS names no folder with kube-apiserver and etcd"
WHY_NO_CONTROLLERS = "KUBEBUILDER_ASSETS names no folder with kube-apiserver, etcd, kube-controller-manager and kube-scheduler"
_START_S = 180.0
_MANIFESTS = Path(__file__).parents[1] / "deploy/kubernetes"
_OURS = (
    "base/gateway/discovery.yaml",
    "components/lease/rights.yaml",
    "components/model-resources/definition.yaml",
    "components/model-resources/rights.yaml",
)
_IN = "/namespaces/tidegate"
_COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "Node": "/api/v1/nodes",
    "PersistentVolume": "/api/v1/persistentvolumes",
    "ServiceAccount": f"/api/v1{_IN}/serviceaccounts",
    "Pod": f"/api/v1{_IN}/pods",
    "Secret": f"/api/v1{_IN}/secrets",
    "ConfigMap": f"/api/v1{_IN}/configmaps",
    "Deployment": f"/apis/apps/v1{_IN}/deployments",
    "Role": f"/apis/rbac.authorization.k8s.io/v1{_IN}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1{_IN}/rolebindings",
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "EndpointSlice": f"/apis/discovery.k8s.io/v1{_IN}/endpointslices",
    "Lease": f"/apis/coordination.k8s.io/v1{_IN}/leases",
    "Model": f"/apis/tidegate.io/v1alpha1{_IN}/models",
}
_OF_TESTS = ("EndpointSlice", "Lease", "Model")


def is_there(*programs: str) -> bool:
    return ASSETS is not None and all((ASSETS / name).exists() for name in (*API, *programs))


@dataclass
class RealApi:
    """The server, for an administrator; `account` is the folder in which the gateway finds its token."""

    folder: Path
    host: str
    port: int
    etcd: str
    authority: Authority
    served: Identity
    ends: ExitStack
    _server: subprocess.Popen[bytes] | None = None
    _admin: httpx.Client | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"https://{self.host}:{self.port}"

    @property
    def account(self) -> Path:
        return self.folder / "account"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def admin(self) -> httpx.Client:
        if self._admin is None:
            tls = ssl.create_default_context(cafile=str(self.authority.certificate))
            headers = {"authorization": "Bearer admin-token"}
            self._admin = httpx.Client(base_url=self.url, headers=headers, verify=tls, timeout=60.0, trust_env=False)
            self.ends.callback(self._admin.close)
        return self._admin

    # Objects.

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

    def all(self, kind: str, selector: str = "") -> list[dict[str, Any]]:
        return list(self.admin.get(_COLLECTIONS[kind], params={"labelSelector": selector}).raise_for_status().json()["items"])

    def patch_status(self, kind: str, name: str, status: Mapping[str, Any]) -> None:
        """Merge into an object's status, unless it is gone by now."""
        headers = {"content-type": "application/merge-patch+json"}
        answer = self.admin.patch(f"{_COLLECTIONS[kind]}/{name}/status", content=json.dumps({"status": status}), headers=headers)
        if answer.status_code != 404:
            answer.raise_for_status()

    def delete(self, kind: str, name: str, *, at_once: bool = False) -> None:
        """Delete an object, if there is one; `at_once`: as a kubelet does whose containers have ended."""
        query = {"gracePeriodSeconds": "0"} if at_once else {}
        if (answer := self.admin.delete(f"{_COLLECTIONS[kind]}/{name}", params=query)).status_code != 404:
            answer.raise_for_status()

    def evict(self, pod: str) -> int:
        """Ask for the eviction of a pod, as `kubectl drain` does, and return the status of the answer."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": "tidegate"}}
        return self.admin.post(f"{_COLLECTIONS['Pod']}/{pod}/eviction", json=body).status_code

    def token_of(self, service_account: str) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
        answer = self.admin.post(f"{_COLLECTIONS['ServiceAccount']}/{service_account}/token", json=body)
        return str(answer.raise_for_status().json()["status"]["token"])

    def install(self) -> None:
        """Create the namespace, the definition and the rights of the gateway, and its account; as it was, without a test's objects."""
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tidegate"}})
        for path in _OURS:
            for it in yaml.safe_load_all((_MANIFESTS / path).read_text()):
                self.apply(it)
        self._await(lambda: self.admin.get(_COLLECTIONS["Model"]).status_code == 200)
        for kind in _OF_TESTS:
            for it in self.all(kind):
                self.delete(kind, it["metadata"]["name"])
        self.write_account(self.account, self.token_of("gateway"))

    def write_account(self, folder: Path, token: str) -> None:
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(f"{token}\n")
        (folder / "namespace").write_text("tidegate")
        (folder / "ca.crt").write_bytes(self.authority.certificate.read_bytes())

    # The programs.

    def start(self) -> None:
        """Start the API server, anew after `stop`, at the same address and over the same etcd."""
        flags = (
            ("etcd-servers", self.etcd),
            ("bind-address", self.host),
            ("secure-port", self.port),
            ("cert-dir", self.folder / "certificates"),
            ("tls-cert-file", self.served.certificate),
            ("tls-private-key-file", self.served.key),
            ("service-account-issuer", "https://kubernetes.default.svc"),
            ("service-account-key-file", self.served.certificate),
            ("service-account-signing-key-file", self.served.key),
            ("service-cluster-ip-range", "10.0.0.0/24"),
            ("authorization-mode", "RBAC"),
            ("token-auth-file", self.folder / "tokens.csv"),
        )
        self._server = _start(self.ends, self.folder, "kube-apiserver", flags)
        self._await(lambda: self.admin.get("/readyz").status_code == 200)

    def stop(self) -> None:
        """Kill the API server."""
        assert self._server is not None
        self._server.kill()
        self._server.wait()

    def compact(self) -> None:
        """Have etcd forget everything but what is there now, as it does in a cluster every five minutes."""
        key = base64.b64encode(b"/registry").decode()
        found = httpx.post(f"{self.etcd}/v3/kv/range", json={"key": key}, trust_env=False).raise_for_status().json()
        body = {"revision": found["header"]["revision"], "physical": True}
        httpx.post(f"{self.etcd}/v3/kv/compaction", json=body, trust_env=False).raise_for_status()

    def start_controllers(self) -> None:
        """Start the controllers of Deployments, EndpointSlices, PodDisruptionBudgets and so on, and the scheduler."""
        shared = (("kubeconfig", self.kubeconfig), ("leader-elect", "false"), ("secure-port", 0))
        # A node without a kubelet says nothing, which is not what is tested here.
        controllers = ("controllers", "*,-node-lifecycle-controller,-taint-eviction-controller,-cloud-node-lifecycle-controller")
        keys = (("service-account-private-key-file", self.served.key), ("root-ca-file", self.authority.certificate))
        _start(self.ends, self.folder, "kube-controller-manager", (*shared, controllers, *keys))
        _start(self.ends, self.folder, "kube-scheduler", (("kubeconfig", self.kubeconfig), ("leader-elect", "false"), ("secure-port", 0)))

    def _await(self, is_so: Any) -> None:
        deadline_s = time.monotonic() + _START_S
        while True:
            try:
                if is_so():
                    return
            except httpx.TransportError:
                pass
            has_ended = self._server is None or self._server.poll() is not None
            if has_ended or time.monotonic() > deadline_s:
                raise AssertionError((self.folder / "kube-apiserver.log").read_text()[-3000:])
            time.sleep(0.1)


@contextmanager
def real_api(folder: Path, host: str = "127.0.0.1") -> Iterator[RealApi]:
    """A server at an address of this machine, with nothing in it."""
    authority = Authority(folder)
    with (folder / "tokens.csv").open("w", newline="") as file:
        csv.writer(file).writerow(("admin-token", "admin", "1", "system:masters"))
    port, peers = free_port(), f"http://127.0.0.1:{free_port()}"
    etcd = f"http://127.0.0.1:{free_port()}"
    of_etcd = ("data-dir", folder / "etcd"), ("listen-client-urls", etcd), ("advertise-client-urls", etcd), ("listen-peer-urls", peers)
    with ExitStack() as ends:
        _start(ends, folder, "etcd", (*of_etcd, ("unsafe-no-fsync", "true")))
        api = RealApi(folder, host, port, etcd, authority, authority.issue("kubernetes", address=host), ends)
        cluster = {"server": api.url, "certificate-authority": str(authority.certificate)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            "current-context": "test",
        }
        api.kubeconfig.write_text(yaml.safe_dump(config))
        api.start()
        yield api


def _start(ends: ExitStack, folder: Path, name: str, flags: tuple[tuple[str, object], ...]) -> subprocess.Popen[bytes]:
    assert ASSETS is not None, WHY_NOT
    words = [str(ASSETS / name), *(f"--{flag}={value}" for flag, value in flags)]
    log = ends.enter_context((folder / f"{name}.log").open("ab"))
    process = subprocess.Popen(words, stdout=log, stderr=log)
    ends.callback(process.wait)
    ends.callback(process.kill)
    return process
