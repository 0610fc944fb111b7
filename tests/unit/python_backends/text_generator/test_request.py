"""Requests as Triton's vLLM backend understands them, and their bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.text_generator.request import INPUTS, OUTPUTS, Bounds, Prompts, completed

BOUNDS = Bounds(prompt_tokens=6, output_tokens=100, context_tokens=20)
BEGIN = 3


def tokenizer(*, begins: bool = False) -> Tokenizer:
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2, "<s>": BEGIN}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens(["<s>"])
    if begins:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BEGIN)])
    return made


def inputs(text: str | bytes = "a b", sampling: dict[str, Any] | None = None, **flags: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"text_input": np.array([text.encode() if isinstance(text, str) else text], np.object_)}
    if sampling is not None:
        made["sampling_parameters"] = np.array([json.dumps(sampling).encode()], np.object_)
    return made | {name: np.array([value]) for name, value in flags.items()}


PROMPTS = Prompts(tokenizer(), BOUNDS)


def test_without_a_stream_the_answer_begins_with_the_prompt_unless_it_is_excluded() -> None:
    assert PROMPTS.read(inputs(), "{}").echo == "a b"
    assert PROMPTS.read(inputs(exclude_input_in_output=True), "{}").echo == ""
    assert PROMPTS.read(inputs(stream=True), "{}").echo == ""
    with pytest.raises(RequestError, match="a stream never repeats its input"):
        PROMPTS.read(inputs(stream=True, exclude_input_in_output=False), "{}")


def test_what_is_to_come_beside_the_text() -> None:
    wish = PROMPTS.read(inputs(return_finish_reason=True, return_num_output_tokens=True, return_num_input_tokens=False), "{}")

    assert wish.tells == {"finish_reason", "num_output_tokens"}


def test_sampling_parameters_come_in_a_tensor_or_else_as_the_requests_own() -> None:
    assert PROMPTS.read(inputs(sampling={"max_tokens": 3}), '{"max_tokens": 5}').parameters.max_tokens == 3
    assert PROMPTS.read(inputs(), '{"max_tokens": 5, "priority": 1}').parameters.max_tokens == 5


def test_an_answer_is_cut_where_the_context_ends() -> None:
    assert PROMPTS.read(inputs(sampling={"max_tokens": 100}), "{}").parameters.max_tokens == 18


def test_an_answer_is_cut_where_the_model_may_write_no_more() -> None:
    prompts = Prompts(tokenizer(), replace(BOUNDS, output_tokens=4))
    assert prompts.read(inputs(sampling={"max_tokens": 100}), "{}").parameters.max_tokens == 4


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        pytest.param(inputs("a " * 7), "text_input has 7 tokens, more than the maximum model length of 6", id="long"),
        pytest.param(
            inputs("a" * 500), "text_input has 500 characters, far more than the maximum model length of 6 tokens", id="far-too-long"
        ),
        pytest.param(inputs(""), "text_input is empty", id="empty"),
        pytest.param(inputs(b"\xff"), "text_input[0] is not valid UTF-8", id="no-text"),
        pytest.param(inputs(sampling={"max_tokens": 50, "min_tokens": 19}), "after this prompt there is room for 18", id="no-room"),
        pytest.param(
            inputs() | {"sampling_parameters": np.array([b"\xff"], np.object_)}, "sampling_parameters[0] is not valid", id="bytes"
        ),
    ],
)
def test_what_is_refused(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RequestError) as refused:
        PROMPTS.read(asked, "{}")

    assert sentence in str(refused.value)


def test_the_token_that_begins_a_text_is_there_once() -> None:
    prompts = Prompts(tokenizer(begins=True), BOUNDS, begin=BEGIN)

    assert prompts.read(inputs("a"), "{}").tokens == [BEGIN, 0]
    assert prompts.read(inputs("<s> a"), "{}").tokens == [BEGIN, 0]


def test_a_configuration_is_completed() -> None:
    found = completed({"name": "m", "max_batch_size": 0, "input": [{"name": "text_input", "dims": [1]}], "output": []})

    assert [tensor["name"] for tensor in found["input"]] == [*INPUTS]
    assert [tensor["name"] for tensor in found["output"]] == [*OUTPUTS]
    assert found["model_transaction_policy"] == {"decoupled": True}
    with pytest.raises(ConfigError, match="max_batch_size must be 0"):
        completed({"name": "m", "max_batch_size": 4, "input": [], "output": []})
