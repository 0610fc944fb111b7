"""JSON inference requests: what the frontend accepts, RapidJSON (Triton's parser) reads alike, whether it is large or not."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import rapidjson

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import InvalidRequest, NotSupported, PayloadTooLarge, UnparsableRequest
    from control_plane.core.infer_call import InferCall
    from control_plane.protocols.kserve.ensemble_json import read_given
    from control_plane.protocols.kserve.requests.infer_json import infer_request_steps

LARGE_BYTES = 300 * 1024
"""Beyond it the frontend outlines the JSON before it parses it."""


def check(data: bytes) -> None:
    """The first byte says whether, and where, the JSON ends and binary data begins."""
    mark, body = (data[0], data[1:]) if data else (0, b"")
    json_bytes = len(body) if mark < 128 else body.rfind(b"}") + 1
    length = None if mark < 128 else b"%d" % json_bytes
    call = read(body, length)
    text = body[:json_bytes]
    if mark % 8 == 0 and text[-1:] == b"}":
        compare_large(call, text, body[json_bytes:], length)
    if call is not None and json_bytes:
        compare_with_rapidjson(call, text)
        compare_tensors(call, body, json_bytes)


def compare_tensors(call: InferCall, body: bytes, json_bytes: int) -> None:
    """What the gateway reads of a request to a sharded model is what was checked, or it is refused."""
    try:
        given = read_given(body, json_bytes)
    except (InvalidRequest, UnparsableRequest, PayloadTooLarge, NotSupported) as exc:
        str(exc).encode()
        return
    assert tuple(raw.tensor for raw in given.inputs.values()) == call.inputs


def read(body: bytes, length: bytes | None) -> InferCall | None:
    """None when it is refused, with words that can be sent. Without the bytes of texts, of which in large JSON only a bound is known."""
    try:
        return replace(finish(infer_request_steps(body, length, model_name="m", model_version="")), text_bytes=0)
    except (InvalidRequest, UnparsableRequest, PayloadTooLarge) as exc:
        str(exc).encode()
        return None


def compare_large(call: InferCall | None, text: bytes, data: bytes, length: bytes | None) -> None:
    """White space in front of the last brace changes nothing of what it says, only how it is read."""
    large = text[:-1] + b" " * LARGE_BYTES + b"}"
    again = read(large + data, None if length is None else b"%d" % len(large))
    assert again == call or (call is None and may_be_none_of_its_data(text)), (call, again)


def may_be_none_of_its_data(text: bytes) -> bool:
    """Whether only what the outline passes over, and leaves to Triton, was wrong: nothing that is shorter than it keeps."""
    return len(text) > 1024


def compare_with_rapidjson(call: InferCall, text: bytes) -> None:
    text = text.removeprefix(b"\xef\xbb\xbf")
    strictly = json.loads(text, object_pairs_hook=without_repeats)
    try:
        fields = rapidjson.loads(text)
    except rapidjson.JSONDecodeError as exc:
        if "too big" not in str(exc):  # as 1e999 is: Triton refuses it then, which is well
            raise
        return
    assert are_alike(fields, strictly), (fields, strictly)
    assert fields.get("id", "") == call.request_id
    assert [(each["name"], each["datatype"], tuple(each["shape"])) for each in fields["inputs"]] == [
        (tensor.name, tensor.datatype, tensor.shape) for tensor in call.inputs
    ]


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a key occurs twice in what was accepted"
    return found


def are_alike(one: Any, other: Any) -> bool:
    """The same, but for the last digits of numbers, which the two round differently."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_alike(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, float) or isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300) or one != one
    return type(one) is type(other) and bool(one == other)


if __name__ == "__main__":
    fuzz(check)
