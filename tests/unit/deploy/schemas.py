"""Strict schemas of Kubernetes' objects, as `kubernetes-validate` carries them, and of the few fields that we
use of other projects' custom resources.

The second are written by hand from their documentation: what is not in them is an error, which a new field
of ours meets first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

VERSIONS = ("1.33", "1.34", "1.35", "1.36", "1.37")


@cache
def _definitions(version: str) -> Registry[Any]:
    return Resource.from_contents(_schema(version, "_definitions")) @ Registry()  # type: ignore[operator]


def _schema(version: str, name: str) -> Any:
    found = files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict" / f"{name}.json"
    return json.loads(found.read_text())


@cache
def _builtin(version: str, kind: str, api_version: str) -> Draft202012Validator:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    return Draft202012Validator(_schema(version, f"{kind.lower()}-{group}"), registry=_definitions(version))


def _object(required: str = "", /, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


TEXT, COUNT, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
NAME = {"type": "string", "minLength": 1}
LABELS = {"type": "object", "additionalProperties": TEXT}
DURATION = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
PROMETHEUS_DURATION = {"type": "string", "pattern": r"^[0-9]+(ms|s|m|h|d)$"}
METADATA = _object("name", name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS)

_PARENTS = _list(_object("name", name=TEXT, namespace=TEXT, sectionName=TEXT))
_BACKENDS = _list(_object("name port", name=TEXT, port=COUNT))
_HTTP_MATCH = _object(path=_object("type value", type={"enum": ["PathPrefix", "Exact"]}, value={"pattern": "^/"}))
_GRPC_MATCH = _object(method=_object(service=TEXT, method=TEXT, type={"enum": ["Exact"]}))
_HTTP_RULE = _object("backendRefs", matches=_list(_HTTP_MATCH), backendRefs=_BACKENDS, timeouts=_object(request=DURATION))
_GRPC_RULE = _object("backendRefs", matches=_list(_GRPC_MATCH), backendRefs=_BACKENDS)
_ALERT = _object("alert expr labels annotations", alert=TEXT, expr=TEXT, labels=LABELS, annotations=LABELS, **{"for": PROMETHEUS_DURATION})
_RECORD = _object("record expr", record=TEXT, expr=TEXT, labels=LABELS)
_RULES = _list({"anyOf": [_ALERT, _RECORD]})
_AUTHORIZATION = _object("type credentials", type={"const": "Bearer"}, credentials=_object("name key", name=TEXT, key=TEXT))
_METRICS_ENDPOINT = _object("port", port=TEXT, path=TEXT, interval=PROMETHEUS_DURATION, authorization=_AUTHORIZATION)

_TRIGGER = _object(
    "type metricType metadata",
    type={"const": "prometheus"},
    metricType={"enum": ["AverageValue", "Value"]},
    # Every value is a text, numbers and booleans too.
    metadata=_object("serverAddress query threshold", serverAddress=TEXT, query=TEXT, threshold=TEXT, ignoreNullValues=TEXT),
)
_FALLBACK = {"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]}
_POLICY = _object("type value periodSeconds", type={"enum": ["Pods", "Percent"]}, value=COUNT, periodSeconds=COUNT)
_SCALING = _object(stabilizationWindowSeconds=COUNT, policies=_list(_POLICY), selectPolicy={"enum": ["Max", "Min", "Disabled"]})

CUSTOM: dict[tuple[str, str], Any] = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _object(
        "parentRefs", parentRefs=_PARENTS, hostnames=_list(TEXT), rules=_list(_HTTP_RULE)
    ),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): _object(
        "parentRefs", parentRefs=_PARENTS, hostnames=_list(TEXT), rules=_list(_GRPC_RULE)
    ),
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        "selector podMetricsEndpoints", selector=_object(matchLabels=LABELS), podMetricsEndpoints=_list(_METRICS_ENDPOINT)
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        groups=_list(_object("name rules", name=TEXT, interval=PROMETHEUS_DURATION, rules=_RULES))
    ),
    # Not podTemplateRef, percentage and limits, which we do not use; of the two references there has to be one.
    ("autoscaling.x-k8s.io/v1beta1", "CapacityBuffer"): _object(
        "scalableRef replicas",
        scalableRef=_object("kind name", apiGroup=TEXT, kind=NAME, name=NAME),
        replicas={"type": "integer", "minimum": 0},
        provisioningStrategy={"enum": ["buffer.x-k8s.io/active-capacity"]},
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): _object(
        "scaleTargetRef triggers",
        scaleTargetRef=_object("name", name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        cooldownPeriod=COUNT,
        triggers=_list(_TRIGGER),
        fallback=_object("failureThreshold replicas", failureThreshold=COUNT, replicas=COUNT, behavior=_FALLBACK),
        advanced=_object(horizontalPodAutoscalerConfig=_object(behavior=_object(scaleUp=_SCALING, scaleDown=_SCALING))),
    ),
}
"""(apiVersion, kind) -> schema of its `spec`."""


def faults(version: str, it: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with an object for this version of Kubernetes."""
    return _faults(version, json.dumps(it))


@cache
def _faults(version: str, text: str) -> tuple[str, ...]:
    """Faults of an object in JSON, kept since overlays have most objects in common."""
    it = json.loads(text)
    api_version, kind = it["apiVersion"], it["kind"]
    if (spec := CUSTOM.get((api_version, kind))) is not None:
        whole = _object("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata=METADATA, spec=spec)
        validator = Draft202012Validator(whole)
    else:
        validator = _builtin(version, kind, api_version)
    where = f"{kind} {it['metadata']['name']}"
    return tuple(f"{where}: {error.json_path}: {error.message}" for error in validator.iter_errors(it))
