"""Requests that are made up for a model."""

from __future__ import annotations

import json
import random
import struct
from typing import Any, ClassVar

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.profiling.inputs import generate_body, generation_for, message_of, request_for
from control_plane.protocols.kserve.messages import service_pb2

DRAW = random.Random(1)


def metadata(datatype: str, *shape: int) -> dict[str, Any]:
    return {"name": "m", "inputs": [{"name": "X", "datatype": datatype, "shape": list(shape)}]}


@pytest.mark.parametrize(
    ("datatype", "is_one"),
    [
        ("FP32", lambda value: isinstance(value, float) and 0 <= value <= 1),
        ("INT64", lambda value: isinstance(value, int) and 0 <= value < 100),
        ("UINT8", lambda value: isinstance(value, int) and 0 <= value < 100),
        ("BOOL", lambda value: isinstance(value, bool)),
        ("BYTES", lambda value: isinstance(value, str)),
    ],
)
def test_tensors_have_their_type_and_open_dimensions_are_one(datatype: str, is_one: Any) -> None:
    (tensor,) = request_for(metadata(datatype, -1, 3), DRAW)["inputs"]
    assert (tensor["name"], tensor["datatype"], tensor["shape"]) == ("X", datatype, [1, 3])
    assert len(tensor["data"]) == 3
    assert all(map(is_one, tensor["data"]))


def test_texts_differ_so_that_no_cache_answers() -> None:
    assert len({json.dumps(request_for(metadata("BYTES", 1), DRAW)) for _ in range(100)}) == 100


def test_what_json_cannot_carry_is_told() -> None:
    with pytest.raises(InvalidRequest, match=r"'X' is BF16.*--data"):
        request_for(metadata("BF16", 1), DRAW)


def test_a_huge_tensor_is_not_made_up() -> None:
    with pytest.raises(InvalidRequest, match=r"'X' has 1073741824 elements.*--data"):
        request_for(metadata("FP32", 2**30), DRAW)


class TestMessages:
    def test_a_request_becomes_the_message_that_tritons_clients_write(self) -> None:
        numbers = {"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, 2.0]]}
        texts = {"name": "T", "shape": [2], "datatype": "BYTES", "data": ["ab", "c"]}
        said = {"inputs": [numbers, texts], "outputs": [{"name": "Y"}], "parameters": {"sequence_id": 7, "binary_data_output": True}}
        message = service_pb2.ModelInferRequest.FromString(message_of("m", said))
        assert [(each.name, each.datatype, list(each.shape)) for each in message.inputs] == [("X", "FP32", [1, 2]), ("T", "BYTES", [2])]
        assert list(message.raw_input_contents) == [struct.pack("<2f", 0.5, 2.0), b"\2\0\0\0ab\1\0\0\0c"]
        assert (message.model_name, [each.name for each in message.outputs]) == ("m", ["Y"])
        assert {name: each.int64_param for name, each in message.parameters.items()} == {"sequence_id": 7}

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param({"inputs": [{"name": "X"}]}, id="no datatype"),
            pytest.param({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1]}]}, id="no data"),
            pytest.param({"inputs": [{"name": "X", "datatype": "FP32", "shape": ["one"], "data": [1]}]}, id="no shape"),
            pytest.param({"inputs": [3]}, id="no tensor"),
            pytest.param({"inputs": [], "parameters": []}, id="no parameters"),
            pytest.param({"inputs": [], "outputs": ["Y"]}, id="no output"),
        ],
    )
    def test_what_is_none_is_told(self, said: Any) -> None:
        with pytest.raises(InvalidRequest, match="cannot be sent over gRPC"):
            message_of("m", said)


class TestStreams:
    VLLM: ClassVar[dict[str, Any]] = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1]},
            {"name": "stream", "datatype": "BOOL", "shape": [1]},
            {"name": "sampling_parameters", "datatype": "BYTES", "shape": [1]},
            {"name": "return_num_output_tokens", "datatype": "BOOL", "shape": [1]},
            {"name": "return_finish_reason", "datatype": "BOOL", "shape": [1]},
        ]
    }

    def test_a_generative_model_is_asked_for_tokens_one_by_one(self) -> None:
        body = generate_body(generation_for(self.VLLM, DRAW))
        assert body.pop("text_input").startswith("the tide")
        assert json.loads(body.pop("sampling_parameters")) == {"max_tokens": 32, "ignore_eos": True}
        assert body == {"stream": True, "return_num_output_tokens": True}

    def test_any_other_gets_all_inputs(self) -> None:
        assert [each["name"] for each in generation_for(metadata("INT32", 2), DRAW)["inputs"]] == ["X"]

    def test_the_generate_extension_has_single_elements_bare(self) -> None:
        one, two = {"name": "A", "shape": [1], "datatype": "INT32", "data": [7]}, {"name": "B", "shape": [2], "data": [1, 2]}
        assert generate_body({"inputs": [one, two], "parameters": {"p": 1}}) == {"A": 7, "B": [1, 2], "parameters": {"p": 1}}

    @pytest.mark.parametrize("tensor", [{}, {"name": "A"}, {"name": "A", "shape": [1], "data": []}, 3])
    def test_what_is_none_is_told(self, tensor: Any) -> None:
        with pytest.raises(InvalidRequest, match="cannot be streamed"):
            generate_body({"inputs": [tensor]})
