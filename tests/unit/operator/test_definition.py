"""The definition of kind Model says what `tidegate apply` says, in the part of JSON Schema that the API server takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from control_plane.admin.declared.kinds import KINDS, problems_of
from control_plane.cli.common.output import as_yaml
from control_plane.operator.definition import definition
from control_plane.operator.domain.status import APPLIED, NOT_YET, Condition, conflict, duplicate, refused, status_of

MANIFEST = Path(__file__).parents[3] / "deploy/kubernetes/components/model-resources/definition.yaml"
(VERSION,) = definition()["spec"]["versions"]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]
SPEC, STATUS = SCHEMA["properties"]["spec"], SCHEMA["properties"]["status"]

STRUCTURAL = {
    "type", "properties", "required", "items", "description", "enum", "format", "pattern", "minimum", "maximum", "minLength", "maxLength",
    "x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
}  # fmt: skip


def test_the_manifest_is_what_the_schema_makes() -> None:
    made = f"# Written by `tidegate schema --crd` (WRITE_GOLDEN=1 writes it anew).\n{as_yaml(definition())}"
    if os.environ.get("WRITE_GOLDEN"):
        MANIFEST.write_text(made)
    assert MANIFEST.read_text() == made
    assert yaml.safe_load(made) == definition()
    assert "&id" not in made


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for each in (*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])):
        yield from parts(each)


def test_it_is_structural() -> None:
    for part in parts(SCHEMA):
        assert part.keys() <= STRUCTURAL, part
        assert isinstance(part["type"], str)


def test_lists_that_are_maps_have_keys_that_each_item_has() -> None:
    found = [part for part in parts(SCHEMA) if part.get("x-kubernetes-list-type") == "map"]
    assert found
    for part in found:
        keys, item = part["x-kubernetes-list-map-keys"], part["items"]
        assert set(keys) <= set(item["required"])
        assert all(item["properties"][key]["type"] in ("string", "integer", "boolean") for key in keys)


def test_what_the_api_server_asks_of_every_definition() -> None:
    made, spec = definition(), definition()["spec"]
    assert made["metadata"]["name"] == f"{spec['names']['plural']}.{spec['group']}"
    assert [each["name"] for each in spec["versions"] if each["storage"]] == [VERSION["name"]], "exactly one is stored"
    assert SCHEMA["type"] == "object"
    assert SCHEMA["properties"]["metadata"] == {"type": "object"}, "only its name may be restricted"
    for part in parts(SCHEMA):
        assert set(part.get("required", ())) <= part.get("properties", {}).keys()
        assert not {"exclusiveMinimum", "uniqueItems"} & part.keys(), "of another form or forbidden in structural schemas"


def test_it_has_the_fields_of_the_documents_and_the_models_name() -> None:
    assert SPEC["properties"].keys() == {"model", *KINDS["Model"].spec.model_fields}
    assert all(each["description"] for each in SPEC["properties"].values())


@pytest.mark.parametrize(
    "spec",
    [
        {"min_replicas": 0},
        {"min_replicas": 1000},
        {"everywhere": True},
        {"is_suspended": True},
        {"min_replicas": -1},
        {"min_replicas": 1001},
        {"min_replicas": 1.5},
        {"min_replicas": "2"},
        {"everywhere": "yes"},
        {"is_suspended": 1},
    ],
)
def test_both_take_and_refuse_the_same(spec: dict[str, Any]) -> None:
    by_server = list(jsonschema.Draft202012Validator(SPEC).iter_errors(spec))
    assert bool(by_server) == bool(problems_of(KINDS["Model"], spec)), by_server


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same, with unknown fields as errors: the API server prunes them, and what is pruned differs for ever."""
    made = {key: each for key, each in schema.items() if not key.startswith("x-")}
    if "properties" in made:
        made |= {"properties": {name: closed(each) for name, each in made["properties"].items()}, "additionalProperties": False}
    if "items" in made:
        made["items"] = closed(made["items"])
    return made


@pytest.mark.parametrize("accepted", [APPLIED, NOT_YET, conflict("ci", "m"), duplicate("m"), refused("Invalid", "x")])
def test_nothing_of_a_status_is_pruned(accepted: Condition) -> None:
    made = status_of({}, generation=7, accepted=accepted, ready=Condition("False", "Loading"), replicas=1, now="2026-11-23T20:00:00Z")
    jsonschema.validate(made, closed(STATUS))


def test_status_is_a_subresource_and_columns_show_it() -> None:
    assert VERSION["subresources"] == {"status": {}}
    assert {column["name"] for column in VERSION["additionalPrinterColumns"]} >= {"Ready", "Reason", "Accepted"}
