"""The canonical forms of requests that cache keys are made of."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.cache.keys import canonical_json, canonical_message
from control_plane.core.errors import InvalidRequest


class TestRequestJson:
    @pytest.mark.parametrize("other", ["", "8", 'a"b', "é"])
    def test_ids_make_no_difference(self, other: str) -> None:
        def text(request_id: str) -> bytes:
            return json.dumps({"id": request_id, "inputs": [{"name": "X"}]}, ensure_ascii=False).encode()

        assert canonical_json(text("7"), "7") == canonical_json(text(other), other)

    @pytest.mark.parametrize(
        ("text", "request_id"),
        [
            pytest.param(b'{"parameters":{"id":"7"}}', "", id="a parameter of that name"),
            pytest.param(b'{"id":"7","parameters":{"id":"8"}}', "7", id="both"),
            pytest.param(b'{"\\u0069d":"7","parameters":{"id":"8"}}', "7", id="written otherwise, beside a parameter"),
            pytest.param(b'{"id":"7","inputs":[{"name":"id"}]}', "7", id="an input of that name"),
            pytest.param(b'{"inputs":[{"name":"id"}]}', "", id="only an input of that name"),
        ],
    )
    def test_what_may_mean_something_else_is_left(self, text: bytes, request_id: str) -> None:
        assert canonical_json(text, request_id) == text

    def test_data_that_looks_like_an_id_is_left(self) -> None:
        text = json.dumps({"id": "7", "inputs": [{"data": ['"id":"9"']}]}).encode()
        assert json.loads(canonical_json(text, "7")) == {"id": "", "inputs": [{"data": ['"id":"9"']}]}

    @given(st.text(min_size=1), st.lists(st.text()))
    def test_only_the_id_changes(self, request_id: str, data: list[str]) -> None:
        fields = {"id": request_id, "inputs": data}
        bare = json.loads(canonical_json(json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass"), request_id))
        assert bare["inputs"] == data
        assert bare["id"] in ("", request_id)


def request(request_id: str, *, data: bytes = b"abc") -> bytes:
    message = service_pb2.ModelInferRequest(model_name="m", model_version="1", id=request_id, raw_input_contents=[data])
    return bytes(message.SerializeToString())


class TestRequestMessage:
    def test_a_request_without_what_its_key_has_otherwise(self) -> None:
        bare = service_pb2.ModelInferRequest.FromString(canonical_message(request("7")))
        assert (bare.id, bare.model_name, bare.model_version, bare.raw_input_contents) == ("", "", "", [b"abc"])
        assert canonical_message(request("7")) == canonical_message(request(""))
        assert canonical_message(request("7")) != canonical_message(request("7", data=b"abd"))

    def test_a_message_that_is_none(self) -> None:
        with pytest.raises(InvalidRequest):
            canonical_message(b"\x0a\xff")
