"""Texts and tokens side by side: a text is what its tokens are, and one that is wrong costs the others nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from python_backends.runtime.errors import BackendError, ConfigError, RequestError
from python_backends.runtime.execution import InferenceRequest, Tensors
from python_backends.text_encoder.inputs import Request, TokenInputs
from tests.unit.python_backends.configs import config, parameters, tensor
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import CAT, CLS, SAT, SEP, THE, save_tokenizer

TEXT = tensor("TEXT", "TYPE_STRING", [1], optional=True)
TOKENS = [tensor(name, "TYPE_INT64", [-1], optional=True) for name in ("INPUT_IDS", "ATTENTION_MASK")]


@pytest.fixture
def inputs(tmp_path: Path) -> TokenInputs:
    save_tokenizer(tmp_path / "tokenizer" / "tokenizer.json")
    (tmp_path / "1").mkdir()
    where = parameters(tokenizer="../tokenizer/tokenizer.json")
    return TokenInputs(tmp_path / "1", config(max_batch_size=8, input=[TEXT, *TOKENS], parameters=where))


def text(*values: bytes) -> Tensors:
    return {"TEXT": np.array([[value] for value in values], dtype=np.object_)}


def tokens(*rows: list[int]) -> Tensors:
    ids = np.array(rows, dtype=np.int64)
    return {"INPUT_IDS": ids, "ATTENTION_MASK": np.ones_like(ids)}


def request(inputs: Tensors) -> InferenceRequest:
    return InferenceRequest(inputs, ("EMBEDDING",), lambda: False)


def ids(answer: Request) -> list[list[int]]:
    assert isinstance(answer, InferenceRequest), answer
    assert answer.inputs.keys() == {"INPUT_IDS", "ATTENTION_MASK"}
    return answer.inputs["INPUT_IDS"].tolist()  # type: ignore[no-any-return]


def test_texts_become_tokens_and_tokens_stay_as_they_are(inputs: TokenInputs) -> None:
    asked = [request(text(b"the cat", b"sat")), request(tokens([CLS, SAT, SEP])), request(text(b"cat"))]

    first, second, third = inputs.tokenized(asked)

    assert ids(first) == [[CLS, THE, CAT, SEP], [CLS, SAT, SEP, 0]]
    assert second is asked[1]
    assert ids(third) == [[CLS, CAT, SEP]]


def test_a_text_that_is_not_utf8_is_refused_and_the_others_are_not(inputs: TokenInputs) -> None:
    refused = RequestError("refused before")

    wrong, right, before = inputs.tokenized([request(text(b"\xff")), request(text(b"cat")), refused])

    assert isinstance(wrong, RequestError)
    assert "UTF-8" in str(wrong)
    assert ids(right) == [[CLS, CAT, SEP]]
    assert before is refused


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({**text(b"cat"), **tokens([CLS, SEP])}, id="both"),
        pytest.param({"INPUT_IDS": np.zeros((1, 2), dtype=np.int64)}, id="no-mask"),
        pytest.param({}, id="nothing"),
    ],
)
def test_a_request_brings_texts_or_tokens(inputs: TokenInputs, given: Tensors) -> None:
    with pytest.raises(RequestError, match="give TEXT, or INPUT_IDS and ATTENTION_MASK; this request has"):
        inputs.check(given)


def test_tokens_are_checked_as_without_texts(inputs: TokenInputs) -> None:
    assert inputs.check(text(b"cat")).keys() == {"TEXT"}
    assert inputs.check(tokens([CLS, SEP])).keys() == {"INPUT_IDS", "ATTENTION_MASK"}
    with pytest.raises(RequestError, match="one shape"):
        inputs.check({**tokens([CLS, SEP]), "ATTENTION_MASK": np.ones((1, 3), dtype=np.int64)})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param([CLS, -1], r"from 0 to \d+; this request has -1", id="negative"),
        pytest.param([CLS, 10**9], r"from 0 to \d+; this request has 1000000000", id="beyond-the-vocabulary"),
        pytest.param([CLS] * 257, "257 tokens a row; the model takes at most 256", id="longer-than-texts-are"),
    ],
)
def test_tokens_are_of_the_vocabulary_and_no_more_than_of_a_text(inputs: TokenInputs, row: list[int], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        inputs.check(tokens(row))


def test_all_of_the_vocabulary_and_as_many_as_a_text_has_pass(inputs: TokenInputs) -> None:
    assert inputs.check(tokens([CLS] * 256))["INPUT_IDS"].shape == (1, 256)
    with pytest.raises(RequestError) as caught:
        inputs.check(tokens([10**9]))
    last = int(str(caught.value).split(" to ")[1].split(";")[0])
    assert inputs.check(tokens([0, last]))["INPUT_IDS"].tolist() == [[0, last]]


def test_the_models_file_is_asked_for_tokens_that_may_not_be_missing(inputs: TokenInputs) -> None:
    assert [(one.name, one.optional) for one in inputs.config.inputs] == [("INPUT_IDS", False), ("ATTENTION_MASK", False)]


def test_without_a_text_input_nothing_is_opened_and_nothing_changes(tmp_path: Path) -> None:
    plain = config(max_batch_size=8, input=TOKENS)
    inputs = TokenInputs(tmp_path, plain)
    asked: list[Request] = [request(tokens([CLS, SEP])), RequestError("refused before")]

    assert inputs.config is plain
    assert inputs.tokenized(asked) == asked
    with pytest.raises(BackendError):
        inputs.check({"INPUT_IDS": np.zeros((1, 2)), "ATTENTION_MASK": np.zeros((1, 3))})


@pytest.mark.parametrize(
    ("where", "words"),
    [
        pytest.param({}, "input 'TEXT' needs the parameter 'tokenizer'", id="not-said"),
        pytest.param({"tokenizer": "../elsewhere.json"}, "unable to find .*elsewhere.json", id="not-there"),
    ],
)
def test_a_tokenizer_that_cannot_be_opened_is_told(tmp_path: Path, where: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TokenInputs(tmp_path, config(max_batch_size=8, input=[TEXT, *TOKENS], parameters=parameters(**where)))
