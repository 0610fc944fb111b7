"""Overlays rendered by kustomize, and what has to be right about them before anything is applied."""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deploy.errors import DeployError
from deploy.kubectl import Kubectl

KUBERNETES = Path(__file__).parent / "kubernetes"
IMAGES_FILE = "deploy/kubernetes/components/images/kustomization.yaml"

_DIGEST = re.compile(r"^[^@\s]+@sha256:[0-9a-f]{64}$")
_NO_DIGEST = f"@sha256:{'0' * 64}"
"""What stands in the manifests until somebody says which image it is."""

Object = Mapping[str, Any]


@dataclass(frozen=True)
class Rendered:
    """An overlay's objects, as one text for kubectl and one by one."""

    text: str
    objects: Sequence[Object]

    @property
    def namespace(self) -> str:
        """The namespace of the gateways."""
        return str(
            next(each for each in self.objects if each["kind"] == "Deployment" and each["metadata"]["name"] == "gateway")["metadata"][
                "namespace"
            ]
        )

    @property
    def workloads(self) -> list[Object]:
        return [each for each in self.objects if each["kind"] in ("Deployment", "StatefulSet")]


def render(kubectl: Kubectl, environment: str, images: Mapping[str, str], *, require_digests: bool = True) -> Rendered:
    """Render the overlay `environment`; `images` are references by digest in place of the overlay's.

    Raises DeployError: there is no such overlay, kustomize refuses it, or an image has no digest.
    """
    overlays = KUBERNETES / "overlays"
    known = sorted(each.name for each in overlays.iterdir() if (each / "kustomization.yaml").exists() and not each.name.startswith("."))
    if environment not in known:
        raise DeployError(
            f"there is no overlay {environment!r}", next_step=f"ENV= one of {', '.join(known)}, or a folder of your own in {overlays}"
        )
    folder = overlays / environment
    text = kubectl.ask("kustomize", str(folder)) if not images else _with_images(kubectl, folder, images)
    rendered = Rendered(text, [each for each in yaml.load_all(text, yaml.CSafeLoader) if each])
    if require_digests:
        _require_digests(rendered)
    return rendered


def parse_images(text: str) -> dict[str, str]:
    """Parse `NAME=REFERENCE@sha256:...` with blanks between. Raises DeployError."""
    found: dict[str, str] = {}
    for word in text.split():
        name, _, reference = word.partition("=")
        if not name or not _DIGEST.match(reference):
            raise DeployError(f"{word!r} names no image by digest", next_step="write IMAGES=tidegate-gateway=registry/name@sha256:...")
        found[name] = reference
    return found


def images_of(objects: Sequence[Object]) -> Iterator[tuple[str, str]]:
    """Yield (object, image) for each container and each volume that is an image."""
    for each in objects:
        spec = each.get("spec", {}).get("template", {}).get("spec", {})
        where = f"{each['kind'].lower()}/{each['metadata']['name']}"
        for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
            yield where, container["image"]
        for volume in spec.get("volumes", ()):
            if "image" in volume:
                yield where, volume["image"]["reference"]


def surging_gpus(objects: Sequence[Object]) -> Iterator[tuple[str, str, int]]:
    """Yield (Deployment, GPU resource, GPUs of all its replicas) where an update starts a pod before one ends."""
    for each in objects:
        if each["kind"] != "Deployment" or each["spec"].get("strategy", {}).get("rollingUpdate", {}).get("maxSurge", 1) in (0, "0", "0%"):
            continue
        gpus: Counter[str] = Counter()
        for container in each["spec"]["template"]["spec"]["containers"]:
            for name, amount in container.get("resources", {}).get("limits", {}).items():
                if name.startswith("nvidia.com/"):
                    gpus[name] += int(amount)
        for name, amount in gpus.items():
            yield f"deployment/{each['metadata']['name']}", name, amount * int(each["spec"].get("replicas", 1))


def secrets_of(objects: Sequence[Object]) -> dict[str, set[str]]:
    """Secrets that pods mount, with the keys that they need."""
    found: dict[str, set[str]] = {}
    for each in objects:
        for volume in each.get("spec", {}).get("template", {}).get("spec", {}).get("volumes", ()):
            if "secret" in volume and not volume["secret"].get("optional"):
                keys = {item["key"] for item in volume["secret"].get("items", ())}
                found.setdefault(volume["secret"]["secretName"], set()).update(keys)
    return found


def _with_images(kubectl: Kubectl, folder: Path, images: Mapping[str, str]) -> str:
    """Render the overlay below a kustomization that names the images; kustomize takes relative paths only."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".deploy-") as place:
        known = _placeholders(kubectl, folder)
        if unknown := sorted(images.keys() - known.keys()):
            raise DeployError(f"no image of this overlay is called {unknown[0]!r}", next_step=f"it has {', '.join(sorted(known))}")
        split = {name: reference.partition("@") for name, reference in images.items()}
        listed = [{"name": known[name], "newName": parts[0], "digest": parts[2]} for name, parts in split.items()]
        mine = {"resources": [os.path.relpath(folder, place)], "images": listed}
        Path(place, "kustomization.yaml").write_text(yaml.safe_dump(mine))
        return kubectl.ask("kustomize", place)


def _placeholders(kubectl: Kubectl, folder: Path) -> dict[str, str]:
    """The overlay's images: the last part of the name -> the name without its digest."""
    objects = [each for each in yaml.load_all(kubectl.ask("kustomize", str(folder)), yaml.CSafeLoader) if each]
    names = {image.partition("@")[0].partition(":")[0] for _, image in images_of(objects)}
    return {name.rpartition("/")[2]: name for name in names}


def _require_digests(rendered: Rendered) -> None:
    for where, image in images_of(rendered.objects):
        if not _DIGEST.match(image) or image.endswith(_NO_DIGEST):
            name = image.partition("@")[0].rpartition("/")[2]
            raise DeployError(
                f"{where}: {image.partition('@')[0]} is not named by a digest",
                next_step=f"put its digest into {IMAGES_FILE}, or say IMAGES={name}=REGISTRY/{name}@sha256:... "
                "(`docker buildx imagetools inspect` and `skopeo inspect` show digests)",
            )
