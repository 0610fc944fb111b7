"""Backend `text_encoder` from Triton's side, with a file that like an encoder is blind to what its mask hides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config_json, tensor
from tests.unit.python_backends.fake_triton import Request, TritonError, initialize_args, stub

TABLE = np.arange(150.0).reshape(50, 3)
INPUTS = [tensor(name, "TYPE_INT64", [-1], allow_ragged_batch=True) for name in ("INPUT_IDS", "ATTENTION_MASK")]
CONFIG = config_json(max_batch_size=64, input=INPUTS, output=[tensor("EMBEDDING", dims=[3])], dynamic_batching={})

TOKENS = st.tuples(st.integers(1, 3), st.integers(1, 6)).flatmap(
    lambda shape: st.lists(st.lists(st.integers(0, 49), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0])
)


@pytest.fixture
def version_directory(tmp_path: Path) -> Path:
    return tiny_onnx.save(tiny_onnx.bag_of_tokens(), tmp_path / "m" / "1" / "model.onnx").parent


@pytest.fixture
def backend(version_directory: Path) -> Iterator[Any]:
    with stub("text_encoder", version_directory) as backend:
        yield backend


@pytest.fixture
def encoder(backend: Any, version_directory: Path) -> Any:
    instance = backend()
    instance.initialize(initialize_args(version_directory, json.dumps(CONFIG)))
    return instance


def request(ids: list[list[int]], mask: list[list[int]] | None = None) -> Request:
    array = np.array(ids)
    return Request({"INPUT_IDS": array, "ATTENTION_MASK": np.ones_like(array) if mask is None else np.array(mask)}, ("EMBEDDING",))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(TOKENS, min_size=1, max_size=6))
def test_lengths_do_not_influence_each_other(encoder: Any, requests: list[list[list[int]]]) -> None:
    responses = encoder.execute([request(ids) for ids in requests])

    for ids, response in zip(requests, responses, strict=True):
        assert response.arrays()["EMBEDDING"].tolist() == TABLE[np.array(ids)].sum(axis=1).tolist()


def test_waiting_requests_of_similar_length_are_one_run(encoder: Any) -> None:
    requests = [request([[1] * length]) for length in (5, 8, 6, 100)]

    encoder.execute(requests)

    # A later run is preceded by the question who is still there.
    assert [request.cancellation_checks for request in requests] == [0, 0, 0, 1]


def test_a_requests_own_mask_is_kept(encoder: Any) -> None:
    responses = encoder.execute([request([[1, 2, 9], [3, 4, 5]], [[1, 1, 0], [1, 1, 1]]), request([[6, 7, 8, 9]])])

    assert responses[0].arrays()["EMBEDDING"].tolist() == [TABLE[[1, 2]].sum(axis=0).tolist(), TABLE[[3, 4, 5]].sum(axis=0).tolist()]


def test_a_wrong_request_is_answered_and_its_neighbours_too(encoder: Any) -> None:
    good, out_of_vocabulary, uneven = encoder.execute([request([[1, 2]]), request([[1, 50]]), request([[1, 2]], [[1, 1, 1]])])

    assert good.arrays()["EMBEDDING"].tolist() == [TABLE[[1, 2]].sum(axis=0).tolist()]
    assert "indices element out of data bounds" in out_of_vocabulary.error.message
    assert out_of_vocabulary.error.code == TritonError.INVALID_ARG
    assert "must all have one shape" in uneven.error.message


def test_names_and_dimensions_are_the_configurations_and_checked_against_the_file(backend: Any, version_directory: Path) -> None:
    wrong = {**CONFIG, "output": [tensor("EMBEDDING", dims=[384])]}

    with pytest.raises(
        ConfigError, match=r"output 'EMBEDDING': the configuration says the shape \[-1, 384\] .* the ONNX file has \[-1, 3\]"
    ):
        backend().initialize(initialize_args(version_directory, json.dumps(wrong)))
