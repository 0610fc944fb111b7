"""A real control plane of Kubernetes with its controllers and scheduler, `kubectl`, and `python -m deploy` before them.

The calls that go through a kubelet, `kubectl exec` and `kubectl port-forward`, are led to the stand-in's pods by a script
on the PATH; all others are the real program's.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e.deploy.process_kubelet import NODES
from tests.e2e.tidegate import PROJECT
from tests.real_kubernetes import RealApi, real_api
from tests.unit.deploy.rendered import kubectl

_DIGEST = f"sha256:{'ab' * 32}"
_SCRIPT = """#!/bin/sh
case "$1" in
exec)
    while [ "$1" != -- ]; do shift; done
    shift 2
    exec {folder}/in-pod "$@" ;;
port-forward)
    echo "Forwarding from 127.0.0.1:$(cat {folder}/forwarded) -> 8000"
    exec sleep 600 ;;
*) exec {kubectl} "$@" ;;
esac
"""


@dataclass
class RealCluster:
    """The cluster, and what is done to it."""

    api: RealApi
    folder: Path

    def forward(self, port: int, in_pod: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Say where `kubectl port-forward` leads, and which command with which variables is `tidegate` in the gateway's pod."""
        (self.folder / "forwarded").write_text(str(port))
        script = self.folder / "in-pod"
        given = [f"{name}={value}" for name, value in (variables or {}).items()]
        script.write_text(f'#!/bin/sh\nexec {shlex.join(["env", *given, *in_pod])} "$@"\n')
        script.chmod(0o755)

    def kubectl(self, *words: str, given: Sequence[Mapping[str, Any]] = ()) -> str:
        text = yaml.safe_dump_all(given) if given else None
        done = subprocess.run(
            [str(self.folder / "kubectl"), *words],
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            env=self.environment,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def deploy(self, action: str, environment: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run what `make deploy` and `make undeploy` run."""
        command = [sys.executable, "-m", "deploy", action, environment, "--yes", "--wait-s=280", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=self.environment, cwd=PROJECT, check=False)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.api.kubeconfig), "PATH": f"{self.folder}:{os.environ['PATH']}"}


def add_nodes(api: RealApi) -> None:
    """Register the nodes, with room for everything."""
    for name, (labels, gpus) in NODES.items():
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": name[-1], **labels}}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata}
        api.apply(node)
        api.apply(node)  # without the taint of nodes that are not ready, which the server gives to new ones
        room = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "512Gi", "pods": "250", **gpus}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        api.patch_status("Node", name, {"capacity": room, "allocatable": room, "conditions": [ready]})


def add_volume(api: RealApi, name: str) -> None:
    """Add a volume for one claim."""
    spec = {
        "capacity": {"storage": "10Gi"},
        "accessModes": ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": "Delete",
        "hostPath": {"path": f"/nowhere/{name}"},
    }
    api.apply({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec})


def images(*names: str) -> str:
    return "--images=" + " ".join(f"{name}=registry.test/{name}@{_DIGEST}" for name in names)


@contextmanager
def real_cluster(folder: Path, host: str = "127.0.0.1") -> Iterator[RealCluster]:
    with real_api(folder, host) as api:
        api.start_controllers()
        add_nodes(api)
        script = folder / "kubectl"
        script.write_text(_SCRIPT.format(folder=folder, kubectl=kubectl()))
        script.chmod(0o755)
        yield RealCluster(api, folder)
