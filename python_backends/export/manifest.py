"""Manifest of built artefacts: `manifest.json` beside the artefacts of a version, or of each of its variants.

It records what was built, from which inputs, and the measurements. `runtime/variants/variant.py` reads it with code of
its own, since an image for serving need not contain this package. The manifest changes only together with the
artefacts, except for the results of `--sts`, so it causes no extra reloads.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from python_backends.export.recipe import Agreement, Calibration, Recipe
from python_backends.runtime.machine import this_machine

FILENAME = "manifest.json"
FORMAT_VERSION = 3

NOT_MEASURED = "not measured here yet"


@dataclass(frozen=True, slots=True)
class Artefact:
    """Digest and size that a file must have."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of a build: accuracy, and for a variant its latencies (`measure.py`) and memory
    (`memory.py`).
    """

    agreement: Agreement
    latency_table: Mapping[str, Any] | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest: artefacts, `inputs` as `Recipe.inputs` names them, and the whole `document`."""

    artefacts: Mapping[str, Artefact]
    inputs: Mapping[str, str]
    document: Mapping[str, Any]


def describe_artefact(path: Path) -> Artefact:
    """Return the size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return Artefact(digest.hexdigest(), file.tell())


def write_manifest(
    directory: Path, recipe: Recipe, measured: Measured, *, inputs: Mapping[str, str], variant: str = "", build_seconds: float
) -> None:
    """Write a manifest of every file in `directory`; `inputs` are the recipe's inputs at the start of its
    build.

    For a variant it records whether `auto` may choose it (`auto_eligible`), or why not, so that readers need
    not judge again.
    """
    document = {
        "format_version": FORMAT_VERSION,
        **_serving(recipe, variant),
        "artefacts": {path.name: asdict(describe_artefact(path)) for path in sorted(directory.iterdir()) if path.name != FILENAME},
        "provenance": asdict(recipe.provenance),
        "calibration": recipe.calibration and _calibration(recipe.calibration),
        "agreement": measured.agreement,
        **_limits(recipe, measured),
        "inputs": inputs,
        "inputs_sha256": hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest(),
        "build_seconds": round(build_seconds, 1),
    }
    _write(directory, document)


def add_agreement(directory: Path, check: str, measures: Mapping[str, float]) -> None:
    """Record measurements made after the build; this does not make anything stale."""
    document = json.loads((directory / FILENAME).read_text())
    document["agreement"][check] = measures
    _write(directory, document)


def read_manifest(directory: Path) -> Manifest | None:
    """Read the manifest of a directory; None if there is no valid one of this format version."""
    try:
        document: dict[str, Any] = json.loads((directory / FILENAME).read_text())
        if document["format_version"] != FORMAT_VERSION:
            return None
        artefacts = {name: Artefact(**entry) for name, entry in document["artefacts"].items()}
        return Manifest(artefacts, document["inputs"], document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Absent, damaged or not ours: in each case the caller builds again.
        return None


def stale_reason(directory: Path, inputs: Mapping[str, str]) -> str | None:
    """Return why the artefacts in a directory must be built (again); None if they are up to date.

    Inputs that this machine lacks (a library that only builds need, a GPU) do not make artefacts stale.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        return "not built yet" if not directory.exists() else "no manifest that can be trusted"
    known = {name: value for name, value in manifest.inputs.items() if name in inputs or not name.startswith(("library ", "machine"))}
    if changed := [name for name in {**known, **inputs} if known.get(name) != inputs.get(name)]:
        return f"changed: {', '.join(changed)}"
    for name, artefact in manifest.artefacts.items():
        path = directory / name
        if not path.is_file() or describe_artefact(path) != artefact:
            return f"{name} is not what was built"
    return None


def is_measured(directory: Path) -> bool:
    """Whether all measurements of the build are made; a model without variants needs none."""
    manifest = read_manifest(directory)
    return manifest is not None and manifest.document.get("latency_table", {}) is not None


def is_auto_eligible(directory: Path) -> bool:
    """Whether `auto` may choose the variant; true for a model without variants."""
    manifest = read_manifest(directory)
    return manifest is not None and bool(manifest.document.get("auto_eligible", True))


def _serving(recipe: Recipe, variant: str) -> dict[str, Any]:
    if recipe.serving is None:
        return {}
    serving = recipe.serving
    machine = asdict(this_machine(serving.device))
    return {"variant": variant, "runtime": serving.runtime, "file": serving.file, "device": serving.device, "machine": machine}


def _calibration(calibration: Calibration) -> dict[str, Any]:
    digest = describe_artefact(calibration.source).sha256
    return {"source": calibration.source.name, "texts": calibration.texts, "sha256": digest}


def _limits(recipe: Recipe, measured: Measured) -> dict[str, Any]:
    if recipe.serving is None:
        return {}
    objection = recipe.serving.auto.shortfall(measured.agreement) if "against_fp32" in measured.agreement else NOT_MEASURED
    return {
        "gate": asdict(recipe.serving.gate),  # type: ignore[call-overload]
        "auto_eligible": objection is None,
        "auto_objection": objection,
        "latency_table": measured.latency_table,
        "resident_bytes": measured.resident_bytes,
    }


def _write(directory: Path, document: Mapping[str, Any]) -> None:
    # Replaced atomically: a Triton that loads the model now reads the old or the new manifest, never a part.
    partial = directory / f".{FILENAME}.tmp"
    partial.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(partial, directory / FILENAME)
