"""Which configurations are those of generative models, and how they take chats."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.core.errors import UpstreamFailed
from control_plane.generation.domain.generative_model import ChatFormat, GenerativeModel, read_generative_model
from tests.fakes.triton.generative_model import OPTIONAL, config_of


def read(config: Any) -> GenerativeModel | None:
    return read_generative_model(orjson.dumps(config))


def test_the_interface_of_vllm_in_its_newer_and_its_older_form() -> None:
    newer, older = read(config_of()), read(config_of(optional=("stream", "exclude_input_in_output")))
    assert newer is not None
    assert older is not None
    assert newer.inputs == {"text_input", "sampling_parameters", *OPTIONAL}
    assert newer.returned == ("finish_reason", "num_input_tokens", "num_output_tokens")
    assert older.returned == ()
    assert newer.chat is None
    assert "set the parameter chat_template of its configuration" in newer.no_chat


TENSOR = {"name": "more", "data_type": "TYPE_STRING", "dims": ["1"]}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"model_transaction_policy": {}}, id="not-decoupled"),
        pytest.param({"max_batch_size": 4}, id="batches"),
        pytest.param({"input": [*config_of()["input"], TENSOR]}, id="needs-more"),
        pytest.param({"input": config_of()["input"][:1]}, id="no-sampling"),
        pytest.param({"input": [{**each, "dims": ["-1"]} for each in config_of()["input"]]}, id="other-dims"),
        pytest.param({"output": [{"name": "text_output", "data_type": "TYPE_FP32", "dims": ["1"]}]}, id="no-text"),
        pytest.param({"output": []}, id="no-output"),
    ],
)
def test_other_kinds_of_models(change: dict[str, Any]) -> None:
    assert read({**config_of(), **change}) is None


@pytest.mark.parametrize(
    ("template", "tokens"),
    [
        pytest.param("<|im_start|>{{ x }}<|im_end|>\n<|im_start|>", ("<|im_end|>", "<|im_start|>"), id="ChatML"),
        pytest.param(
            "{{ bos_token }}[INST] <<SYS>>{{ x }}<</SYS>> [/INST] a </s>",
            ("</s>", "<</SYS>>", "<<SYS>>", "[/INST]", "[INST]"),
            id="Llama-2",
        ),
        pytest.param("<start_of_turn>user {{ x }}<end_of_turn>", ("<end_of_turn>", "<start_of_turn>"), id="Gemma"),
        pytest.param(
            "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}<|assistant|>",
            ("<|assistant|>", "<|end|>", "<|system|>", "<|user|>"),
            id="Phi-4-mini",
        ),
        pytest.param("<|{{ m['role'] }}|>{{ m['content'] }}", ("<|assistant|>", "<|system|>", "<|user|>"), id="GLM-4"),
        pytest.param("<｜{{ m.role }}｜>{{ x }}", ("<｜assistant｜>", "<｜system｜>", "<｜user｜>"), id="a token of wide bars"),
        pytest.param("{% if a|length > 1 %}{{ a[0] }}{% endif %}User: {{ x }}", (), id="plain-words"),
    ],
)
def test_control_tokens_are_found_in_the_template(template: str, tokens: tuple[str, ...]) -> None:
    found = read(config_of(chat_template=template))
    assert found is not None
    assert found.chat == ChatFormat(template, control_tokens=tokens)


def test_the_ends_of_texts_are_control_tokens_too_and_a_list_replaces_what_is_found() -> None:
    found = read(config_of(chat_template="<|a|>", bos_token="<s>", eos_token="<|end|>"))
    named = read(config_of(chat_template="<|a|>", chat_control_tokens='["User:","User:"]'))
    assert found is not None
    assert named is not None
    assert found.chat == ChatFormat("<|a|>", "<s>", "<|end|>", ("<s>", "<|a|>", "<|end|>"))
    assert named.chat == ChatFormat("<|a|>", control_tokens=("User:",))


@pytest.mark.parametrize("tokens", ["x", "{}", "[1]", '[""]'])
def test_a_list_that_is_none_is_told_and_does_not_hide_the_model(tokens: str) -> None:
    found = read(config_of(chat_template="<|a|>", chat_control_tokens=tokens))
    assert found is not None
    assert found.chat is None
    assert "chat_control_tokens of its configuration must be a JSON list" in found.no_chat


@pytest.mark.parametrize("config", [b"", b"[]", b"{}", b'{"input":[{}],"output":[]}'])
def test_what_is_no_configuration(config: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        read_generative_model(config)
