"""Codec between texts and Triton's tensors: requests, and answers as embeddings."""

from __future__ import annotations

from array import array
from dataclasses import replace
from struct import pack

import orjson
import pytest

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import (
    ControlPlaneError,
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText, infer_request, read_answer, read_embedded_text
from control_plane.embeddings.domain.text_model import TextModel, TokenInputs
from control_plane.protocols.header_forwarding import BACKGROUND_MARK
from control_plane.protocols.http1 import HttpAnswer, make_answer
from control_plane.protocols.kserve.requests.infer_json import infer_request_steps

MODEL = TextModel("TEXT", "EMBEDDING", 2, tokens="TOKENS", token_inputs=TokenInputs("INPUT_IDS", "ATTENTION_MASK"), max_batch_size=8)
UNCOUNTED = TextModel("PROMPT", "VECTOR", 2, max_batch_size=8)


def tokens(*ids: int) -> bytes:
    return array("q", ids).tobytes()


def answer(**outputs: bytes) -> HttpAnswer:
    """Build an answer as Triton sends it, outputs in the model's order."""
    described = [{"name": name, "parameters": {"binary_data_size": len(data)}} for name, data in outputs.items()]
    header = orjson.dumps({"model_name": "m", "outputs": described})
    return make_answer(200, header + b"".join(outputs.values()), headers=[(b"Inference-Header-Content-Length", b"%d" % len(header))])


def test_texts_are_a_request_that_the_frontend_itself_would_take() -> None:
    request = infer_request(MODEL, b"/v2/models/m/infer", [b"a text", "é".encode()], are_tokens=False)

    header_length = request.single_header(b"inference-header-content-length")
    call = finish(infer_request_steps(request.body, header_length, model_name="m", model_version=""))
    assert [(each.name, each.datatype, each.shape) for each in call.inputs] == [("TEXT", "BYTES", (2, 1))]
    assert (request.method, request.target, call.text_bytes) == (b"POST", b"/v2/models/m/infer", 8)
    header = orjson.loads(request.body[: int(request.header(b"inference-header-content-length") or 0)])
    assert [(each["name"], each["parameters"]) for each in header["outputs"]] == [
        ("EMBEDDING", {"binary_data": True}),
        ("TOKENS", {"binary_data": True}),
    ]


def test_tokens_are_padded_and_masked() -> None:
    request = infer_request(MODEL, b"/t", [tokens(5, 6, 7), tokens(8)], are_tokens=True)

    length = int(request.header(b"inference-header-content-length") or 0)
    header, data = orjson.loads(request.body[:length]), request.body[length:]
    assert [(each["name"], each["datatype"], each["shape"]) for each in header["inputs"]] == [
        ("INPUT_IDS", "INT64", [2, 3]),
        ("ATTENTION_MASK", "INT64", [2, 3]),
    ]
    assert data == tokens(5, 6, 7, 8, 0, 0) + tokens(1, 1, 1, 1, 0, 0)


def test_work_in_the_background_is_marked() -> None:
    fields = [
        infer_request(MODEL, b"/t", [b"a"], are_tokens=False, yields=yields).header(b"tidegate-background") for yields in (False, True)
    ]
    assert fields == [None, BACKGROUND_MARK[1]]


def test_a_model_without_a_batch_takes_one_text() -> None:
    request = infer_request(TextModel("TEXT", "EMBEDDING", 2), b"/t", [b"a"], are_tokens=False)

    assert b'"shape":[1],' in request.body


def test_a_model_without_a_batch_takes_the_tokens_of_one_text() -> None:
    request = infer_request(replace(MODEL, max_batch_size=0), b"/t", [tokens(5, 6, 7)], are_tokens=True)

    assert request.body.count(b'"shape":[3],') == 2


@pytest.mark.parametrize("first", ["TOKENS", "EMBEDDING"])
def test_an_answer_is_read_by_names(first: str) -> None:
    values, counts = array("f", [1, 2, 3, 4]).tobytes(), pack("<2i", 7, 9)
    outputs = {"TOKENS": counts, "EMBEDDING": values}

    found = read_answer(MODEL, answer(**{first: outputs.pop(first), **outputs}), 2)

    assert found == [(values[:8], 7), (values[8:], 9)]


def test_a_model_that_does_not_count_says_nothing_of_tokens() -> None:
    assert read_answer(UNCOUNTED, answer(VECTOR=array("f", [1, 2]).tobytes()), 1) == [(array("f", [1, 2]).tobytes(), None)]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(answer(EMBEDDING=bytes(8)), id="no-count"),
        pytest.param(answer(TOKENS=bytes(4)), id="no-embedding"),
        pytest.param(answer(EMBEDDING=bytes(16), TOKENS=bytes(4)), id="too-many-numbers"),
        pytest.param(answer(EMBEDDING=bytes(8), TOKENS=bytes(8)), id="too-many-counts"),
        pytest.param(make_answer(200, b"{}"), id="nothing"),
        pytest.param(make_answer(200, b"[1]"), id="no-object"),
        pytest.param(make_answer(200, b'{"outputs":[{"name":"EMBEDDING","data":[1,2]}]}'), id="no-binary-data"),
        pytest.param(make_answer(200, b"no json"), id="no-json"),
    ],
)
def test_what_is_not_what_was_asked_for_is_a_failure_of_the_model(said: HttpAnswer) -> None:
    with pytest.raises(UpstreamFailed, match="is not 1 embeddings of 2 numbers"):
        read_answer(MODEL, said, 1)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, InvalidRequest), (404, ModelNotFound), (503, UpstreamUnavailable), (504, DeadlineExceeded), (500, UpstreamFailed)],
)
def test_tritons_own_words_reach_the_caller(status: int, error: type[ControlPlaneError]) -> None:
    with pytest.raises(error, match="no such token"):
        read_answer(MODEL, make_answer(status, b'{"error":"no such token"}'), 1)


def test_an_error_without_words_has_its_status() -> None:
    with pytest.raises(UpstreamFailed, match="status 501"):
        read_answer(MODEL, make_answer(501, b"<html>"), 1)


def test_what_is_kept_is_read_again_and_anything_else_is_not() -> None:
    row = EmbeddedText(bytes(range(8)), 300)

    assert read_embedded_text(row.to_bytes(), 2) == row
    assert read_embedded_text(row.to_bytes(), 3) is None
    assert read_embedded_text(b"", 2) is read_embedded_text(row.to_bytes()[:-1], 2) is None
