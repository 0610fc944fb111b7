"""The output `TOKENS`: only on request, and never of the model's file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.execution import InferenceRequest
from python_backends.text_tokenizer.token_count import with_count, without_count
from tests.unit.python_backends.configs import config, tensor

INPUTS = [tensor(name, "TYPE_INT64", [-1]) for name in ("INPUT_IDS", "ATTENTION_MASK")]
EMBEDDING = tensor("EMBEDDING", dims=[3])
TOKENS = tensor("TOKENS", "TYPE_INT32", [1])
MASK = {"ATTENTION_MASK": np.array([[1, 1, 0], [1, 1, 1]], dtype=np.int64)}


def request(*outputs: str) -> InferenceRequest:
    return InferenceRequest({}, outputs, lambda: False)


def test_who_asks_is_told_what_the_mask_lets_through() -> None:
    answer = with_count({"EMBEDDING": np.zeros((2, 3))}, request("EMBEDDING", "TOKENS"), MASK)

    assert isinstance(answer, dict)
    assert [*answer] == ["EMBEDDING", "TOKENS"]
    assert (answer["TOKENS"].tolist(), answer["TOKENS"].dtype) == ([[2], [3]], np.int32)


def test_nothing_is_counted_for_who_does_not_ask_and_where_there_is_no_answer() -> None:
    answer, error = {"EMBEDDING": np.zeros((2, 3))}, RequestError("wrong")

    assert with_count(answer, request("EMBEDDING"), {}) is answer
    assert with_count(error, request("TOKENS"), {}) is error


def test_a_file_is_not_asked_for_it() -> None:
    counted = config(max_batch_size=8, input=INPUTS, output=[EMBEDDING, TOKENS])
    plain = config(max_batch_size=8, input=INPUTS, output=[EMBEDDING])

    assert without_count(counted) == plain
    assert without_count(plain) is plain


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"output": [tensor("TOKENS", "TYPE_INT64", [1])]}, "must be a TYPE_INT32 of dims", id="type"),
        pytest.param({"output": [tensor("TOKENS", "TYPE_INT32", [-1])]}, "must be a TYPE_INT32 of dims", id="dims"),
        pytest.param({"output": [TOKENS], "input": INPUTS[:1]}, "counted by the input 'ATTENTION_MASK'", id="no-mask"),
    ],
)
def test_a_configuration_that_cannot_be_counted_says_why(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        without_count(config(max_batch_size=8, **{"input": INPUTS, "output": [EMBEDDING], **changes}))
