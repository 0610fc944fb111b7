"""Overlays as `kubectl kustomize` renders them, and the parts of them that tests look at."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes"
RENDERINGS = KUBERNETES.parents[1] / ".cache" / "renderings"
OVERLAYS = sorted(each.name for each in (KUBERNETES / "overlays").iterdir() if not each.name.startswith("."))

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """An overlay with components switched on, as a user's own overlay does it."""

    overlay: str
    components: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "+".join((self.overlay, *self.components))


# Every component in each of the overlays that it is for.
CASES = [
    *map(Case, OVERLAYS),
    *(Case(overlay, ("monitoring",)) for overlay in OVERLAYS),
    *(Case(overlay, ("gateway-api",)) for overlay in OVERLAYS),
    *(Case(overlay, ("lease", "model-resources")) for overlay in OVERLAYS),
    *(Case(overlay, ("jobs",)) for overlay in OVERLAYS),
    *(Case(overlay, ("events",)) for overlay in OVERLAYS),
    *(Case(overlay, ("regions",)) for overlay in OVERLAYS),
    Case("local", ("model-images",)),
    Case("gpu", ("model-images", "warm-overflow")),
    Case("gpu-shared", ("warm-overflow",)),
    *(Case(overlay, ("capacity-buffer",)) for overlay in ("gpu", "gpu-shared")),
    Case("gpu", ("monitoring", "keda")),
    Case("gpu", ("monitoring", "keda", "model-images", "gpu-fallback")),
    Case("gpu-shared", ("monitoring", "hpa")),
    Case("local", ("gpu-time-slice", "in-place", "warm-overflow")),
]


def kubectl() -> str:
    """The `kubectl` of this environment."""
    found = shutil.which("kubectl", path=str(Path(sys.executable).parent)) or shutil.which("kubectl")
    assert found, "run `make test`: kubectl is missing"
    return found


@cache
def render(case: Case) -> tuple[Object, ...]:
    """All objects of an overlay, in the order in which they are applied."""
    parts = [f"../../components/{each}" for each in (*case.components, "images")]
    mine: dict[str, Any] = {"resources": [f"../{case.overlay}"], "components": parts if case.components else []}
    if "regions" in case.components:  # which ones is for the user's own overlay to say
        mine["configMapGenerator"] = [{"name": "regions", "namespace": "tidegate", "literals": ["regions.yaml=[]"]}]
    kept = _renderings() / f"{case}.yaml"
    with (kept.parent / f"{case}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes that share the tests ask for the same ones at the same time
        if not kept.exists():
            kept.with_suffix(".new").write_text(_rendered(yaml.safe_dump(mine), {}))
            kept.with_suffix(".new").rename(kept)
    return _objects(kept.read_text())


@cache
def _renderings() -> Path:
    """Folder of what was rendered of the very files that there are now; those of others are removed."""
    digest = sha256(f"{(found := Path(kubectl()).stat()).st_size} {found.st_mtime_ns}".encode())
    for path in sorted(KUBERNETES.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(KUBERNETES).parts):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(KUBERNETES)} {len(content)} ".encode() + content)
    folder = RENDERINGS / digest.hexdigest()[:16]
    for other in set(RENDERINGS.glob("*")) - {folder}:
        shutil.rmtree(other, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def render_folder(kustomization: str, files: Mapping[str, str] | None = None) -> tuple[Object, ...]:
    """All objects of an overlay of the user's own, by the text of its `kustomization.yaml` and of the files beside it."""
    return _objects(_rendered(kustomization, files or {}))


def _objects(text: str) -> tuple[Object, ...]:
    return tuple(yaml.load_all(text, yaml.CSafeLoader))


def _rendered(kustomization: str, files: Mapping[str, str]) -> str:
    with tempfile.TemporaryDirectory(dir=KUBERNETES / "overlays", prefix=".test-") as folder:
        for name, text in {**files, "kustomization.yaml": kustomization}.items():
            Path(folder, name).write_text(text)
        done = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_kind(objects: Sequence[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def workloads(objects: Sequence[Object]) -> list[Object]:
    return of_kind(objects, "Deployment", "StatefulSet", "Job", "DaemonSet")


def named(objects: Sequence[Object], kind: str, name: str) -> Any:
    (found,) = [each for each in of_kind(objects, kind) if each["metadata"]["name"] == name]
    return found


def pod_spec(workload: Object) -> Any:
    return workload["spec"]["template"]["spec"]


def containers(workload: Object) -> Iterator[Any]:
    spec = pod_spec(workload)
    yield from spec.get("initContainers", [])
    yield from spec["containers"]


def env(container: Object) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container.get("env", [])}


UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9, "m": 1e-3}


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)
