"""Which of a model's built variants an instance serves: one that the configuration names, or with `auto` the fastest that can be trusted.

A version directory has a folder per variant, each with its artefact and a `manifest.json` (format 2, which recipes write); one without such
folders is served as the plain file it holds. Reading is here apart from deciding: `choose` is pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from python_backends.runtime.errors import ConfigError

MANIFEST = "manifest.json"
FORMAT_VERSION = 2

AUTO = "auto"
REFERENCE = "fp32"
PLAIN_FILENAME = "model.onnx"

# The default must not be felt: what users of the reference would see, at its worst percentile and over a whole ranking.
MINIMUM_COSINE_P1 = 0.99
MAXIMUM_RELATIVE_LOSS = 0.01

# Runtime, which is also the name of the library that it needs -> the module that opens its files.
RUNTIMES: Mapping[str, str] = {
    "onnxruntime": "python_backends.runtime.session",
    "torch": "python_backends.runtime.torch_runtime",
    "tensorrt": "python_backends.runtime.tensorrt_runtime",
}


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant to serve; `device` is "cpu" or "gpu", `name` is empty for a plain file, `reason` says why it was chosen and no other."""

    name: str
    directory: Path
    file: Path
    runtime: str
    device: str
    latency_table: Mapping[str, Any] | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that is there and its worth (`mean_ms`: over its latency table); None where the manifest does not say."""

    variant: Variant
    machine_kind: str
    mean_ms: float | None
    cosine_p1: float | None
    relative_loss: float | None
    file_is_there: bool = True


def choose_variant(version_directory: Path, requested: str, *, kind: str, machine_kind: str, filename: str = "") -> Variant:
    """The variant for an instance of `kind` ("CPU", "GPU", ...) on a machine of `machine_kind`.

    `requested` is a variant's name or "auto"; `filename` is the configuration's `default_model_filename`, for a directory without variants.

    Raises:
        ConfigError: It is not there or cannot run here; says which variants there are and how to build the one that is missing.
    """
    candidates = find_candidates(version_directory)
    if candidates or requested != AUTO:
        return choose(candidates, requested, model=version_directory.parent.name, kind=kind, machine_kind=machine_kind)
    return _plain(version_directory, filename or PLAIN_FILENAME)


def find_candidates(version_directory: Path) -> list[Candidate]:
    """The variants of a version directory, in order of name; a folder without a manifest that can be understood is none."""
    paths = sorted(path for path in version_directory.glob(f"[!.]*/{MANIFEST}"))
    return [candidate for path in paths if (candidate := _read(path)) is not None]


def is_importable(runtime: str) -> bool:
    """Whether a runtime is known here and its library installed; nothing is imported."""
    return runtime in RUNTIMES and find_spec(runtime) is not None


def choose(
    candidates: Sequence[Candidate],
    requested: str,
    *,
    model: str,
    kind: str,
    machine_kind: str,
    importable: Callable[[str], bool] = is_importable,
) -> Variant:
    """`choose_variant`, once the manifests have been read.

    Raises:
        ConfigError: As for `choose_variant`.
    """
    device = "gpu" if kind == "GPU" else "cpu"
    if requested != AUTO:
        return _named(candidates, requested, model=model, device=device, importable=importable)
    objections = {one.variant.name: _objection(one, device, machine_kind, importable) for one in candidates}
    # One that may be chosen has a table, so its mean is no None.
    usable = sorted((one.mean_ms or 0.0, one.variant.name) for one in candidates if objections[one.variant.name] is None)
    name = usable[0][1] if usable else REFERENCE
    if name not in objections:
        raise _not_built(name, model=model, there=[f"{other} ({objection})" for other, objection in objections.items()])
    chosen = _named(candidates, name, model=model, device=device, importable=importable)
    means = {other: f"{mean_ms:.1f} ms on average" for mean_ms, other in usable}
    why_not = [f"{other} ({objection or means[other]})" for other, objection in objections.items() if other != name]
    reason = f"'{name}' ({means.get(name, 'the fallback')})" + (f", not {', '.join(why_not)}" if why_not else "")
    return replace(chosen, reason=f"model '{model}': variant {reason}")


def _named(candidates: Sequence[Candidate], name: str, *, model: str, device: str, importable: Callable[[str], bool]) -> Variant:
    by_name = {one.variant.name: one.variant for one in candidates}
    if name not in by_name:
        raise _not_built(name, model=model, there=list(by_name))
    variant = by_name[name]
    if variant.device == "gpu" and device != "gpu":
        raise ConfigError(
            f"model '{model}': variant '{name}' runs on a GPU: set `kind: KIND_GPU` in instance_group or choose another variant"
        )
    if not importable(variant.runtime):
        raise ConfigError(f"model '{model}': variant '{name}' needs the runtime {variant.runtime}, which is not installed here")
    return replace(variant, reason=f"model '{model}': variant '{name}', as configured")


def _not_built(name: str, *, model: str, there: Sequence[str]) -> ConfigError:
    those = f"there are: {', '.join(there)}" if there else "there are none"
    return ConfigError(f"model '{model}': variant '{name}' is not built, {those}; run `tidegate models build {model} --variant {name}`")


def _objection(one: Candidate, device: str, machine_kind: str, importable: Callable[[str], bool]) -> str | None:
    """Why `auto` must not take it."""
    if one.variant.device != device:
        return f"for a {one.variant.device}"
    if one.machine_kind != machine_kind:
        return f"measured on {one.machine_kind or 'an unknown machine'}, this is {machine_kind}"
    if not importable(one.variant.runtime):
        return f"{one.variant.runtime} is not installed"
    if not one.file_is_there:
        return f"{one.variant.file.name} is missing"
    if one.mean_ms is None:
        return "no latency table"
    return None if one.variant.name == REFERENCE else _loses_too_much(one)


def _loses_too_much(one: Candidate) -> str | None:
    if one.cosine_p1 is None or one.relative_loss is None:
        return "its accuracy was not measured"
    if not one.cosine_p1 >= MINIMUM_COSINE_P1:
        return f"cosine p1 {one.cosine_p1:.4f} < {MINIMUM_COSINE_P1}"
    if not one.relative_loss <= MAXIMUM_RELATIVE_LOSS:
        return f"loses {one.relative_loss:.2%} of the rank correlation, more than {MAXIMUM_RELATIVE_LOSS:.0%}"
    return None


def _plain(version_directory: Path, filename: str) -> Variant:
    file = version_directory / filename
    if not file.exists():
        model = version_directory.parent.name
        raise ConfigError(f"unable to find '{file}', nor a variant beside it: run `tidegate models build {model}`")
    return Variant("", version_directory, file, "onnxruntime", "cpu", None, f"'{filename}', there are no variants")


def _read(manifest: Path) -> Candidate | None:
    try:
        document = json.loads(manifest.read_text())
        if document["format_version"] != FORMAT_VERSION:
            return None
        return _candidate(manifest.parent, document)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Cut short, or written by something else: not a variant that could be served.
        return None


def _candidate(directory: Path, document: Mapping[str, Any]) -> Candidate:
    agreement = document.get("agreement") or {}
    table = document.get("latency_table")
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
        mean_ms=fmean(ms for row in table["ms"] for ms in row) if table else None,
        cosine_p1=agreement.get("against_fp32", {}).get("cosine_p1"),
        relative_loss=agreement.get("similarity", {}).get("relative_loss"),
        file_is_there=(directory / document["file"]).is_file(),
    )
