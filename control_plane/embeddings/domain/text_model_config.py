"""Recognises text-embedding models by Triton's model configuration (`GET /v2/models/NAME/config`).

Source: model_config.proto (Triton 24.10) as JSON, in which a field that has its default value may be missing.
"""

from __future__ import annotations

from typing import Any

import orjson

from control_plane.core.errors import UpstreamFailed
from control_plane.embeddings.domain.text_model import TextModel, TokenInputs

TEXT_MODEL_REQUIREMENTS = (
    "one takes one text (a TYPE_STRING of dims [ 1 ]) and answers with one TYPE_FP32 of dims [ N ], and nothing else is needed"
)

_TOKENS = "TOKENS"
_IDS, _MASK = "INPUT_IDS", "ATTENTION_MASK"


def read_text_model(config: bytes | bytearray) -> TextModel | None:
    """Describe the text-embedding model of this configuration; None for any other kind of model.

    Raises UpstreamFailed: `config` is not a model configuration.
    """
    try:
        return _read(orjson.loads(config))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as exc:
        raise UpstreamFailed("Triton's answer is not a model's configuration") from exc


def _read(config: dict[str, Any]) -> TextModel | None:
    inputs, outputs = config["input"], config["output"]
    texts = [each for each in inputs if _is(each, "TYPE_STRING", 1)]
    embeddings = [each for each in outputs if each["data_type"] == "TYPE_FP32"]
    needed = [each for each in inputs if not each.get("optional")]  # a model that accepts tokens has optional inputs only
    if len(texts) != 1 or len(embeddings) != 1 or (needed and needed != texts) or _is_decoupled_or_sequence(config):
        return None
    dimensions = [int(dimension) for dimension in embeddings[0]["dims"]]
    if len(dimensions) != 1 or dimensions[0] < 1:
        return None
    has_count = any(each["name"] == _TOKENS and _is(each, "TYPE_INT32", 1) for each in outputs)
    return TextModel(
        text=texts[0]["name"],
        embedding=embeddings[0]["name"],
        dimensions=dimensions[0],
        tokens=_TOKENS if has_count else None,
        token_inputs=_token_inputs(inputs),
        max_batch_size=int(config.get("max_batch_size", 0)),
    )


def _is(tensor: dict[str, Any], data_type: str, dimension: int) -> bool:
    return tensor["data_type"] == data_type and [int(each) for each in tensor["dims"]] == [dimension]


def _is_decoupled_or_sequence(config: dict[str, Any]) -> bool:
    # One answer to each request, which depends on that request alone: neither decoupled nor a sequence model.
    return bool(config.get("model_transaction_policy", {}).get("decoupled")) or "sequence_batching" in config


def _token_inputs(inputs: list[dict[str, Any]]) -> TokenInputs | None:
    found = {each["name"] for each in inputs if _is(each, "TYPE_INT64", -1)}
    return TokenInputs(_IDS, _MASK) if found >= {_IDS, _MASK} and len(inputs) == 3 else None
