"""Ids are found where they are sure to be, and nowhere else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.protocols.grpc import frame_message
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.per_request import PLAIN, id_in_json, id_in_message, per_request_fields


@given(request_id=st.text(min_size=1), is_compact=st.booleans())
def test_an_id_in_json_is_found_as_it_is_written(request_id: str, is_compact: bool) -> None:
    text = json.dumps({"id": request_id, "inputs": []}, separators=(",", ":") if is_compact else None, ensure_ascii=False).encode()
    span = id_in_json(text)
    is_plain = request_id.isascii() and request_id.isprintable() and not set(request_id) & set('"\\') and len(request_id) <= 128
    assert (span is not None) is is_plain
    if span is not None:
        assert text[slice(*span)].decode() == request_id


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b'{"inputs":[],"id":"a"}', b'{"id":""}', b'{"id":1}', b'["id","a"]', b'{"id":"a\\n"}', b'{"id":"a', b'{"ids":"a"}'],
)
def test_where_it_is_not_sure_to_be_the_id_none_is_found_in_json(text: bytes) -> None:
    assert id_in_json(text) is None


@given(name=st.text(), version=st.text(), request_id=st.text(), data=st.binary())
def test_an_id_in_a_message_is_found_as_it_is_written(name: str, version: str, request_id: str, data: bytes) -> None:
    request = service_pb2.ModelInferRequest(model_name=name, model_version=version, id=request_id, raw_input_contents=[data])
    frame = frame_message(request.SerializeToString())
    span = id_in_message(frame)
    is_plain = request_id.isascii() and 0 < len(request_id) < 128 and max(len(name.encode()), len(version.encode())) < 128
    assert (span is not None) is is_plain
    if span is not None:
        assert frame[slice(*span)].decode() == request_id


@given(frame=st.binary(max_size=40))
def test_no_bytes_are_too_odd_to_look_for_an_id(frame: bytes) -> None:
    span = id_in_message(frame)
    assert span is None or 0 < span[0] < span[1] <= len(frame)


def test_what_models_can_see_is_no_field_of_one_request() -> None:
    assert b"traceparent" in per_request_fields(NO_FORWARDING)
    assert per_request_fields(HeaderForwarding.of("^x-")) == {
        name: PLAIN for name in per_request_fields(NO_FORWARDING) if name[:2] != b"x-"
    }
    assert not per_request_fields(HeaderForwarding.of(".*"))


@pytest.mark.parametrize(
    ("value", "may_differ"),
    [
        pytest.param(f"00-{'a' * 32}-{'b' * 16}-01", False, id="sampled"),
        pytest.param(f" 00-{'a' * 32}-{'b' * 16}-03", False, id="sampled, with another flag"),
        pytest.param(f"01-{'a' * 32}-{'b' * 16}-0b-more", False, id="sampled, of a later version"),
        pytest.param(f"00-{'a' * 32}-{'b' * 16}-00", True, id="not sampled"),
        pytest.param(f"00-{'a' * 32}-{'b' * 16}-02", True, id="not sampled, with another flag"),
        pytest.param("00-x-y-01", True, id="not valid"),
        pytest.param("", True, id="empty"),
    ],
)
def test_a_sampled_request_is_of_its_own_where_it_is_traced(value: str, may_differ: bool) -> None:
    traced, plain = (per_request_fields(NO_FORWARDING, are_traced=each)[b"traceparent"] for each in (True, False))
    assert (traced.fullmatch(value.encode()) is not None) is may_differ
    assert plain.fullmatch(value.encode()) is not None


def test_a_traceparent_that_models_can_see_is_no_field_of_one_request_where_it_is_traced_either() -> None:
    assert b"traceparent" not in per_request_fields(HeaderForwarding.of("^trace"), are_traced=True)
