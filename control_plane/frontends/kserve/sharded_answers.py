"""Metadata and configuration of sharded models, which no Triton has, made from the configuration in their folders.

The forms are Triton's (server 2.51). Called by `http_fleet` and `grpc_fleet`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from google.protobuf import json_format

from control_plane.protocols.grpc import GrpcAnswer, GrpcStatus, message_answer, status_answer
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.messages import service_pb2
from control_plane.sharding.domain.plan import ONLY_VERSION, DeclaredTensor, read_plan

_PLATFORM = "ensemble"


def has_version(version: str) -> bool:
    """Whether sharded models have this version; empty for the one that there is."""
    return version in ("", ONLY_VERSION)


def http_description(model: str, version: str, config: str, *, is_config: bool) -> HttpAnswer:
    """The answer to a GET of a model's metadata, or of its configuration. Raises ModelLoadFailed: it cannot be carried out."""
    if not has_version(version):
        return make_answer(404, orjson.dumps({"error": _not_found(model, version)}))
    return make_answer(200, config.encode() if is_config else orjson.dumps(_metadata(model, config)))


def grpc_description(model: str, version: str, config: str, *, is_config: bool) -> GrpcAnswer:
    """The answer to ModelMetadata, or to ModelConfig. Raises as `http_description`."""
    if not has_version(version):
        return status_answer(GrpcStatus.NOT_FOUND, _not_found(model, version))
    if is_config:
        told: Any = json_format.ParseDict({"config": orjson.loads(config)}, service_pb2.ModelConfigResponse())
    else:
        told = json_format.ParseDict(_metadata(model, config), service_pb2.ModelMetadataResponse())
    return message_answer(told.SerializeToString())


def _metadata(model: str, config: str) -> dict[str, Any]:
    plan = read_plan(config)
    batch = (-1,) if plan.max_batch_size else ()
    return {
        "name": model,
        "versions": [ONLY_VERSION],
        "platform": _PLATFORM,
        "inputs": _tensors(plan.inputs, batch),
        "outputs": _tensors(plan.outputs, batch),
    }


def _tensors(declared: Iterable[DeclaredTensor], batch: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": [*batch, *each.dims]} for each in declared]


def _not_found(model: str, version: str) -> str:
    return f"Request for unknown model: '{model}' version {version} is not found"
