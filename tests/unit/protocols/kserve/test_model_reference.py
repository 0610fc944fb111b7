from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from control_plane.core.errors import InvalidRequest
from control_plane.core.model import MODEL_NAME, MODEL_VERSION
from control_plane.protocols.kserve.model_reference import ADMINISTERED_MODEL_FIELDS, model_in, with_model

NAMES = st.from_regex(MODEL_NAME, fullmatch=True) | st.just("")
VERSIONS = st.from_regex(MODEL_VERSION, fullmatch=True) | st.just("")


@given(NAMES, VERSIONS, st.binary(max_size=50))
def test_an_inference_goes_elsewhere_and_nothing_else_of_it_changes(name: str, version: str, content: bytes) -> None:
    request = service_pb2.ModelInferRequest(model_name="before", model_version="7", id="i", raw_input_contents=[content])
    request.inputs.add(name="X", datatype="UINT8", shape=[len(content)])

    aimed = service_pb2.ModelInferRequest.FromString(with_model(request.SerializeToString(), name, version))

    request.model_name, request.model_version = name, version
    assert aimed == request


@pytest.mark.parametrize(
    "kind",
    [service_pb2.ModelReadyRequest, service_pb2.ModelMetadataRequest, service_pb2.ModelConfigRequest, service_pb2.ModelStatisticsRequest],
)
def test_every_request_about_one_model_names_it_in_the_same_place(kind: type) -> None:
    message = kind(name="m", version="2").SerializeToString()

    assert model_in(message) == ("m", "2")
    assert kind.FromString(with_model(message, "real", "")) == kind(name="real", version="")


@given(NAMES, VERSIONS)
def test_what_is_aimed_is_read_again(name: str, version: str) -> None:
    assert model_in(memoryview(with_model(b"", name, version))) == (name, version)


def test_a_tag_beyond_32_bits_is_refused() -> None:
    # C++ parsers cut it off to field 1, and would read "secret".
    with pytest.raises(InvalidRequest, match="too large"):
        model_in(b"\x0a\x01a\x8a\x80\x80\x80\x10\x06secret")


@pytest.mark.parametrize(("name", "version"), [("probe\0_public", ""), ("m", "1abc"), ("m", " 1")])
def test_what_no_model_can_be_called_is_refused(name: str, version: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a model's"):
        model_in(with_model(b"", name, version))


@pytest.mark.parametrize(
    "kind", [service_pb2.RepositoryModelLoadRequest, service_pb2.RepositoryModelUnloadRequest, service_pb2.TraceSettingRequest]
)
def test_requests_that_administer_name_it_elsewhere(kind: type) -> None:
    assert model_in(kind(model_name="m").SerializeToString(), ADMINISTERED_MODEL_FIELDS) == ("m", "")


@pytest.mark.parametrize("message", [b"\x0a\x05ab", b"\x0a\x01\xff", b"\x0f"], ids=["cut off", "not UTF-8", "no such kind of field"])
def test_what_cannot_be_read_is_refused(message: bytes) -> None:
    with pytest.raises(InvalidRequest):
        model_in(message)
