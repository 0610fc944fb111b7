"""Reads a model's built variants from its version directory and says which one an instance serves.

A version directory has a folder per variant, each with its artefact and a `manifest.json` (format 3, which
recipes write); one without such folders is served as the plain file it holds. The decision itself is
`variant_choice.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable
from python_backends.runtime.variants.variant_choice import AUTO, Candidate, Place, Variant, choose
from python_backends.runtime.variants.variant_mix import ONE_SHORT_TEXT, Mix

MANIFEST = "manifest.json"
FORMAT_VERSION = 3

PLAIN_FILENAME = "model.onnx"

# Name of a runtime, which is also the library that it needs -> the module that opens its files.
RUNTIMES: Mapping[str, str] = {
    "onnxruntime": "python_backends.runtime.engines.session",
    "torch": "python_backends.runtime.engines.torch_runtime",
    "tensorrt": "python_backends.runtime.engines.tensorrt_runtime",
    "transformers": "python_backends.runtime.engines.causal_lm",
}


def choose_variant(
    version_directory: Path, requested: str, *, kind: str, machine_kind: str, filename: str = "", mix: Mix = ONE_SHORT_TEXT
) -> Variant:
    """Choose the variant for an instance of `kind` ("CPU", "GPU", ...) on a machine of `machine_kind`.

    `requested` is a variant's name or "auto"; `filename` is the configuration's `default_model_filename`, for
    a directory without variants.

    Raises:
        ConfigError: The variant is missing or cannot run here; the text lists the variants and says how to
        build a missing one.
    """
    candidates = find_candidates(version_directory)
    if candidates or requested != AUTO:
        place = Place("gpu" if kind == "GPU" else "cpu", machine_kind, is_importable)
        return choose(candidates, requested, model=version_directory.parent.name, place=place, mix=mix)
    return _plain(version_directory, filename or PLAIN_FILENAME)


def find_candidates(version_directory: Path) -> list[Candidate]:
    """Return the variants of a version directory, sorted by name; folders without a valid manifest are
    skipped.
    """
    paths = sorted(path for path in version_directory.glob(f"[!.]*/{MANIFEST}"))
    return [candidate for path in paths if (candidate := _read(path)) is not None]


def is_importable(runtime: str) -> bool:
    """Whether a runtime is known and its library installed; imports nothing."""
    return runtime in RUNTIMES and find_spec(runtime) is not None


def _plain(version_directory: Path, filename: str) -> Variant:
    file = version_directory / filename
    if not file.exists():
        model = version_directory.parent.name
        raise ConfigError(f"unable to find '{file}', nor a variant beside it: run `tidegate models build {model}`")
    return Variant("", version_directory, file, "onnxruntime", "cpu", None, f"{filename}, there are no variants")


def _read(manifest: Path) -> Candidate | None:
    try:
        document = json.loads(manifest.read_text())
        if document["format_version"] != FORMAT_VERSION:
            return None
        return _candidate(manifest.parent, document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Damaged, or not ours: not a variant that can be served.
        return None


def _candidate(directory: Path, document: Mapping[str, Any]) -> Candidate:
    table, fault = _table(document.get("latency_table"))
    is_auto_eligible = document.get("auto_eligible") is True
    return Candidate(
        variant=Variant(
            name=directory.name,
            directory=directory,
            file=directory / document["file"],
            runtime=document["runtime"],
            device=document["device"],
            latency_table=table,
        ),
        machine_kind=(document.get("machine") or {}).get("kind", ""),
        objection=fault or ("" if is_auto_eligible else str(document.get("auto_objection") or "its manifest does not say that it may be")),
        file_is_there=(directory / document["file"]).is_file(),
    )


def _table(entry: object) -> tuple[LatencyTable | None, str]:
    """Return the table, or what is wrong with it. A variant without a table can still be served by name."""
    if not isinstance(entry, dict):
        return None, ""
    try:
        return LatencyTable.from_manifest(entry), ""
    except ConfigError:
        return None, "its latency table is not whole"
