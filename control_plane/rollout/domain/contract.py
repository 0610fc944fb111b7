"""Contract of a model: what its callers rely on, by the configuration that Triton has loaded; and what another breaks.

Pure; called by `rollout/contracts`. Source: Triton's model configuration (`model_config.proto`), as its HTTP endpoint
`/v2/models/M/config` shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.objects.domain.route import Route

ANY = -1


@dataclass(frozen=True, slots=True)
class TensorContract:
    """Data type and shape of a tensor, without the batch dimension."""

    datatype: str
    dims: tuple[int, ...]
    is_optional: bool = False

    def __str__(self) -> str:
        return f"{self.datatype.removeprefix('TYPE_')}{list(self.dims)}"


@dataclass(frozen=True, slots=True)
class Contract:
    """Contract of a model with its callers: all that they rely on."""

    inputs: Mapping[str, TensorContract]
    outputs: Mapping[str, TensorContract]
    max_batch_size: int
    is_decoupled: bool
    has_sequences: bool
    is_cached: bool = False
    """Whether its responses are cached, so that equal requests have equal answers."""


def contract_of(config: Mapping[str, Any]) -> Contract:
    """Read a contract from a loaded model's configuration."""
    policy = config.get("model_transaction_policy") or {}
    return Contract(
        _tensors(config.get("input") or ()),
        _tensors(config.get("output") or ()),
        int(config.get("max_batch_size") or 0),
        bool(policy.get("decoupled")),
        bool(config.get("sequence_batching")),
        bool((config.get("response_cache") or {}).get("enable")),
    )


def why_not_copied(contract: Contract, route: Route) -> str:
    """Return why requests of a route may not be computed twice; empty where they may."""
    if contract.is_decoupled:
        return "its model is decoupled"
    if contract.has_sequences:
        return "its model has sequences"
    is_cached = contract.is_cached if route.cache.is_on is None else route.cache.is_on
    if route.is_repeatable or is_cached:
        return ""
    return f"nobody says that its requests may be computed twice: `tidegate routes set {route.name} --repeatable`"


def require_output(contract: Contract, output: str) -> None:
    """Make sure that answers have the tensor by which they are to be compared; empty: all of them. Raises InvalidRequest."""
    if output and output not in contract.outputs:
        there = ", ".join(contract.outputs) or "none"
        raise InvalidRequest(f"the model has no output {output!r} to compare; it has {there}", field="agreement.output")


def told_policy(policy: Mapping[str, Any]) -> str:
    """Return a model's version policy as its configuration would say it."""
    if "specific" in policy:
        return f"specific {{ versions: {[int(each) for each in (policy['specific'] or {}).get('versions') or ()]} }}"
    if "all" in policy:
        return "all"
    return f"latest {{ num_versions: {int((policy.get('latest') or {}).get('num_versions') or 1)} }}"


def breaks(stable: Contract, candidate: Contract) -> list[str]:
    """Return what callers of `stable` would find broken with `candidate`, a sentence each; empty where nothing is."""
    return [*_breaks_of_inputs(stable, candidate), *_breaks_of_outputs(stable, candidate), *_other_breaks(stable, candidate)]


def _breaks_of_inputs(stable: Contract, candidate: Contract) -> Iterator[str]:
    for name, before in stable.inputs.items():
        after = candidate.inputs.get(name)
        if after is None:
            yield f"input {name} ({before}) is gone"
        elif after.datatype != before.datatype or not _takes(after.dims, before.dims):
            yield f"input {name} was {before} and is {after}"
        elif before.is_optional and not after.is_optional:
            yield f"input {name} was optional and is required"
    for name, after in candidate.inputs.items():
        if name not in stable.inputs and not after.is_optional:
            yield f"input {name} ({after}) is new and required"


def _breaks_of_outputs(stable: Contract, candidate: Contract) -> Iterator[str]:
    for name, before in stable.outputs.items():
        after = candidate.outputs.get(name)
        if after is None:
            yield f"output {name} ({before}) is gone"
        elif after.datatype != before.datatype or not _takes(before.dims, after.dims):
            yield f"output {name} was {before} and is {after}"


def _other_breaks(stable: Contract, candidate: Contract) -> Iterator[str]:
    if bool(candidate.max_batch_size) is not bool(stable.max_batch_size) or candidate.max_batch_size < stable.max_batch_size:
        yield f"max_batch_size was {stable.max_batch_size} and is {candidate.max_batch_size}"
    if candidate.is_decoupled is not stable.is_decoupled:
        yield f"it is {'' if candidate.is_decoupled else 'not '}decoupled, unlike the present model"
    if candidate.has_sequences is not stable.has_sequences:
        yield f"it has {'' if candidate.has_sequences else 'no '}sequences, unlike the present model"


def _takes(wide: tuple[int, ...], narrow: tuple[int, ...]) -> bool:
    """Whether every shape of `narrow` is one of `wide`."""
    return len(wide) == len(narrow) and all(one in (ANY, other) for one, other in zip(wide, narrow, strict=True))


def _tensors(described: Any) -> dict[str, TensorContract]:
    return {
        str(each["name"]): TensorContract(
            str(each["data_type"]), tuple(int(size) for size in each.get("dims") or ()), bool(each.get("optional"))
        )
        for each in described
    }
