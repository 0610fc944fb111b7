"""Bring one target up to date: build it, try it out with the runtime that will serve it, and publish it only if its gate is met."""

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
    is_measured,
    may_be_chosen,
    read_manifest,
    stale_reason,
    write_manifest,
)
from python_backends.export.measure import latency_table
from python_backends.export.memory import measure_resident_bytes
from python_backends.export.opening import opened
from python_backends.export.progress import Progress
from python_backends.export.publish import leftovers, only_builder, remove_leftovers, replacing
from python_backends.export.recipe import BuildError
from python_backends.runtime.cpu import usable_cpu_count


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of a build: `force` builds also what is up to date; `named` makes what cannot be built here an error; `quick` builds
    only what may be served before it is measured here, and measures nothing."""

    force: bool = False
    named: bool = False
    quick: bool = False


def bring_up_to_date(target: Target, progress: Progress, demand: Demand = Demand()) -> None:
    """Build the target where it is stale, and measure it where it has not been.

    Raises:
        BuildError: It could not be built, or is not good enough; nothing of it is published then.
    """
    if demand.quick and not _may_be_served_unmeasured(target):
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
    with only_builder(target.model_directory):
        if reason is None:
            _measure_in_place(target, progress)
        else:
            _build(target, inputs, progress, quick=demand.quick)
    progress.built(target.label, may_be_chosen=may_be_chosen(target.directory))


def remove_what_no_recipe_makes(model_directory: Path, variants: list[str]) -> None:
    """Clear a model's version directory of variants that were given up, and of the form that it had before it had variants.

    Raises:
        BuildError: Another process is building the model.
    """
    if paths := leftovers(model_directory / VERSION, variants):
        with only_builder(model_directory):
            remove_leftovers(paths)


def benchmark(target: Target, progress: Progress, sts: Path) -> None:
    """Measure a variant that is built and can run here on the STS benchmark, and record it.

    Raises:
        BuildError: The file cannot be read, or the variant fails on it.
    """
    serving = target.recipe.serving
    if serving is None or machine_needed(target) or stale_reason(target.directory, target.recipe.inputs()):
        return
    progress.begun(target.label, "STS benchmark")
    with only_builder(target.model_directory), progress.step(f"compare with people on {sts.name}"):
        with opened(target, target.directory) as run:
            measures = serving.trial.benchmark(run, sts)
        add_agreement(target.directory, "sts_benchmark", measures)
    progress.found(f"spearman {measures['spearman']}, fp32 {measures['spearman_fp32']}, relative loss {measures['relative_loss']}")


def machine_needed(target: Target) -> str | None:
    """Which machine a build of it needs, None where this one will do."""
    return target.recipe.serving.needs() if target.recipe.serving else None


def _may_be_served_unmeasured(target: Target) -> bool:
    """What is no variant is never measured, and of a file that has been verified it is known what it computes."""
    return target.recipe.serving is None or bool(target.recipe.serving.sha256)


def _build(target: Target, inputs: Mapping[str, str], progress: Progress, *, quick: bool) -> None:
    started_s = time.monotonic()
    with replacing(target.model_directory, target.directory) as staging:
        agreement = target.recipe.build(staging, progress)
        _require_verified(target, staging)
        measured = Measured({}) if quick or not target.recipe.serving else _try_out(target, staging, progress)
        measured = replace(measured, agreement={**measured.agreement, **agreement})
        elapsed_s = time.monotonic() - started_s
        write_manifest(staging, target.recipe, measured, inputs=inputs, variant=target.variant, build_seconds=elapsed_s)


def _measure_in_place(target: Target, progress: Progress) -> None:
    """Of what has been built already: its manifest alone is written anew."""
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
        serving.gate.require(agreement)
        with progress.step("measure latencies"):
            table = latency_table(lambda batch, length: run(names, serving.trial.inputs(batch, length)), threads=usable_cpu_count())
    with progress.step("measure memory"):
        resident_bytes = measure_resident_bytes(target, staging)
    return Measured(agreement, table, resident_bytes)
