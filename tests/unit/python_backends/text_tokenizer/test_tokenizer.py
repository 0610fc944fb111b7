"""Tokenizing requests together and padding them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from python_backends.runtime.errors import BackendError, ConfigError, RequestError
from python_backends.runtime.execution import Answer
from python_backends.text_tokenizer.tokenizer import CHARS_PER_TOKEN, TextTokenizer, load_tokenizer
from tests.unit.python_backends.configs import config, parameters
from tests.unit.python_backends.text_tokenizer.tiny_tokenizer import CAT, CLS, SAT, SEP, THE, VOCABULARY, S, save_tokenizer

TEXTS = st.lists(st.sampled_from(["", "cat", "cats", "the cat sat", "unheard of"]), min_size=1, max_size=3)


def text(*values: str | bytes) -> np.ndarray:
    return np.array([[value.encode() if isinstance(value, str) else value] for value in values], dtype=np.object_)


def tokens(answer: Answer) -> tuple[list[list[int]], list[list[int]]]:
    assert not isinstance(answer, BackendError), answer
    assert all(array.dtype == np.int64 for array in answer.values())
    return answer["INPUT_IDS"].tolist(), answer["ATTENTION_MASK"].tolist()


@pytest.fixture
def version_directory(tmp_path: Path) -> Path:
    save_tokenizer(tmp_path / "tokenizer.json")
    return tmp_path


def tokenizer(version_directory: Path, **limits: Any) -> TextTokenizer:
    values = {key: str(value) for key, value in limits.items()}
    return load_tokenizer(version_directory, config(default_model_filename="", parameters=parameters(**values)))


def test_a_text_becomes_its_tokens(version_directory: Path) -> None:
    (answer,) = tokenizer(version_directory).tokenize([text("The cats sat")])

    assert tokens(answer) == ([[CLS, THE, CAT, S, SAT, SEP]], [[1, 1, 1, 1, 1, 1]])


def test_a_request_is_padded_to_its_own_longest_text_only(version_directory: Path) -> None:
    first, second = tokenizer(version_directory).tokenize([text("cat", "the cat sat"), text("cat")])

    assert tokens(first) == ([[CLS, CAT, SEP, 0, 0], [CLS, THE, CAT, SAT, SEP]], [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    assert tokens(second) == ([[CLS, CAT, SEP]], [[1, 1, 1]])


def test_an_empty_text_still_has_its_two_marks(version_directory: Path) -> None:
    (answer,) = tokenizer(version_directory).tokenize([text("")])

    assert tokens(answer) == ([[CLS, SEP]], [[1, 1]])


def test_long_texts_are_cut_at_max_tokens_whatever_the_file_says(version_directory: Path) -> None:
    (cut,) = tokenizer(version_directory, max_tokens=5).tokenize([text("the cat sat the cat sat")])
    (default,) = tokenizer(version_directory).tokenize([text("cat " * 300)])

    assert tokens(cut) == ([[CLS, THE, CAT, SAT, SEP]], [[1] * 5])
    assert len(tokens(default)[0][0]) == 256


def test_a_text_is_read_no_further_than_its_tokens_can_reach(version_directory: Path) -> None:
    reached, beyond = (" " * blanks + "cat" for blanks in (5 * CHARS_PER_TOKEN - len("cat"), 5 * CHARS_PER_TOKEN))

    (answer,) = tokenizer(version_directory, max_tokens=5).tokenize([text(reached, beyond, "cat " * 1_000_000)])

    assert tokens(answer)[0] == [[CLS, CAT, SEP, 0, 0], [CLS, SEP, 0, 0, 0], [CLS, CAT, CAT, CAT, SEP]]


def test_lengths_can_be_rounded_up(version_directory: Path) -> None:
    (answer,) = tokenizer(version_directory, pad_to_multiple_of=4).tokenize([text("the cat sat")])

    assert tokens(answer) == ([[CLS, THE, CAT, SAT, SEP, 0, 0, 0]], [[1, 1, 1, 1, 1, 0, 0, 0]])


def test_a_length_that_fits_is_not_rounded_up(version_directory: Path) -> None:
    (answer,) = tokenizer(version_directory, pad_to_multiple_of=5).tokenize([text("the cat sat")])

    assert len(tokens(answer)[0][0]) == 5


def test_padding_uses_the_files_own_token(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "tokenizer.json", pads_with="[FILL]")

    (answer,) = tokenizer(tmp_path).tokenize([text("cat", "the cat")])

    assert tokens(answer) == ([[CLS, CAT, SEP, VOCABULARY["[FILL]"]], [CLS, THE, CAT, SEP]], [[1, 1, 1, 0], [1, 1, 1, 1]])


def test_a_text_that_is_not_utf8_fails_its_own_request_only(version_directory: Path) -> None:
    first, second, third = tokenizer(version_directory).tokenize([text("cat"), text("sat", b"c\xff"), text("the")])

    assert tokens(first)[0] == [[CLS, CAT, SEP]]
    assert isinstance(second, RequestError)
    assert str(second) == "TEXT[1] is not valid UTF-8: invalid start byte at byte 1 of 2"
    assert tokens(third)[0] == [[CLS, THE, SEP]]


def test_a_request_without_a_text_fails_alone(version_directory: Path) -> None:
    first, second, third = tokenizer(version_directory).tokenize([text("cat"), np.empty((0, 1), np.object_), text("the")])

    assert tokens(first)[0] == [[CLS, CAT, SEP]]
    assert isinstance(second, RequestError)
    assert tokens(third)[0] == [[CLS, THE, SEP]]


def test_nothing_but_wrong_texts_is_no_call_that_fails(version_directory: Path) -> None:
    assert [type(answer) for answer in tokenizer(version_directory).tokenize([text(b"\xff")])] == [RequestError]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(TEXTS, max_size=4), multiple=st.integers(1, 5))
def test_together_is_as_alone(version_directory: Path, requests: list[list[str]], multiple: int) -> None:
    shared = tokenizer(version_directory, pad_to_multiple_of=multiple)

    together = [tokens(answer) for answer in shared.tokenize([text(*request) for request in requests])]

    assert together == [tokens(shared.tokenize([text(*request)])[0]) for request in requests]
    for request, (ids, mask) in zip(requests, together, strict=True):
        assert len(ids) == len(mask) == len(request)
        assert len(ids[0]) % multiple == 0
        # No column is padding in every row, but for the rounding.
        assert len(ids[0]) - max(map(sum, mask)) < multiple


def test_another_filename_comes_from_the_configuration(tmp_path: Path) -> None:
    save_tokenizer(tmp_path / "pieces.json")

    loaded = load_tokenizer(tmp_path, config(default_model_filename="pieces.json"))

    assert tokens(loaded.tokenize([text("cat")])[0])[0] == [[CLS, CAT, SEP]]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param({"max_tokens": 2}, "'max_tokens' must be at least 3, not 2", id="no-room-for-a-token"),
        pytest.param({"pad_to_multiple_of": 0}, "'pad_to_multiple_of' must be at least 1, not 0", id="multiple-of-nothing"),
        pytest.param({"max_tokens": "many"}, "'max_tokens' must be an integer, not 'many'", id="not-a-number"),
    ],
)
def test_limits_that_make_no_sense_fail_the_load(version_directory: Path, limits: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm': parameter {message}"):
        tokenizer(version_directory, **limits)


def test_a_missing_file_fails_the_load_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"unable to find '{tmp_path}/tokenizer.json'"):
        tokenizer(tmp_path)


def test_a_file_that_is_no_tokenizer_fails_the_load_by_name(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(ConfigError, match=f"model 'm': '{tmp_path}/tokenizer.json' is not a tokenizer.json"):
        tokenizer(tmp_path)
