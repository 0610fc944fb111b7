"""CustomResourceDefinition of kind Model, made from the schema by which `tidegate apply` checks a Model.

`tidegate schema --crd` prints it, and the component `model-resources` of `deploy/kubernetes` has it as a file. The API
server takes structural schemas only: no references, no alternatives with null, and no list of what else is forbidden
(`kubectl` refuses unknown fields by itself).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from control_plane.admin.declared.kinds import json_schema
from control_plane.core.model import MODEL_NAME
from control_plane.operator.domain.resource import GROUP, KIND, MODEL_FIELD, PLURAL, VERSION

_DROPPED = frozenset(("title", "default", "additionalProperties"))
"""Keywords that are left out. Defaults: a field that somebody has not given must not look as if they had."""

_ONE_OF_THREE = (
    "[has(self.min_replicas), has(self.everywhere) && self.everywhere, has(self.is_suspended) && self.is_suspended]"
    ".filter(given, given).size() == 1"
)

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "format": "int64"}

_CONDITION = {
    "type": "object",
    "required": ["type", "status", "reason", "lastTransitionTime"],
    "properties": {
        "type": _TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": _TEXT,
        "message": _TEXT,
        "observedGeneration": _COUNT,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}

_STATUS = {
    "type": "object",
    "properties": {
        "observedGeneration": _COUNT,
        "replicas": {**_COUNT, "description": "Servers that serve the model now."},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": _CONDITION,
        },
    },
}


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition (apiextensions.k8s.io/v1)."""
    schema = json_schema()
    spec = _structural(schema["$defs"]["ModelSpec"], schema["$defs"])
    model = {
        "type": "string",
        "pattern": f"^{MODEL_NAME.pattern}$",
        "description": "The model's name, where it is not the resource's own: Kubernetes allows no capitals and no _ there.",
    }
    spec["properties"] = {MODEL_FIELD: model, **spec["properties"]}
    message = "give one of min_replicas, everywhere: true and is_suspended: true; to let its folder decide, delete it"
    spec["x-kubernetes-validations"] = [{"rule": _ONE_OF_THREE, "message": message}]
    made = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}", "labels": {"app.kubernetes.io/part-of": "tidegate"}},
        "spec": {
            "group": GROUP,
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": PLURAL, "singular": KIND.lower()},
            "scope": "Namespaced",
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
                        {"name": "Reason", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].reason'},
                        {"name": "Accepted", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Accepted")].reason'},
                        {"name": "Servers", "type": "integer", "jsonPath": ".status.replicas"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": spec.pop("description"),
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": _TEXT,
                                "kind": _TEXT,
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": _STATUS,
                            },
                        }
                    },
                }
            ],
        },
    }
    # Without parts that are the same object twice, which YAML would show as anchors.
    copied: dict[str, Any] = json.loads(json.dumps(made))
    return copied


def _structural(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON Schema as the API server takes it."""
    if "$ref" in schema:
        return _structural(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        (only,) = [each for each in schema["anyOf"] if each.get("type") != "null"]
        rest = {key: each for key, each in schema.items() if key != "anyOf"}
        return _structural({**rest, **only}, definitions)
    made = {key: each for key, each in schema.items() if key not in _DROPPED}
    if "properties" in made:
        made["properties"] = {name: _structural(each, definitions) for name, each in made["properties"].items()}
    if "items" in made:
        made["items"] = _structural(made["items"], definitions)
    if "description" in made:
        made["description"] = " ".join(made["description"].split())
    return made
