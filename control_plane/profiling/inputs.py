"""Makes inference requests for a model of which only the metadata is known, each with other contents; as JSON, and as gRPC's
message. Pure."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from math import prod
from typing import Any

from control_plane.core.errors import InvalidRequest
from control_plane.core.tensor import RawTensor, Tensor
from control_plane.protocols.kserve.ensemble_proto import part_request
from control_plane.protocols.kserve.tensors.raw_data import raw_of_elements

_TEXT = "the tide waits for no one, not for number {number:d}"
_NUMBERS = 10**9
_MOST_ELEMENTS = 2**20
"""Most elements of one made-up tensor."""
_PROMPT = "text_input"
TOKENS = "num_output_tokens"
"""Output of generative models that count: the tokens of a response."""
_TOKENS = 32
_OF_JSON = "binary_data_output"
"""Parameter of a request that says how its answer's JSON is written."""
_MOST_INTEGER = 100
"""Integers are small: they may be ids of tokens or classes."""


def request_for(metadata: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return the JSON of one request to a model; dimensions that are open are 1, texts and numbers are made up.

    Raises InvalidRequest: its inputs cannot be made up.
    """
    return {"inputs": [_tensor(each, draw) for each in metadata.get("inputs", [])]}


def generation_for(metadata: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """Return the JSON of one request to a decoupled model. One with the interface of Triton's vLLM backend, whose inputs are mostly
    optional, is asked for a text of `_TOKENS` tokens one by one. Raises InvalidRequest: its inputs cannot be made up.
    """
    inputs = metadata.get("inputs", [])
    if not any(each["name"] == _PROMPT for each in inputs):
        return request_for(metadata, draw)
    wanted: dict[str, object] = {
        _PROMPT: _TEXT.format(number=draw.randrange(_NUMBERS)),
        "stream": True,
        "exclude_input_in_output": True,
        "sampling_parameters": json.dumps({"max_tokens": _TOKENS, "ignore_eos": True}),
        f"return_{TOKENS}": True,
    }
    known = [each for each in inputs if each["name"] in wanted]
    return {
        "inputs": [{"name": each["name"], "shape": [1], "datatype": each["datatype"], "data": [wanted[each["name"]]]} for each in known]
    }


def generate_body(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request in JSON as Triton's generate extension has it. Raises InvalidRequest."""
    try:
        inputs = {each["name"]: each["data"][0] if each["shape"] == [1] else each["data"] for each in request["inputs"]}
    except (KeyError, IndexError, TypeError) as exc:
        raise InvalidRequest(f"the request cannot be streamed: an input has no {exc}, or another type there than it should") from exc
    return inputs | ({"parameters": request["parameters"]} if request.get("parameters") else {})


def message_of(model: str, request: Mapping[str, Any]) -> bytes:
    """Return a request in JSON as the ModelInferRequest that Triton's clients write: its tensors in `raw_input_contents`.

    Raises InvalidRequest: it is no request, or its tensors cannot be read.
    """
    try:
        inputs = {each["name"]: _raw(each) for each in request["inputs"]}
        outputs = [each["name"] for each in request.get("outputs", [])]
        parameters = {name: value for name, value in request.get("parameters", {}).items() if name != _OF_JSON}
        return b"".join(part_request(model, "", inputs, outputs, parameters))
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise InvalidRequest(f"the request cannot be sent over gRPC: it has no {exc}, or another type there than it should") from exc


def _raw(tensor: Mapping[str, Any]) -> RawTensor:
    name, datatype = tensor["name"], tensor["datatype"]
    data = raw_of_elements(name, datatype, tensor["data"])
    return RawTensor(Tensor(name, datatype, tuple(tensor["shape"])), data)


def _tensor(spec: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    name, datatype = spec["name"], spec["datatype"]
    shape = [max(1, int(each)) for each in spec["shape"]]
    count = prod(shape)
    if count > _MOST_ELEMENTS:
        raise InvalidRequest(f"input {name!r} has {count} elements; give a request of your own with --data FILE")
    if datatype == "BYTES":
        data: list[object] = [_TEXT.format(number=draw.randrange(_NUMBERS)) for _ in range(count)]
    elif datatype == "BOOL":
        data = [draw.random() < 0.5 for _ in range(count)]
    elif datatype.startswith("FP"):
        data = [round(draw.random(), 6) for _ in range(count)]
    elif datatype.startswith(("INT", "UINT")):
        data = [draw.randrange(_MOST_INTEGER) for _ in range(count)]
    else:  # FP16 begins like the others, and Triton says itself that it takes none in JSON
        raise InvalidRequest(f"input {name!r} is {datatype}, which JSON cannot carry; give a request of your own with --data FILE")
    return {"name": name, "shape": shape, "datatype": datatype, "data": data}
