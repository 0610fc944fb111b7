"""What was built and why it can be trusted: `manifest.json` beside the artefacts of a version, or of each variant of it.

`runtime/variant.py` reads it as well, on its own, since an image for serving need not carry this package. It changes only together with the
artefacts, but for what `--sts` adds, so it causes no reload of its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from python_backends.export.recipe import AUTO, Agreement, Calibration, Recipe
from python_backends.runtime.machine import this_machine

FILENAME = "manifest.json"
FORMAT_VERSION = 3

NOT_MEASURED = "not measured here yet"


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a file must be."""

    sha256: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What a build found out about its artefacts; times and memory are those of a variant, as `measure.py` and `memory.py` take them."""

    agreement: Agreement
    latency_table: Mapping[str, Any] | None = None
    resident_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built and from what, `inputs` as `Recipe.inputs` names them; `document` is all that the file says."""

    artefacts: Mapping[str, Artefact]
    inputs: Mapping[str, str]
    document: Mapping[str, Any]


def describe_artefact(path: Path) -> Artefact:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return Artefact(digest.hexdigest(), file.tell())


def write_manifest(
    directory: Path, recipe: Recipe, measured: Measured, *, inputs: Mapping[str, str], variant: str = "", build_seconds: float
) -> None:
    """Describe every file that is in `directory` now; `inputs` are the recipe's as they were when its build began.

    Of a variant it says whether `auto` may choose it where nobody has named one (`auto_eligible`), or why not: no reader judges again.
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
    """Record what was measured after the build; makes nothing stale."""
    document = json.loads((directory / FILENAME).read_text())
    document["agreement"][check] = measures
    _write(directory, document)


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest beside artefacts; None where there is none that this version of the code can trust."""
    try:
        document: dict[str, Any] = json.loads((directory / FILENAME).read_text())
        if document["format_version"] != FORMAT_VERSION:
            return None
        artefacts = {name: Artefact(**entry) for name, entry in document["artefacts"].items()}
        return Manifest(artefacts, document["inputs"], document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Absent, cut short or written by something else: all the same to the caller, who builds again.
        return None


def stale_reason(directory: Path, inputs: Mapping[str, str]) -> str | None:
    """Why the artefacts in a directory must be built (again), None if they need not be.

    What is not here (a library, as serving needs none of the build's; a GPU) is not held against them.
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
    """Whether nothing is left to be found out about what is built there; a model without variants is not measured."""
    manifest = read_manifest(directory)
    return manifest is not None and manifest.document.get("latency_table", {}) is not None


def may_be_chosen(directory: Path) -> bool:
    """Whether it is served, or may be with `auto`."""
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
    objection = AUTO.shortfall(measured.agreement) if "against_fp32" in measured.agreement else NOT_MEASURED
    return {
        "gate": asdict(recipe.serving.gate),
        "auto_eligible": objection is None,
        "auto_objection": objection,
        "latency_table": measured.latency_table,
        "resident_bytes": measured.resident_bytes,
    }


def _write(directory: Path, document: Mapping[str, Any]) -> None:
    # Renamed into place: a Triton that loads the model now reads the one or the other.
    partial = directory / f".{FILENAME}.tmp"
    partial.write_text(json.dumps(document, indent=2) + "\n")
    os.replace(partial, directory / FILENAME)
