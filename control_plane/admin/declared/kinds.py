"""The kinds of objects that files can declare: one schema for files, the admin API and editors.

A kind's fields are those of its specification in `admin/schema/views` or `admin/declared/rollout_policies`, so that a new field appears
here by itself. Read by `admin/declared` (which applies them) and `cli/admin/apply` (which checks files before they are sent).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError
from pydantic.json_schema import models_json_schema

from control_plane.admin.declared.rollout_policies import RolloutPolicySpec
from control_plane.admin.schema.views import NAME, PriceSpec, RouteSpec, Spec, TenantSpec
from control_plane.core.errors import InvalidRequest
from control_plane.core.text.validation_words import words_of
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.rollout_policy import RolloutPolicy
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant


class ModelSpec(Spec):
    """Specification of a model in a fleet, as administrators want it; without one, its folder decides, and requests load it."""

    min_replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Servers on which it stays loaded; null: as its folder says."""
    everywhere: bool = False
    """Whether every server that suits it has it, also one that joins later; `min_replicas` must be null then."""
    is_suspended: bool = False
    """Whether it is unloaded, and no request loads it; goes with neither of the others."""


@dataclass(frozen=True, slots=True)
class DeclaredKind:
    """A kind of object that files can declare."""

    name: str
    """The kind as files write it, such as `Route`."""
    spec: type[BaseModel]
    type_: type[Any] | None = None
    """The stored object; None for a fleet's models, whose desired state the fleet keeps."""


KINDS: Mapping[str, DeclaredKind] = {
    kind.name: kind
    for kind in (
        DeclaredKind("Tenant", TenantSpec, Tenant),
        DeclaredKind("Price", PriceSpec, Price),
        DeclaredKind("Model", ModelSpec),
        DeclaredKind("Route", RouteSpec, Route),
        DeclaredKind("RolloutPolicy", RolloutPolicySpec, RolloutPolicy),
    )
}
"""By name, in the order in which they are applied: what others refer to comes first."""

_MAX_TOLD = 20
"""Fields that a message lists."""

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Error in one field of a document, with what would be right."""

    place: Place
    """Path of the field below `spec`."""
    text: str


def kind_named(text: str) -> DeclaredKind:
    """Find a kind by its name, also in small letters and in the plural. Raises InvalidRequest."""
    plain = text.lower()
    for kind in KINDS.values():
        singular = kind.name.lower()
        if plain in (singular, f"{singular}s", f"{singular.removesuffix('y')}ies"):
            return kind
    raise InvalidRequest(f"unknown kind {text[:100]!r}{_meant(text.capitalize(), list(KINDS))}; there are: {', '.join(KINDS)}")


def problems_of(kind: DeclaredKind, spec: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a whole specification; nothing where it fits the schema."""
    try:
        kind.spec.model_validate_json(_json(spec))
    except ValidationError as exc:
        return [_problem(kind.spec, error["type"], tuple(error["loc"]), words_of(error["msg"])) for error in exc.errors(include_url=False)]
    return []


def require_valid(kind: DeclaredKind, name: str, spec: Mapping[str, Any]) -> BaseModel:
    """Parse a specification. Raises InvalidRequest, whose text names every wrong field and what would be right."""
    if problems := problems_of(kind, spec):
        told = "; ".join(f"{'.'.join(map(str, each.place)) or 'spec'}: {each.text}" for each in problems)
        raise InvalidRequest(f"{kind.name} {name[:100]!r}: {told}")
    return kind.spec.model_validate_json(_json(spec))


def without_defaults(kind: DeclaredKind, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return those fields that differ from their defaults: what a file needs to say."""
    return _differing(spec, kind.spec)


def document_of(kind: DeclaredKind, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as a file declares it."""
    return {"kind": kind.name, "name": name, "spec": without_defaults(kind, spec)}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of one document of a file."""
    specs = [(kind.spec, "validation") for kind in KINDS.values()]
    references, found = models_json_schema(specs, ref_template="#/$defs/{model}")  # type: ignore[arg-type]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A Tidegate document: one object that `tidegate apply -f FILE` makes or changes",
        "oneOf": [_document_schema(kind, references[kind.spec, "validation"]) for kind in KINDS.values()],
        "$defs": found["$defs"],
    }


def _json(spec: Mapping[str, Any]) -> str:
    # Not orjson, which raises for integers beyond 64 bits; the schema has words for them.
    return json.dumps(spec)


def _document_schema(kind: DeclaredKind, spec: Mapping[str, Any]) -> dict[str, Any]:
    name = {"type": "string", "pattern": NAME}
    fields = {"kind": {"const": kind.name}, "name": name, "metadata": _closed({"name": name}, ["name"]), "spec": spec}
    return _closed(fields, ["kind"]) | {"oneOf": [{"required": ["name"]}, {"required": ["metadata"]}]}


def _closed(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _problem(spec: type[BaseModel], type_: str, place: Place, message: str) -> Problem:
    if type_ == "extra_forbidden":
        fields = _fields_at(spec, place[:-1])
        return Problem(place, f"unknown field{_meant(str(place[-1]), fields)}; there are: {', '.join(fields[:_MAX_TOLD])}")
    if type_ == "missing":
        return Problem(place, "is missing and must be given")
    if type_ == "string_type":
        return Problem(place, f"{message}: write it in quotes")
    return Problem(place, message)


def _meant(text: str, among: Sequence[str]) -> str:
    found = difflib.get_close_matches(text, among, n=1, cutoff=0.5)
    return f"; did you mean {found[0]!r}?" if found else ""


def _fields_at(spec: type[BaseModel], place: Place) -> list[str]:
    """The names of the fields that may stand at a place."""
    for step in place:
        field = spec.model_fields.get(str(step))
        if field is None:
            continue  # an index into a list, whose item type the step before has given
        spec = next(_models_in(field.annotation), spec)
    return list(spec.model_fields)


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, UnionType, list, tuple, dict, Annotated):
        for part in get_args(annotation):
            yield from _models_in(part)


def _differing(spec: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in spec.items():
        field = model.model_fields.get(name)
        if field is None:  # a newer gateway knows it, and its default
            if value is not None:
                found[name] = value
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, BaseModel) and isinstance(value, Mapping):
            if inner := _differing(value, type(default)):
                found[name] = inner
        elif field.is_required() or value != default:
            found[name] = value
    return found
