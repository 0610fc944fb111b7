from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.batching.batch_queue import Waiter
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import RequestError
from python_backends.runtime.execution import Answer, Array, InferenceRequest
from python_backends.text_encoder.division import Divided, divide
from python_backends.text_encoder.encoder import EncoderRequest

BATCH_MS = 5.0
COLUMNS = CostColumns(lambda rows, length: BATCH_MS + rows * length, max_rows=64)
"""Each batch costs something by itself, as on real machines."""


def tokens(lengths: Sequence[int], longest: int | None = None) -> InferenceRequest:
    """A request of rows of these lengths, whose first token is the row's number."""
    ids = np.zeros((len(lengths), longest or max(lengths)), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = 100 + row, 1
    return InferenceRequest({"INPUT_IDS": ids, "ATTENTION_MASK": mask}, ("SUM",), lambda: False)


def shapes(divided: Divided) -> list[tuple[int, int]]:
    return [(waiter.rows, waiter.length) for waiter in divided.waiters]


def compute(waiter: Waiter[EncoderRequest]) -> dict[str, Array]:
    inputs = waiter.request.plain.inputs
    return {"SUM": (inputs["INPUT_IDS"] * inputs["ATTENTION_MASK"]).sum(axis=1, keepdims=True)}


def answered(divided: Divided) -> list[Answer]:
    told = list[Answer]()
    divided.request.send = told.append
    return told


def test_sentences_beside_a_page_are_computed_as_sentences() -> None:
    assert shapes(divide(tokens([8, 200, 9, 8]), COLUMNS, 0.0)) == [(3, 9), (1, 200)]


@pytest.mark.parametrize("lengths", [pytest.param([8], id="one-row"), pytest.param([8, 9, 8], id="several")])
def test_what_its_client_has_padded_to_a_page_is_computed_as_sentences(lengths: list[int]) -> None:
    divided = divide(tokens(lengths, longest=256), COLUMNS, 0.0)
    told = answered(divided)

    (waiter,) = divided.waiters
    waiter.request.answer(compute(waiter))

    assert shapes(divided) == [(len(lengths), max(lengths))]
    assert [answer["SUM"].tolist() for answer in told if isinstance(answer, dict)] == [
        [[(100 + row) * length] for row, length in enumerate(lengths)]
    ]


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(tokens([8]), id="one-row"),
        pytest.param(tokens([20, 18, 19]), id="about-equal"),
        pytest.param(tokens([1, 3, 1, 3]), id="too-short-for-two-batches"),
        pytest.param(InferenceRequest({"IDS": np.ones((4, 100))}, (), lambda: False), id="no-mask"),
        pytest.param(InferenceRequest({"ATTENTION_MASK": np.zeros((4, 100), np.int64)}, (), lambda: False), id="nothing-shown"),
    ],
)
def test_what_dividing_does_not_make_cheaper_stays_whole(plain: InferenceRequest) -> None:
    divided = divide(plain, COLUMNS, 0.0)

    (waiter,) = divided.waiters
    assert waiter.request is divided.request
    assert waiter.request.plain is plain


@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=64), order=st.randoms(use_true_random=False))
def test_each_row_has_its_answer_whatever_part_is_answered_first(lengths: list[int], order: random.Random) -> None:
    plain = tokens(lengths, longest=70)
    divided = divide(plain, COLUMNS, 0.0)
    told, waiters = answered(divided), [*divided.waiters]
    assert sum(rows for rows, _ in shapes(divided)) == len(lengths)
    order.shuffle(waiters)
    for number, waiter in enumerate(waiters):
        assert len(told) == 0, number
        waiter.request.answer(compute(waiter))

    (answer,) = told
    assert isinstance(answer, dict)
    assert answer["SUM"].tolist() == [[(100 + row) * length] for row, length in enumerate(lengths)]


def test_a_part_that_fails_fails_the_request_once() -> None:
    divided = divide(tokens([8, 200, 9, 8]), COLUMNS, 0.0)
    told, (short, long) = answered(divided), divided.waiters
    error = RequestError("no such token")

    long.request.answer(error)
    assert told == []
    short.request.answer(compute(short))

    assert told == [error]


def test_ids_that_the_mask_hides_do_not_make_a_row_longer_and_gaps_stay() -> None:
    plain = tokens([4, 4, 100, 4])
    plain.inputs["INPUT_IDS"][0, 50] = 7
    plain.inputs["ATTENTION_MASK"][1, 1] = 0

    short, _ = divide(plain, COLUMNS, 0.0).waiters

    assert (short.rows, short.length) == (3, 4)
    assert short.request.plain.inputs["ATTENTION_MASK"][1].tolist() == [1, 0, 1, 1]
