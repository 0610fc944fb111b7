"""A stand-in for a node with its kubelet: pods that a real scheduler has placed run as processes of this machine, each
pod in a network namespace with an address of its own, or only say that they run (`HollowPod`).

What a kubelet does of a pod's life is done here as it does it: volumes are there before the container starts, a probe
says whether the pod is ready, and a pod that ends runs its preStop hook, gets SIGTERM, and is deleted. Containers' words,
variables and hooks are the manifests' own, but for files, which lie in a folder of the pod, and for how long a hook
waits at least. Needs root, for the namespaces.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import httpx

from tests.e2e.deploy.pod_network import Network
from tests.e2e.tidegate import PROJECT
from tests.real_kubernetes import RealApi

Object = Mapping[str, Any]
NODES = {
    "node-1": ({"nvidia.com/gpu.memory": "81559"}, {"nvidia.com/gpu": "8"}),
    "node-2": ({"nvidia.com/gpu.memory": "81559", "nvidia.com/mig.strategy": "mixed"}, {"nvidia.com/mig-1g.10gb": "14"}),
}
"""Labels of NVIDIA's GPU feature discovery, and what its device plugin counts: whole GPUs, and slices."""
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_LOOK_S = 0.2
_NOTICE_S = 2
"""Least wait of a preStop hook: the manifest's 35 s are for a watch that says nothing."""
_OF_IMAGES = {
    "/opt/tidegate/python_backends": PROJECT / "python_backends",
    **{f"/opt/tidegate/{name}": PROJECT / "deploy/images" / name for name in ("is_alive.py", "wait_until_drained.py")},
}
"""Files of the images, and where they are here."""


class Pod(Protocol):
    """Pod as the stand-in for the kubelet runs it."""

    address: str

    def is_ready(self) -> bool: ...

    def end(self) -> None:
        """Run the hook, end the containers, and return when they have ended."""


class HollowPod:
    """A pod of which nothing runs; it is ready as long as its name is not in `unready`."""

    count = 0

    def __init__(self, pod: Object, unready: set[str]) -> None:
        HollowPod.count += 1
        self.address = f"10.99.{HollowPod.count // 250}.{HollowPod.count % 250 + 1}"
        self._name, self._unready = pod["metadata"]["name"], unready

    def is_ready(self) -> bool:
        return self._name not in self._unready

    def end(self) -> None:
        pass


