"""Builds one target: runs its recipe, tries the result with the runtime that will serve it, and publishes it
if it passes its gate.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from python_backends.export.discovery import VERSION, Target
from python_backends.export.manifest import (
    NOT_MEASURED,
    Measured,
    add_agreement,
    describe_artefact,
    is_auto_eligible,
    is_measured,
    read_manifest,
    stale_reason,
    write_manifest,
)
from python_backends.export.measure import latency_table
from python_backends.export.memory import measure_resident_bytes
from python_backends.export.opening import opened
from python_backends.export.progress import Progress
from python_backends.export.publish import atomic_replace, build_lock, leftovers, remove_leftovers
from python_backends.export.recipe import BenchmarkedTrial, BuildError
from python_backends.runtime.engines.cpu import usable_cpu_count


@dataclass(frozen=True, slots=True)
class Demand:
    """Options of a build.

    `force` also builds what is up to date; `named` builds what is built on demand, and makes it an error if this
    machine cannot build the target;
    `quick` builds only what may be served unmeasured, and measures nothing.
    """

    force: bool = False
    named: bool = False
    quick: bool = False


def build_if_stale(target: Target, progress: Progress, demand: Demand = Demand()) -> None:
    """Build the target if it is stale, and measure it if it has not been measured.

    Raises:
        BuildError: It could not be built, or did not pass its gate; nothing of it is published then.
    """
    if demand.quick and not _may_be_served_unmeasured(target):
        return
    if target.recipe.on_demand and not demand.named and not target.directory.exists():
        progress.skipped(target.label, f"it is built on demand: --variant {target.variant}")
        return
    inputs = target.recipe.inputs()
    reason = "forced" if demand.force else stale_reason(target.directory, inputs)
    if reason is None and (demand.quick or is_measured(target.directory)):
        return
    if needs := machine_needed(target):
        if demand.named:
            raise BuildError(needs)
        progress.skipped(target.label, needs)
        return
    progress.begun(target.label, reason or NOT_MEASURED)
    target.recipe.require_libraries()
    with build_lock(target.model_directory):
        if reason is None:
            _measure_in_place(target, progress)
        else:
            _build(target, inputs, progress, quick=demand.quick)
    progress.built(target.label, is_auto_eligible=is_auto_eligible(target.directory))


def remove_stale_variants(model_directory: Path, variants: list[str]) -> None:
    """Remove variants that no recipe makes any more from a model's version directory, and artefacts from
    before it had variants.

    Raises:
        BuildError: Another process is building the model.
    """
    if paths := leftovers(model_directory / VERSION, variants):
        with build_lock(model_directory):
            remove_leftovers(paths)


def benchmark(target: Target, progress: Progress, sts: Path) -> None:
    """Measure a built variant on the STS benchmark, if it can run here, and record the result.

    Raises:
        BuildError: The file cannot be read, or the variant fails on it.
    """
    serving = target.recipe.serving
    if (
        serving is None
        or not isinstance(serving.trial, BenchmarkedTrial)
        or machine_needed(target)
        or stale_reason(target.directory, target.recipe.inputs())
    ):
        return
    progress.begun(target.label, "STS benchmark")
    with build_lock(target.model_directory), progress.step(f"compare with people on {sts.name}"):
        with opened(target, target.directory) as run:
            measures = serving.trial.benchmark(run, sts)
        add_agreement(target.directory, "sts_benchmark", measures)
    progress.found(f"spearman {measures['spearman']}, fp32 {measures['spearman_fp32']}, relative loss {measures['relative_loss']}")


def machine_needed(target: Target) -> str | None:
    """Return what a build needs that this machine lacks; None if it can be built here."""
    return target.recipe.serving.needs() if target.recipe.serving else None


def _may_be_served_unmeasured(target: Target) -> bool:
    """Whether the target may be served unmeasured: it has no variants, or its file's digest is that of a
    verified file.
    """
    return target.recipe.serving is None or bool(target.recipe.serving.sha256)


def _build(target: Target, inputs: Mapping[str, str], progress: Progress, *, quick: bool) -> None:
    started_s = time.monotonic()
    with atomic_replace(target.model_directory, target.directory) as staging:
        agreement = target.recipe.build(staging, progress)
        _require_verified(target, staging)
        measured = Measured({}) if quick or not target.recipe.serving else _try_out(target, staging, progress)
        measured = replace(measured, agreement={**measured.agreement, **agreement})
        elapsed_s = time.monotonic() - started_s
        write_manifest(staging, target.recipe, measured, inputs=inputs, variant=target.variant, build_seconds=elapsed_s)


def _measure_in_place(target: Target, progress: Progress) -> None:
    """Measure a target that is already built; only its manifest is written anew."""
    manifest = read_manifest(target.directory)
    assert manifest is not None
    measured = _try_out(target, target.directory, progress)
    agreement = {**manifest.document["agreement"], **measured.agreement}
    measured, took_s = replace(measured, agreement=agreement), manifest.document["build_seconds"]
    write_manifest(target.directory, target.recipe, measured, inputs=manifest.inputs, variant=target.variant, build_seconds=took_s)


def _require_verified(target: Target, staging: Path) -> None:
    serving = target.recipe.serving
    if serving is None or not serving.sha256:
        return
    found = describe_artefact(staging / serving.file).sha256
    if found != serving.sha256:
        raise BuildError(
            f"{serving.file} has the SHA-256 {found} instead of {serving.sha256}, that of the file that was verified: "
            "install the packages as constraints.txt pins them (`make setup`)"
        )


def _try_out(target: Target, staging: Path, progress: Progress) -> Measured:
    serving = target.recipe.serving
    assert serving is not None
    names = [tensor.name for tensor in serving.trial.config.outputs]
    with opened(target, staging) as run:
        with progress.step("compare with fp32 and with people"):
            agreement = serving.trial.compare(run)
        if shortfall := serving.gate.shortfall(agreement):
            raise BuildError(f"{shortfall}: nothing is published")
        with progress.step("measure latencies"):
            table = latency_table(
                lambda batch, length: run(names, serving.trial.inputs(batch, length)),
                threads=usable_cpu_count(),
                max_tokens=serving.measured_tokens,
            )
    with progress.step("measure memory"):
        resident_bytes = measure_resident_bytes(target, staging)
    return Measured(agreement, table, resident_bytes)
