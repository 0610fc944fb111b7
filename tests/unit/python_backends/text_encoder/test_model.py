"""Backend `text_encoder` from Triton's side, with a file that like an encoder is blind to what its mask
hides.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backends.runtime.errors import ConfigError
from tests.unit.python_backends import tiny_onnx
from tests.unit.python_backends.configs import config_json, parameters, tensor
from tests.unit.python_backends.fake_triton import InferenceResponse, Logger, MetricFamily, Request, TritonError, initialize_args, stub
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import CAT, CLS, SEP, THE, save_tokenizer

TABLE = np.arange(150.0).reshape(50, 3)
INPUTS = [tensor(name, "TYPE_INT64", [-1], allow_ragged_batch=True) for name in ("INPUT_IDS", "ATTENTION_MASK")]
COUNTED = [tensor("EMBEDDING", dims=[3]), tensor("TOKENS", "TYPE_INT32", [1])]
PATIENCE_S = 60.0
"""A process of low priority starts, which on a busy machine takes long."""
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
def load(backend: Any, version_directory: Path) -> Iterator[Callable[..., Any]]:
    """A loaded instance, with `changes` to its configuration; finalized at the end, where no thread may be
    left.
    """
    before, loaded = threading.active_count(), []

    def load_one(**changes: Any) -> Any:
        instance = backend()
        instance.initialize(initialize_args(version_directory, json.dumps({**CONFIG, **changes})))
        loaded.append(instance)
        return instance

    yield load_one
    for instance in loaded:
        instance.finalize()
    assert threading.active_count() == before


@pytest.fixture
def encoder(load: Callable[..., Any]) -> Any:
    return load()


def request(ids: list[list[int]], mask: list[list[int]] | None = None, **more: Any) -> Request:
    array = np.array(ids)
    inputs = {"INPUT_IDS": array, "ATTENTION_MASK": np.ones_like(array) if mask is None else np.array(mask)}
    return Request(inputs, ("EMBEDDING",), **more)


def answers(encoder: Any, requests: list[Request]) -> list[InferenceResponse]:
    """What becomes of each, at once or later."""
    responses = encoder.execute(requests)
    return [response or request.sender.sent.get(timeout=10) for request, response in zip(requests, responses, strict=True)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(requests=st.lists(TOKENS, min_size=1, max_size=6))
def test_lengths_do_not_influence_each_other(encoder: Any, requests: list[list[list[int]]]) -> None:
    responses = answers(encoder, [request(ids) for ids in requests])

    for ids, response in zip(requests, responses, strict=True):
        assert response.arrays()["EMBEDDING"].tolist() == TABLE[np.array(ids)].sum(axis=1).tolist()


def test_a_lone_short_request_is_answered_in_the_same_message_and_a_long_one_later(encoder: Any) -> None:
    short, long = request([[1, 2]]), request([[1] * 200])

    (response,), (nothing,) = encoder.execute([short]), encoder.execute([long])

    assert response.arrays()["EMBEDDING"].tolist() == [TABLE[[1, 2]].sum(axis=0).tolist()]
    assert nothing is None
    assert long.sender.sent.get(timeout=10).arrays()["EMBEDDING"].tolist() == [(200 * TABLE[1]).tolist()]
    assert (long.sender.final, short.sender.final) == (True, False)
    assert [short.cancellation_checks, long.cancellation_checks] == [0, 0]


def test_a_requests_own_mask_is_kept(encoder: Any) -> None:
    responses = answers(encoder, [request([[1, 2, 9], [3, 4, 5]], [[1, 1, 0], [1, 1, 1]]), request([[6, 7, 8, 9]])])

    assert responses[0].arrays()["EMBEDDING"].tolist() == [TABLE[[1, 2]].sum(axis=0).tolist(), TABLE[[3, 4, 5]].sum(axis=0).tolist()]


@pytest.mark.parametrize("given", [pytest.param("{}", id="at-once"), pytest.param('{"tidegate-background":"1"}', id="background")])
def test_rows_of_one_request_that_differ_in_length_are_answered_together(load: Callable[..., Any], given: str) -> None:
    encoder = load(output=COUNTED, parameters=parameters(background="true"))
    lengths = [3, 200, 2, 100]
    mask = np.array([[position < length for position in range(200)] for length in lengths], np.int64)
    uneven = Request({"INPUT_IDS": np.full_like(mask, 7), "ATTENTION_MASK": mask}, ("EMBEDDING", "TOKENS"), given=given)

    (nothing,) = encoder.execute([uneven])

    assert nothing is None
    answer = uneven.sender.sent.get(timeout=PATIENCE_S).arrays()
    assert answer["TOKENS"].tolist() == [[length] for length in lengths]
    assert answer["EMBEDDING"].tolist() == [(length * TABLE[7]).tolist() for length in lengths]


@pytest.mark.parametrize("length", [pytest.param(2, id="at-once"), pytest.param(100, id="later")])
def test_a_wrong_request_is_answered_and_its_neighbours_too(encoder: Any, length: int) -> None:
    right, out_of_vocabulary = [1] * length, [50] * length
    requests = [request([right]), request([out_of_vocabulary]), request([right], [[1, 1, 1]]), request([right])]

    good, wrong, uneven, also_good = answers(encoder, requests)

    for response in (good, also_good):
        assert response.arrays()["EMBEDDING"].tolist() == [(length * TABLE[1]).tolist()]
    assert "indices element out of data bounds" in (wrong.error or pytest.fail("answered")).message
    assert wrong.error == TritonError(wrong.error.message, TritonError.INVALID_ARG)
    assert "must all have one shape" in (uneven.error or pytest.fail("answered")).message


def test_what_finds_no_room_is_refused_as_unavailable(load: Callable[..., Any]) -> None:
    encoder = load(parameters=parameters(max_waiting="2"))
    requests = [request([[1] * 100, [2] * 100]), request([[1] * 100])]

    first, second = answers(encoder, requests)

    assert first.arrays()["EMBEDDING"].shape == (2, 3)
    assert second.error == TritonError("2 rows are waiting already: try again later", TritonError.UNAVAILABLE)


def test_what_has_expired_in_the_queue_is_answered_as_by_triton_and_its_neighbour_is_computed(load: Callable[..., Any]) -> None:
    # No lane takes it within a microsecond.
    late, other = request([[1] * 100], timeout_microseconds=1), request([[2] * 100])

    expired, computed = answers(load(), [late, other])

    assert expired.error == TritonError("Request timeout expired", TritonError.UNAVAILABLE)
    assert computed.arrays()["EMBEDDING"].tolist() == [(100 * TABLE[2]).tolist()]


def test_of_a_request_that_is_divided_one_answer_tells_that_it_has_expired(load: Callable[..., Any]) -> None:
    mask = np.array([[position < length for position in range(200)] for length in (3, 200, 2, 100)], np.int64)
    uneven = Request({"INPUT_IDS": np.full_like(mask, 7), "ATTENTION_MASK": mask}, ("EMBEDDING",), timeout_microseconds=1)

    (answer,) = answers(load(), [uneven])

    assert (answer.error or pytest.fail("computed")).message == "Request timeout expired"
    assert uneven.sender.final


def test_finalizing_answers_what_waits_and_hands_over_the_counts(backend: Any, version_directory: Path) -> None:
    encoder = backend()
    encoder.initialize(initialize_args(version_directory, json.dumps(CONFIG)))
    requests = [request([[1] * length]) for length in (100, 150, 200)]
    encoder.execute(requests)

    encoder.finalize()

    assert all(request.sender.final for request in requests)
    labels = (("model", "m"), ("variant", ""), ("version", "1"))
    counted = {name.removeprefix("tidegate_batching_"): value for (name, its), value in MetricFamily.values.items() if its == labels}
    assert (counted["requests_total"], counted["rows_total"], counted["useful_tokens_total"]) == (3, 3, 450)
    assert counted["padded_tokens_total"] >= 450


def test_a_text_is_answered_as_its_tokens_are(load: Callable[..., Any], version_directory: Path) -> None:
    save_tokenizer(version_directory / "tokenizer.json")
    texts = [tensor("TEXT", "TYPE_STRING", [1], optional=True), *({**one, "optional": True} for one in INPUTS)]
    encoder = load(input=texts, parameters=parameters(tokenizer="tokenizer.json"))
    asked = [Request({"TEXT": np.array([[b"the cat"]], dtype=np.object_)}, ("EMBEDDING",)), request([[CLS, THE, CAT, SEP]])]

    text, tokens = answers(encoder, asked)

    assert (
        text.arrays()["EMBEDDING"].tolist() == tokens.arrays()["EMBEDDING"].tolist() == [TABLE[[CLS, THE, CAT, SEP]].sum(axis=0).tolist()]
    )


def test_a_request_without_a_text_is_refused_and_its_neighbours_are_answered(load: Callable[..., Any], version_directory: Path) -> None:
    save_tokenizer(version_directory / "tokenizer.json")
    texts = [tensor("TEXT", "TYPE_STRING", [1], optional=True), *({**one, "optional": True} for one in INPUTS)]
    encoder = load(input=texts, parameters=parameters(tokenizer="tokenizer.json"))
    none = Request({"TEXT": np.empty((0, 1), dtype=np.object_)}, ("EMBEDDING",))
    one = Request({"TEXT": np.array([[b"the cat"]], dtype=np.object_)}, ("EMBEDDING",))

    refused, answered = answers(encoder, [none, one])

    assert (refused.error or pytest.fail("answered")).code == TritonError.INVALID_ARG
    assert answered.arrays()["EMBEDDING"].tolist() == [TABLE[[CLS, THE, CAT, SEP]].sum(axis=0).tolist()]


@pytest.mark.parametrize("length", [pytest.param(3, id="at-once"), pytest.param(100, id="later")])
def test_tokens_are_counted_for_who_asks(load: Callable[..., Any], length: int) -> None:
    mask = [[1] * (length - 1) + [0]]
    asked = [request([[1] * length], mask) for _ in range(3)]
    asked[0].outputs, asked[1].outputs = ("EMBEDDING", "TOKENS"), ("TOKENS",)

    both, only, neither = (response.arrays() for response in answers(load(output=COUNTED), asked))

    assert both["TOKENS"].tolist() == only["TOKENS"].tolist() == [[length - 1]]
    assert both["EMBEDDING"].tolist() == neither["EMBEDDING"].tolist()
    assert [*both, *only, *neither] == ["EMBEDDING", "TOKENS", "TOKENS", "EMBEDDING"]


def test_who_asks_for_nothing_but_the_count_alone_is_answered(load: Callable[..., Any]) -> None:
    asked = request([[1, 2]])
    asked.outputs = ("TOKENS",)

    (response,) = answers(load(output=COUNTED), [asked])

    assert {name: array.tolist() for name, array in response.arrays().items()} == {"TOKENS": [[2]]}


def test_names_and_dimensions_are_the_configurations_and_checked_against_the_file(load: Callable[..., Any]) -> None:
    with pytest.raises(
        ConfigError, match=r"output 'EMBEDDING': the configuration says the shape \[-1, 384\] .* the model's file has \[-1, 3\]"
    ):
        load(output=[tensor("EMBEDDING", dims=[384])])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"parameters": parameters(lanes="0")}, "'lanes' must be at least 1, not 0", id="lanes"),
        pytest.param({"parameters": parameters(max_waiting="-1")}, "'max_waiting' must be at least 1, not -1", id="waiting"),
        pytest.param({"max_batch_size": 0}, "max_batch_size must be at least 1", id="no-batch"),
        pytest.param({"parameters": parameters(variant="int8")}, "variant 'int8' is not built", id="variant"),
        pytest.param(
            {"parameters": parameters(variant_mix="short")}, "parameter 'variant_mix': 'short' is not of the form ROWSxTOKENS", id="mix"
        ),
    ],
)
def test_a_configuration_that_cannot_be_served_says_why(load: Callable[..., Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(**changes)


def test_a_variants_manifest_brings_the_costs(load: Callable[..., Any], version_directory: Path) -> None:
    folder = version_directory / "fp32"
    folder.mkdir()
    (version_directory / "model.onnx").rename(folder / "model.onnx")
    # So cheap that even a page can be answered at once.
    costs = {"threads": 1, "batches": [1, 64], "lengths": [8, 256], "ms": [[1.0, 1.1], [1.2, 1.3]]}
    manifest = {"format_version": 3, "variant": "fp32", "runtime": "onnxruntime", "file": "model.onnx", "device": "cpu", "machine": {}}
    (folder / "manifest.json").write_text(json.dumps({**manifest, "latency_table": costs}))

    loaded = load()
    (page, sentence) = loaded.execute([request([[1] * 200]), request([[2]])])

    assert page.arrays()["EMBEDDING"].tolist() == [(200 * TABLE[1]).tolist()]
    assert sentence.arrays()["EMBEDDING"].tolist() == [TABLE[2].tolist()]
    assert any("serves fp32 (the fallback, " in line for line in Logger.lines)


def served() -> list[dict[str, str]]:
    """Return the variants that Triton's metrics report now."""
    return [dict(labels) for (name, labels), value in MetricFamily.values.items() if name == "tidegate_served_variant" and value > 1.7e9]


