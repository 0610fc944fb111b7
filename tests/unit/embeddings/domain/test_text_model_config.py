"""Which configurations are text-embedding models: the shipped ones, as Triton shows them, and near misses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from control_plane.core.errors import UpstreamFailed
from control_plane.embeddings.domain.text_model import TextModel, TokenInputs
from control_plane.embeddings.domain.text_model_config import read_text_model

PROJECT = Path(__file__).resolve().parents[4]
TEXT = {"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}
EMBEDDING = {"name": "EMBEDDING", "data_type": "TYPE_FP32", "dims": [384]}


def tensor(name: str, data_type: str, *dims: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": [*dims], **more}


def config(**changes: Any) -> bytes:
    return orjson.dumps({"name": "m", "max_batch_size": 8, "input": [TEXT], "output": [EMBEDDING], **changes})


def shipped(path: str) -> bytes:
    message = text_format.Parse((PROJECT / path).read_text(), model_config_pb2.ModelConfig())
    return json_format.MessageToJson(message, preserving_proto_field_name=True).encode()


TOKENS = TokenInputs("INPUT_IDS", "ATTENTION_MASK")


@pytest.mark.parametrize(
    ("path", "token_inputs"),
    [("ensembles/text_embedding/config.pbtxt", None), ("ensembles/text_embedding/configs/nvidia.pbtxt", None)]
    + [(f"model_repository/text_encoder/{name}.pbtxt", TOKENS) for name in ("config", "configs/gpu")],
)
def test_the_shipped_text_models_are_some(path: str, token_inputs: TokenInputs | None) -> None:
    found = read_text_model(shipped(path))

    assert found is not None
    assert found.max_batch_size >= 64
    assert found == TextModel("TEXT", "EMBEDDING", 384, tokens="TOKENS", token_inputs=token_inputs, max_batch_size=found.max_batch_size)


@pytest.mark.parametrize("path", ["model_repository/text_tokenizer/config.pbtxt", "model_repository/text_encoder/configs/nvidia.pbtxt"])
def test_the_other_shipped_models_are_none(path: str) -> None:
    assert read_text_model(shipped(path)) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, TextModel("TEXT", "EMBEDDING", 384, max_batch_size=8), id="no-count"),
        pytest.param({"max_batch_size": 0}, TextModel("TEXT", "EMBEDDING", 384), id="no-batch"),
        pytest.param({"output": [tensor("V", "TYPE_FP32", 3)]}, TextModel("TEXT", "V", 3, max_batch_size=8), id="other-names"),
        pytest.param(
            {"input": [TEXT, tensor("MODE", "TYPE_INT32", 1, optional=True)]},
            TextModel("TEXT", "EMBEDDING", 384, max_batch_size=8),
            id="an-option",
        ),
        pytest.param(
            {"output": [EMBEDDING, tensor("TOKENS", "TYPE_INT64", 1)]},
            TextModel("TEXT", "EMBEDDING", 384, max_batch_size=8),
            id="another-count",
        ),
        pytest.param(
            {"output": [EMBEDDING, tensor("TOKENS", "TYPE_INT32", 1)]},
            TextModel("TEXT", "EMBEDDING", 384, tokens="TOKENS", max_batch_size=8),
            id="a-count",
        ),
    ],
)
def test_what_else_is_one(changes: dict[str, Any], expected: TextModel) -> None:
    assert read_text_model(config(**changes)) == expected


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"input": [TEXT, tensor("MODE", "TYPE_INT32", 1)]}, id="needs-more"),
        pytest.param({"input": [TEXT, tensor("TITLE", "TYPE_STRING", 1, optional=True)]}, id="two-texts"),
        pytest.param({"input": [tensor("TEXT", "TYPE_STRING", -1)]}, id="many-texts-to-a-row"),
        pytest.param({"input": [tensor("IMAGE", "TYPE_FP32", 3)]}, id="no-text"),
        pytest.param({"output": [EMBEDDING, tensor("SCORE", "TYPE_FP32", 1)]}, id="two-answers"),
        pytest.param({"output": [tensor("EMBEDDING", "TYPE_FP32", -1, 384)]}, id="one-per-token"),
        pytest.param({"output": [tensor("EMBEDDING", "TYPE_FP32", -1)]}, id="any-width"),
        pytest.param({"output": [tensor("LABEL", "TYPE_STRING", 1)]}, id="answers-with-text"),
        pytest.param({"model_transaction_policy": {"decoupled": True}}, id="decoupled"),
        pytest.param({"sequence_batching": {}}, id="sequences"),
    ],
)
def test_what_comes_close_is_none(changes: dict[str, Any]) -> None:
    assert read_text_model(config(**changes)) is None


@pytest.mark.parametrize("said", [b"", b"[]", b"{}", *(b'{"input":%b,"output":[]}' % wrong for wrong in (b"1", b"[{}]", b"[1]"))])
def test_what_is_no_configuration_is_said(said: bytes) -> None:
    with pytest.raises(UpstreamFailed, match="is not a model's configuration"):
        read_text_model(said)