class ProcessPod:
    """A pod whose one container is a process."""

    def __init__(self, pod: Object, api: RealApi, network: Network, folder: Path, models: Path) -> None:
        self._pod, self._api, self._network = pod, api, network
        self.name: str = pod["metadata"]["name"]
        (self._container,) = pod["spec"]["containers"]
        redis = f"{network.prefix}.10"
        is_redis = pod["metadata"]["labels"]["app.kubernetes.io/name"] == "redis"
        self._namespace, self.address = network.add({"redis": redis}, redis if is_redis else "")
        self._places = {**{path: str(here) for path, here in _OF_IMAGES.items()}, "/models": str(models)}
        self._mount(folder)
        self.log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            self._start()
            return False
        probe = self._container["readinessProbe"]
        if "exec" in probe:
            return self.run(probe["exec"]["command"], timeout_s=20).returncode == 0
        ports = {each["name"]: each["containerPort"] for each in self._container["ports"]}
        asked = probe["httpGet"]
        with suppress(httpx.TransportError):
            url = f"http://{self.address}:{ports[asked['port']]}{asked['path']}"
            return httpx.get(url, trust_env=False, timeout=probe["timeoutSeconds"]).is_success
        return False

    def run(self, words: list[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a command in the container."""
        return subprocess.run(self.words(words), env=self.variables(), capture_output=True, text=True, timeout=timeout_s, cwd=PROJECT)

    def end(self) -> None:
        assert self._process is not None
        hook = self._container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if hook is not None:
            words = [f"--notice-s={_NOTICE_S}" if word.startswith("--notice-s=") else word for word in hook]
            with self.log.open("a") as log:
                log.write(f"hook: {self.run(words, timeout_s=300).stdout}\n")
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._pod["spec"]["terminationGracePeriodSeconds"])
        except subprocess.TimeoutExpired:
            self.kill()
        self._network.remove(self._namespace)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def variables(self) -> dict[str, str]:
        said = {each["name"]: self._here(each["value"]) for each in self._container.get("env", ())}
        said.pop("TIDEGATE_TRITONSERVER", None)  # the one of this machine is where it looks by itself
        if ACCOUNT in self._places:
            said["TIDEGATE_SERVICE_ACCOUNT_DIR"] = self._places[ACCOUNT]
        return {**os.environ, **said, "KUBERNETES_SERVICE_HOST": self._api.host, "KUBERNETES_SERVICE_PORT": str(self._api.port)}

    def words(self, words: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._namespace, *map(self._here, words)]

    def _start(self) -> None:
        command, args = self._container.get("command", ["tidegate"]), self._container.get("args", [])
        program = [sys.executable, "-m", "control_plane"] if command[0].rpartition("/")[2] == "tidegate" else command
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.words([*program, *args]), env=self.variables(), stdout=log, stderr=log, cwd=PROJECT)

    def _here(self, text: str) -> str:
        """A word with the container's paths as this machine has them."""
        for path, here in sorted(self._places.items(), key=lambda it: -len(it[0])):
            if text == path or text.startswith(f"{path}/") or f"={path}/" in text:
                return text.replace(path, here, 1)
        return text

    def _mount(self, folder: Path) -> None:
        """Make the volumes, each with what it has, at places of this machine."""
        volumes = {each["name"]: each for each in self._pod["spec"]["volumes"]}
        folders = {each["name"]: folder / each["name"] for each in self._container["volumeMounts"]}
        for each in self._container["volumeMounts"]:
            folders[each["name"]].mkdir(parents=True, exist_ok=True)
            if each["mountPath"] not in ("/dev/shm", "/tmp"):
                self._places[each["mountPath"]] = str(folders[each["name"]])
            if each["mountPath"] == ACCOUNT:
                token = self._api.token_of(self._pod["spec"]["serviceAccountName"])
                self._api.write_account(folders[each["name"]], token)
        for name, where in folders.items():
            for file, content in self._content(volumes[name]):
                for path, here in self._places.items():
                    content = content.replace(path, here)
                (where / file).write_text(content)

    def _content(self, volume: Object) -> Iterator[tuple[str, str]]:
        if "secret" in volume:
            held = self._api.get("Secret", volume["secret"]["secretName"])
            assert held is not None, volume
            for item in volume["secret"]["items"]:
                yield item["path"], base64.b64decode(held["data"][item["key"]]).decode()
        if "configMap" in volume:
            held = self._api.get("ConfigMap", volume["configMap"]["name"])
            assert held is not None, volume
            yield from held["data"].items()


class Kubelet:
    """The loop that brings the node's pods in line with the API server's, and that with them."""

    def __init__(self, api: RealApi, start: Callable[[Object], Pod]) -> None:
        self._api, self._start = api, start
        self.pods: dict[str, Pod] = {}
        """By uid."""
        self.faults: list[str] = []
        self._told: dict[str, bool] = {}
        self._ending: dict[str, threading.Thread] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()
        for thread in self._ending.values():
            thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            try:
                for pod in self._api.all("Pod"):
                    if pod["spec"].get("nodeName") in NODES:
                        self._look(pod, pod["metadata"]["uid"])
            except httpx.TransportError:  # the API server is away, and everything stays as it is
                continue
            except Exception as exc:
                self.faults.append(repr(exc))

    def _look(self, pod: Object, uid: str) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ending:
                self._ending[uid] = threading.Thread(target=self._end, args=(pod["metadata"]["name"], uid))
                self._ending[uid].start()
            return
        if uid not in self.pods:
            self.pods[uid] = self._start(pod)
        is_ready = self.pods[uid].is_ready()
        if self._told.get(uid) is not is_ready:
            self._api.patch_status("Pod", pod["metadata"]["name"], _status(pod, self.pods[uid].address, is_ready=is_ready))
            self._told[uid] = is_ready

    def _end(self, name: str, uid: str) -> None:
        try:
            if (pod := self.pods.get(uid)) is not None:
                pod.end()
                del self.pods[uid]
            self._api.delete("Pod", name, at_once=True)
        except Exception as exc:
            self.faults.append(repr(exc))


def _status(pod: Object, address: str, *, is_ready: bool) -> dict[str, Any]:
    """The status that a kubelet writes of a pod whose container runs."""
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    types = {"PodScheduled": True, "Initialized": True, "ContainersReady": is_ready, "Ready": is_ready}
    conditions = [{"type": name, "status": str(value), "lastTransitionTime": now} for name, value in types.items()]
    containers = [
        {
            "name": each["name"],
            "image": each["image"],
            "imageID": each["image"],
            "ready": is_ready,
            "started": True,
            "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        }
        for each in pod["spec"]["containers"]
    ]
    where = {"podIP": address, "podIPs": [{"ip": address}], "hostIP": "192.0.2.1", "startTime": now}
    return {"phase": "Running", "conditions": conditions, "containerStatuses": containers, **where}


@contextmanager
def kubelet(api: RealApi, start: Callable[[Object], Pod]) -> Iterator[Kubelet]:
    it = Kubelet(api, start)
    it.start()
    try:
        yield it
    finally:
        it.stop()
