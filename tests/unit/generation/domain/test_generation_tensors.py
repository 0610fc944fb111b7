"""Messages to and from generative models."""

from __future__ import annotations

import pytest

from control_plane.generation.domain.completion_request import CompletionRequest
from control_plane.generation.domain.generation_tensors import Generated, read_response, request_message
from control_plane.generation.domain.generative_model import GenerativeModel
from control_plane.protocols.kserve.messages import service_pb2
from tests.fakes.triton.generative_model import OPTIONAL, Asked, response


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_model_is_asked_for_what_it_can_tell(is_streamed: bool) -> None:
    wanted = CompletionRequest("route", 5, sampling={"max_tokens": 5}, is_streamed=is_streamed)
    model = GenerativeModel(frozenset(("text_input", "sampling_parameters", *OPTIONAL)))

    message = request_message(wanted, model, "é", name="m", version="2", request_id="cmpl-1")

    request = service_pb2.ModelInferRequest.FromString(message)
    assert (request.model_name, request.model_version, request.id) == ("m", "2", "cmpl-1")
    assert Asked.of(message) == Asked("é", {"max_tokens": 5}, {**dict.fromkeys(OPTIONAL, True), "stream": is_streamed})


def test_an_older_model_is_asked_for_no_more_than_it_knows() -> None:
    model = GenerativeModel(frozenset(("text_input", "sampling_parameters")))
    assert Asked.of(request_message(CompletionRequest("m", 5), model, "a", name="m", version="", request_id="1")) == Asked("a", {}, {})


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        pytest.param(response(" é", reason="None", read=7, written=1), Generated(" é", "", 7, 1), id="goes-on"),
        pytest.param(response("", reason="length", read=7, written=0), Generated("", "length", 7, 0), id="ends"),
        pytest.param(response("a"), Generated("a"), id="without-counts"),
        pytest.param(response(error="no"), Generated(error="no"), id="an-error"),
        pytest.param(b"", Generated(), id="nothing"),
    ],
)
def test_responses(message: bytes, expected: Generated) -> None:
    assert read_response(memoryview(message)) == expected


def test_text_that_is_cut_within_a_character_does_not_end_the_answer() -> None:
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    message.infer_response.raw_output_contents.append(b"\x02\x00\x00\x00a\xc3")
    message.infer_response.outputs.add(name="num_input_tokens", datatype="UINT32", shape=[1])
    message.infer_response.raw_output_contents.append(b"\x01")
    assert read_response(message.SerializeToString()) == Generated("a\N{REPLACEMENT CHARACTER}")
