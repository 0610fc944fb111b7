"""Parts of OpenAI's API that its calls share: the model that a body names, lists of models, and errors.

Called by `frontends/` and by the capabilities that answer such calls (`embeddings/`, `generation/`). Source:
https://platform.openai.com/docs/api-reference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from control_plane.core.errors import InvalidRequest, ModelNotFound
from control_plane.core.model import MODEL_NAME

_SHOWN_CHARS = 100
_LOOKED_THROUGH_BYTES = 16 * 1024
"""Largest body that is parsed only to record a refusal under its model's name; that takes some 50 us."""
_END_BYTES = 2048
_NAMED = re.compile(rb'[{,]\s*+"model"\s*+:\s*+"([^"\\]{1,255})"')
"""A member `model`; within a string its quotes would follow backslashes."""


def read_model(fields: dict[str, Any]) -> str:
    """The model that a call names. Raises InvalidRequest; ModelNotFound: no model can have that name."""
    model = fields.get("model")
    if model is None or model == "":
        raise InvalidRequest("you must provide a model", field="model")
    if type(model) is not str:
        raise InvalidRequest("model must be a string", field="model")
    if not MODEL_NAME.fullmatch(model):  # it becomes part of a path
        raise ModelNotFound(f"the model {model[:_SHOWN_CHARS]!r} does not exist")
    return model


def model_seen(body: bytes | bytearray) -> str:
    """The model that a body names, whether or not the rest of it is valid; empty where no name can be found. Of a large body only the
    ends are looked at: clients write the name before or behind what is large."""
    if len(body) > _LOOKED_THROUGH_BYTES:
        found = _NAMED.findall(bytes(body[:_END_BYTES] + body[-_END_BYTES:]))
        return found[-1].decode("utf-8", "replace") if found else ""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return ""
    model = fields.get("model") if type(fields) is dict else None
    return model if type(model) is str else ""


def models_answer(names: Sequence[str]) -> bytes:
    """The body of an answer that lists models."""
    return orjson.dumps({"object": "list", "data": [_model(name) for name in names]})


def model_answer(name: str) -> bytes:
    """The body of an answer that describes one model."""
    return orjson.dumps(_model(name))


def error_answer(message: str, *, kind: str, code: str | None, field: str | None) -> bytes:
    """The body of an answer that says what was wrong."""
    return orjson.dumps({"error": {"message": message, "type": kind, "param": field, "code": code}})


def _model(name: str) -> dict[str, object]:
    """One model as OpenAI describes it; clients require `created`, which Triton does not know, hence 0."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "tidegate"}
