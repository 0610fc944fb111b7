"""Resources of kind Model as the Kubernetes API has them: what they say, and which of several for one model counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GROUP, VERSION, PLURAL, KIND = "tidegate.io", "v1alpha1", "models", "Model"

MODEL_FIELD = "model"
"""Field of a resource's specification that a document of `tidegate apply` has not: the model's name."""


@dataclass(frozen=True, slots=True)
class ModelResource:
    """Resource of kind Model: its name, and what it wants of which model."""

    name: str
    model: str
    """The model's name: `spec.model`, or the resource's own."""
    spec: Mapping[str, Any]
    """Specification, as `tidegate apply` takes it."""
    uid: str
    generation: int
    """Number of the specification: the API server raises it with each change of that."""
    created: str
    status: Mapping[str, Any]
    """The status as it was last written; empty before."""
    object: Mapping[str, Any]
    """The whole of it."""


def read(it: Mapping[str, Any]) -> ModelResource:
    """Read a resource. None is refused, whatever is in it: its status has to tell what is wrong."""
    metadata, spec, status = it.get("metadata") or {}, it.get("spec"), it.get("status")
    fields = dict(spec) if isinstance(spec, Mapping) else {}
    model, name = fields.pop(MODEL_FIELD, None), str(metadata.get("name", ""))
    return ModelResource(
        name=name,
        model=model if isinstance(model, str) and model else name,
        spec=fields,
        uid=str(metadata.get("uid", "")),
        generation=int(metadata.get("generation") or 0),
        created=str(metadata.get("creationTimestamp", "")),
        status=status if isinstance(status, Mapping) else {},
        object=it,
    )


def oldest_first(resources: Iterable[ModelResource]) -> list[ModelResource]:
    return sorted(resources, key=lambda each: (each.created, each.name))


def claims(resources: Iterable[ModelResource]) -> dict[str, ModelResource]:
    """Return the resource that counts of each model: the first of `resources`, which are `oldest_first`."""
    found: dict[str, ModelResource] = {}
    for each in resources:
        found.setdefault(each.model, each)
    return found
