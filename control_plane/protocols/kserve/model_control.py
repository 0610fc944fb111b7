"""Codec of the model repository calls (index, load, unload) over HTTP and gRPC.

Source: Triton's extension_model_repository.md.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Protocol

from control_plane.core.errors import InvalidRequest, UnparsableRequest
from control_plane.core.model import ModelOverride
from control_plane.protocols.kserve.requests.infer_json import parse_json_object

_FILE = "file:"


def not_in_any_repository(name: str) -> str:
    """Triton's text for loading a model that it does not find; Triton sends it as an internal error."""
    return f"failed to load '{name}', failed to poll from model repository"


def read_load_request(body: bytes | bytearray) -> ModelOverride | None:
    """Parse the override in a load request; None: load the repository's own model.

    Raises:
        UnparsableRequest: with Triton's own words. InvalidRequest: a parameter that Triton does not know
            either.
    """
    parameters = _parameters(body)
    config = _text(parameters, "config") if "config" in parameters else None
    files = {name: _decoded(name, _text(parameters, name)) for name in parameters if name.startswith(_FILE)}
    unknown = [name for name in parameters if name != "config" and not name.startswith(_FILE)]
    if unknown:
        raise InvalidRequest(f"unknown load parameter '{unknown[0]}'; config and file:<version>/<name> are known")
    return ModelOverride(config, files) if config is not None or files else None


def read_unload_request(body: bytes | bytearray) -> bool:
    """Whether to unload the models that the model depends on, too. Raises UnparsableRequest."""
    unload_dependents = _parameters(body).get("unload_dependents", False)
    if type(unload_dependents) is not bool:
        raise UnparsableRequest("attempt to access JSON non-boolean as boolean")
    return unload_dependents


def read_index_request(body: bytes | bytearray) -> bool:
    """Whether to list ready models only. Raises UnparsableRequest."""
    only_ready = parse_json_object(bytes(body)).get("ready", False) if body else False
    if type(only_ready) is not bool:
        raise UnparsableRequest("attempt to access JSON non-boolean as boolean")
    return only_ready


class ModelRepositoryParameter(Protocol):
    """The fields of `inference.ModelRepositoryParameter`."""

    bool_param: bool
    string_param: str
    bytes_param: bytes

    def WhichOneof(self, oneof: str) -> str | None: ...  # noqa: N802


def override_of(parameters: Mapping[str, ModelRepositoryParameter]) -> ModelOverride | None:
    """The override in a load request over gRPC; None: load the repository's own model.

    Raises InvalidRequest.
    """
    config, files = None, {}
    for name, value in parameters.items():
        if name == "config":
            config = _of_kind(name, value, "string_param").string_param
        elif name.startswith(_FILE):
            files[name] = _of_kind(name, value, "bytes_param").bytes_param
        else:
            raise InvalidRequest(f"unrecognized load parameter '{name}'; config and file:<version>/<name> are known")
    return ModelOverride(config, files) if config is not None or files else None


def unloads_dependents(parameters: Mapping[str, ModelRepositoryParameter]) -> bool:
    """Whether an unload over gRPC includes the models that the model depends on. Raises InvalidRequest."""
    if "unload_dependents" not in parameters:
        return False
    return _of_kind("unload_dependents", parameters["unload_dependents"], "bool_param").bool_param


def _of_kind(name: str, value: ModelRepositoryParameter, kind: str) -> ModelRepositoryParameter:
    if value.WhichOneof("parameter_choice") != kind:
        raise InvalidRequest(f"invalid value type for load parameter '{name}', expected {kind}.")
    return value


def _parameters(body: bytes | bytearray) -> dict[str, Any]:
    if not body:
        return {}
    parameters = parse_json_object(bytes(body)).get("parameters", {})
    if type(parameters) is not dict:
        raise UnparsableRequest("attempt to get members for non-object")
    return parameters


def _text(parameters: dict[str, Any], name: str) -> str:
    value = parameters[name]
    if type(value) is not str:
        raise UnparsableRequest("attempt to access JSON non-string as string")
    return value


def _decoded(name: str, content: str) -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidRequest(f"'{name}' is not base64: {exc}") from exc
