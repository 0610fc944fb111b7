"""Choice of the variant to serve: the one that the configuration names, or with `auto` the fastest eligible
one.

Pure: `variant.py` reads the manifests. Whether a variant is accurate enough for `auto` was decided when it
was built, and is in its manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.variants.latency_table import LatencyTable
from python_backends.runtime.variants.variant_mix import ONE_SHORT_TEXT, Mix

AUTO = "auto"
REFERENCE = "fp32"


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant to serve; `device` is "cpu" or "gpu", `name` is empty for a plain file, `reason` says why it
    was chosen.
    """

    name: str
    directory: Path
    file: Path
    runtime: str
    device: str
    latency_table: LatencyTable | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A built variant; `machine_kind` is the kind of machine that measured it, `objection` why `auto` must
    never choose it.
    """

    variant: Variant
    machine_kind: str
    objection: str = ""
    file_is_there: bool = True


@dataclass(frozen=True, slots=True)
class Place:
    """Place that a variant will run in: a `device` ("cpu" or "gpu"), the machine's kind, its installed runtimes."""

    device: str
    machine_kind: str
    has_runtime: Callable[[str], bool]


def choose(candidates: Sequence[Candidate], requested: str, *, model: str, place: Place, mix: Mix = ONE_SHORT_TEXT) -> Variant:
    """Choose the variant to serve; `requested` is its name or "auto".

    "auto" chooses the variant that takes the least time for `mix`; fp32 if several take the same time, or if
    none is eligible.

    Raises:
        ConfigError: The variant is missing or cannot run there; the text lists the variants and says how to
        build a missing one.
    """
    if requested != AUTO:
        chosen = _named(candidates, requested, model=model, place=place)
        return replace(chosen, reason=f"{requested}, as configured")
    objections = {one.variant.name: _objection(one, place) for one in candidates}
    times_ms = {
        one.variant.name: mix.mean_ms(one.variant.latency_table)
        for one in candidates
        if objections[one.variant.name] is None and one.variant.latency_table is not None
    }
    name = min(times_ms, key=lambda each: (times_ms[each], each != REFERENCE, each), default=REFERENCE)
    if name not in objections:
        raise _not_built(name, model=model, there=[f"{other} ({objection})" for other, objection in objections.items()])
    chosen = _named(candidates, name, model=model, place=place)
    return replace(chosen, reason=_reason(name, times_ms, objections, mix))


def _reason(name: str, times_ms: Mapping[str, float], objections: Mapping[str, str | None], mix: Mix) -> str:
    """Explain the choice in one line: the chosen variant, then every other one, the fastest first."""
    said = {other: f"{times_ms[other]:.1f} ms" for other in sorted(times_ms, key=times_ms.__getitem__)}
    refused = {other: objection for other, objection in objections.items() if objection is not None}
    why = f"{said[name]} for {mix.text} tokens" if name in said else f"the fallback, {refused[name]}"
    others = [f"{other} ({words})" for other, words in (said | refused).items() if other != name]
    return f"{name} ({why})" + (f", not {', '.join(others)}" if others else "")


def _named(candidates: Sequence[Candidate], name: str, *, model: str, place: Place) -> Variant:
    by_name = {one.variant.name: one.variant for one in candidates}
    if name not in by_name:
        raise _not_built(name, model=model, there=list(by_name))
    variant = by_name[name]
    if variant.device == "gpu" and place.device != "gpu":
        raise ConfigError(
            f"model '{model}': variant '{name}' runs on a GPU: set `kind: KIND_GPU` in instance_group or choose another variant"
        )
    if not place.has_runtime(variant.runtime):
        raise ConfigError(f"model '{model}': variant '{name}' needs the runtime {variant.runtime}, which is not installed here")
    return variant


def _not_built(name: str, *, model: str, there: Sequence[str]) -> ConfigError:
    those = f"there are: {', '.join(there)}" if there else "there are none"
    return ConfigError(f"model '{model}': variant '{name}' is not built, {those}; run `tidegate models build {model} --variant {name}`")


def _objection(one: Candidate, place: Place) -> str | None:
    """Return why `auto` must not choose the variant there; None if it may."""
    if one.variant.device != place.device:
        return f"for a {one.variant.device}"
    if one.machine_kind != place.machine_kind:
        return f"measured on {one.machine_kind or 'an unknown machine'}, this is {place.machine_kind}"
    if not place.has_runtime(one.variant.runtime):
        return f"{one.variant.runtime} is not installed"
    if not one.file_is_there:
        return f"{one.variant.file.name} is missing"
    if one.objection:
        return one.objection
    return "not measured here yet" if one.variant.latency_table is None else None