def test_what_is_served_and_why_is_told_while_it_is(backend: Any, version_directory: Path) -> None:
    encoder = backend()
    encoder.initialize(initialize_args(version_directory, json.dumps(CONFIG)))
    told = served()
    encoder.finalize()

    assert told == [{"model": "m", "version": "1", "variant": "", "reason": "model.onnx, there are no variants"}]
    assert served() == []


BACKGROUND = '{"tidegate-background":"1"}'


def test_what_yields_has_the_same_answer_and_holds_up_nobody(load: Callable[..., Any]) -> None:
    encoder = load(parameters=parameters(background="true"))
    yielding, own = request([[1, 2]], given=BACKGROUND), request([[1, 2]])

    nothing, response = encoder.execute([yielding, own])

    assert nothing is None, "computed in this thread it would hold up the next call"
    expected = [TABLE[[1, 2]].sum(axis=0).tolist()]
    assert response.arrays()["EMBEDDING"].tolist() == expected
    assert yielding.sender.sent.get(timeout=PATIENCE_S).arrays()["EMBEDDING"].tolist() == expected


def test_texts_that_yield_are_tokenized_in_the_background_and_what_is_no_text_is_refused_there(
    load: Callable[..., Any], version_directory: Path
) -> None:
    save_tokenizer(version_directory / "tokenizer.json")
    texts = [tensor("TEXT", "TYPE_STRING", [1], optional=True), *({**one, "optional": True} for one in INPUTS)]
    encoder = load(input=texts, parameters=parameters(tokenizer="tokenizer.json", background="true"))
    right, wrong = (
        Request({"TEXT": np.array([[text]], dtype=np.object_)}, ("EMBEDDING",), given=BACKGROUND) for text in (b"the cat", b"\xff")
    )

    assert encoder.execute([wrong, right]) == [None, None], "a long text's tokens would hold up the next call"

    assert right.sender.sent.get(timeout=PATIENCE_S).arrays()["EMBEDDING"].tolist() == [TABLE[[CLS, THE, CAT, SEP]].sum(axis=0).tolist()]
    error = wrong.sender.sent.get(timeout=PATIENCE_S).error
    assert (error or pytest.fail("answered")).code == TritonError.INVALID_ARG


def test_what_yields_has_a_queue_of_its_own_with_the_same_bound(load: Callable[..., Any]) -> None:
    encoder = load(parameters=parameters(background="true", max_waiting="2"))

    (response,) = encoder.execute([request([[1]] * 3, given=BACKGROUND)])

    assert (response.error or pytest.fail("answered")).code == TritonError.UNAVAILABLE


def test_a_model_without_the_parameter_computes_it_as_any_other(encoder: Any) -> None:
    (response,) = encoder.execute([request([[1, 2]], given=BACKGROUND)])
    assert response is not None
