"""What a version directory holds and why it can be trusted: `manifest.json` beside the artefacts.

Triton does not read it, and it changes only together with the artefacts, so it causes no reload of its own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from python_backends.export.recipe import Agreement, Recipe

FILENAME = "manifest.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a file must be."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built, from what, and what it measured; `inputs` are as `Recipe.inputs` names them."""

    artefacts: Mapping[str, Artefact]
    inputs: Mapping[str, str]
    agreement: Agreement
    build_seconds: float


def describe_artefact(path: Path) -> Artefact:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return Artefact(digest.hexdigest(), file.tell())


def write_manifest(directory: Path, recipe: Recipe, agreement: Agreement, build_seconds: float) -> None:
    """Describe every file that is in `directory` now."""
    inputs = recipe.inputs()
    document = {
        "format_version": FORMAT_VERSION,
        "artefacts": {path.name: asdict(describe_artefact(path)) for path in sorted(directory.iterdir())},
        "provenance": asdict(recipe.provenance),
        "agreement": agreement,
        "inputs_sha256": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        "inputs": inputs,
        "build_seconds": round(build_seconds, 1),
    }
    (directory / FILENAME).write_text(json.dumps(document, indent=2) + "\n")


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a version directory; None where there is none that this version of the code can trust."""
    try:
        document: dict[str, Any] = json.loads((directory / FILENAME).read_text())
        if document["format_version"] != FORMAT_VERSION:
            return None
        artefacts = {name: Artefact(**entry) for name, entry in document["artefacts"].items()}
        return Manifest(artefacts, document["inputs"], document["agreement"], document["build_seconds"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Absent, cut short or written by something else: all the same to the caller, who builds again.
        return None


def stale_reason(directory: Path, inputs: Mapping[str, str]) -> str | None:
    """Why the artefacts in a version directory must be built (again), None if they need not be.

    A library that is not installed here (serving needs none of the build's) is not held against them.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        return "not built yet" if not directory.exists() else "no manifest that can be trusted"
    known = {name: value for name, value in manifest.inputs.items() if name in inputs or not name.startswith("library ")}
    if changed := [name for name in {**known, **inputs} if known.get(name) != inputs.get(name)]:
        return f"changed: {', '.join(changed)}"
    for name, artefact in manifest.artefacts.items():
        path = directory / name
        if not path.is_file() or describe_artefact(path) != artefact:
            return f"{name} is not what was built"
    return None
