"""Bounds on what a node tells of its models: a size, a time or a number beyond them is no description.

Gateways add sizes up, divide by times, and place models by both, so one impossible figure of one node would
spoil decisions about all. The bounds are those of models' configurations (`models/adapters/model_descriptions`)
and manifests (`metering/domain/compute_units`). Each function returns its value, and raises ValueError.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from math import inf

from control_plane.core.held_memory import HeldMemory
from control_plane.core.names import MAX_SIZE_BYTES
from control_plane.metering.domain.compute_units import ModelCost, UnitTable
from control_plane.models.domain.description import DescribedModel
from control_plane.node.domain.fence import Term

_MAX_COUNT = 10**9
_MAX_CONFIG_CHARS = 2**20
_MAX_NUMBER = 2**53
"""JSON has no whole number beyond that which all programs read as the same."""


def plausible_models(models: Mapping[str, DescribedModel | None]) -> Mapping[str, DescribedModel | None]:
    """Check the descriptions of models by their names."""
    for name, model in models.items():
        if model is not None:
            _require(model.spec.name == name, "it is described under another model's name")
            _require_model(model)
    return models


def plausible_cost(cost: ModelCost) -> ModelCost:
    """Check a model's latency tables."""
    for table in (*cost.by_variant.values(), *(() if cost.table is None else (cost.table,))):
        _require_table(table)
    return cost


def plausible_memory(held: HeldMemory) -> HeldMemory:
    """Check a reading of a server's memory."""
    for size in (held.host_bytes, held.gpu_bytes or 0):
        _require(0 <= size <= MAX_SIZE_BYTES, f"a server does not hold {size} bytes")
    return held


def plausible_term(term: Term) -> Term:
    """Check a term: a token that no lease has would keep out all others for ever."""
    _require(0 <= term.token <= _MAX_NUMBER, f"no lease has the token {term.token}")
    return term


def _require_model(model: DescribedModel) -> None:
    spec = model.spec
    _require(0 <= model.changed_ns < 2**63, "files are not changed so late")
    _require(model.fetch_s is None or 0 <= model.fetch_s < inf, "a fetch takes a time")
    for size in (model.file_bytes, 1 if spec.resident_bytes is None else spec.resident_bytes):
        _require(0 <= size <= MAX_SIZE_BYTES, f"a model does not have {size} bytes")
    for count in (spec.min_replicas, spec.max_replicas or 0, abs(spec.priority)):
        _require(0 <= count <= _MAX_COUNT, f"{count} is no number of replicas or priority")
    _require(len(spec.sharded) <= _MAX_CONFIG_CHARS, "a configuration is not that long")
    _require(1 <= spec.instances <= _MAX_COUNT, f"a replica does not have {spec.instances} instances")
    _require(spec.latency_objective_s is None or 0 < spec.latency_objective_s < inf, "an objective is a time")


def _require_table(table: UnitTable) -> None:
    lengths, times = table.lengths, table.ms_at_batch_1
    are_lengths = len(lengths) == len(times) > 0 and lengths[0] > 0 and lengths[-1] <= _MAX_NUMBER
    are_lengths = are_lengths and all(low < high for low, high in pairwise(lengths))
    _require(are_lengths and all(0 < ms < inf for ms in times), "a latency table has a time for each length, ascending")


def _require(is_so: bool, why: str) -> None:
    if not is_so:
        raise ValueError(why)
