"""Requests of OpenAI's completions and chats: what is read, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest, ModelNotFound, PayloadTooLarge
from control_plane.generation.domain.completion_request import CompletionRequest, GenerationLimits, request_steps
from control_plane.generation.domain.messages import MAX_MESSAGES

LIMITS = GenerationLimits(max_prompt_bytes=64 << 10, max_tokens=1000)
TURN = [{"role": "user", "content": "hi"}]


def completion(**fields: Any) -> CompletionRequest:
    return finish(request_steps(orjson.dumps({"model": "m", "prompt": "a", **fields}), is_chat=False, limits=LIMITS))


def chat(**fields: Any) -> CompletionRequest:
    return finish(request_steps(orjson.dumps({"model": "m", "messages": TURN, **fields}), is_chat=True, limits=LIMITS))


def test_a_completion_has_sixteen_tokens_and_a_chat_as_many_as_there_may_be() -> None:
    assert completion() == CompletionRequest("m", 16, prompt="a", sampling={"max_tokens": 16})
    assert chat() == CompletionRequest("m", 1000, messages=({"role": "user", "content": "hi"},), sampling={"max_tokens": 1000})
    assert (completion().is_chat, chat().is_chat) == (False, True)
    assert completion(prompt=["é"]).prompt == "é"


def test_sampling_is_passed_on_in_the_models_words() -> None:
    asked = {
        "temperature": 0,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "min_tokens": 2,
        "seed": -7,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "repetition_penalty": 1.1,
    }
    assert completion(**asked, stop="\n", max_tokens=20).sampling == {**asked, "stop": ["\n"], "max_tokens": 20}
    assert chat(max_completion_tokens=5, stop=["a", "b"]).sampling == {"max_tokens": 5, "stop": ["a", "b"]}
    assert chat(max_completion_tokens=5, max_tokens=5).max_tokens == 5


@pytest.mark.parametrize(
    ("fields", "streams", "usage"),
    [
        pytest.param({}, False, False, id="whole"),
        pytest.param({"stream": True}, True, False, id="streamed"),
        pytest.param({"stream": True, "stream_options": {}}, True, False, id="no-option"),
        pytest.param({"stream": True, "stream_options": {"include_usage": True}}, True, True, id="usage"),
        pytest.param({"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}}, True, False, id="nulls"),
    ],
)
def test_streaming(fields: dict[str, Any], streams: bool, usage: bool) -> None:
    found = completion(**fields)
    assert (found.is_streamed, found.includes_usage) == (streams, usage)


def test_what_asks_for_nothing_and_what_changes_no_answer_is_accepted() -> None:
    nothing = {"n": 1, "logprobs": False, "logit_bias": {}, "tools": [], "tool_choice": "none", "response_format": {"type": "text"}}
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "safety_identifier": "s"}
    assert chat(**nothing, **harmless, audio=None, whatever=None) == chat()
    assert completion(best_of=1, echo=False, suffix="", logprobs=None, user="u") == completion()


@pytest.mark.parametrize(
    ("fields", "words", "field"),
    [
        pytest.param({"n": 2}, "unsupported parameter: 'n'; it may be left out, or 1", "n", id="n"),
        pytest.param({"n": True}, "unsupported parameter: 'n'", "n", id="n-true"),
        pytest.param({"logprobs": True}, "unsupported parameter: 'logprobs'", "logprobs", id="logprobs"),
        pytest.param({"tools": [{"type": "function"}]}, "unsupported parameter: 'tools'", "tools", id="tools"),
        pytest.param({"response_format": {"type": "json_object"}}, "'response_format'", "response_format", id="json"),
        pytest.param({"store": True}, "'store'", "store", id="store"),
        pytest.param({"reasoning_effort": "low"}, "unsupported parameter: 'reasoning_effort'", "reasoning_effort", id="unknown"),
        pytest.param({"prompt": "a"}, "unsupported parameter: 'prompt'", "prompt", id="a-completions"),
        pytest.param({"x" * 500: 1}, f"unsupported parameter: '{'x' * 64}'", "x" * 64, id="a-long-name"),
        pytest.param({"temperature": 2.1}, "temperature must be a number from 0 to 2", "temperature", id="hot"),
        pytest.param({"temperature": True}, "temperature must be a number", "temperature", id="true-is-no-number"),
        pytest.param({"top_p": 0}, "top_p must be a number from above 0 to 1", "top_p", id="top_p"),
        pytest.param({"seed": 2**63}, "seed must be a whole number", "seed", id="seed"),
        pytest.param({"top_k": 1.5}, "top_k must be a whole number", "top_k", id="top_k"),
        pytest.param({"max_tokens": 0}, "max_tokens must be a whole number from 1 to 1000", "max_tokens", id="none"),
        pytest.param({"max_completion_tokens": 1001}, "from 1 to 1000", "max_completion_tokens", id="too-many"),
        pytest.param({"max_tokens": 5, "max_completion_tokens": 6}, "say different things", "max_tokens", id="both"),
        pytest.param({"max_tokens": 5, "min_tokens": 6}, "min_tokens must not be above max_tokens, which is 5", "min_tokens", id="min"),
        pytest.param({"stop": [""]}, "stop must be a text of 1 to 1024 bytes", "stop", id="empty-stop"),
        pytest.param({"stop": list("abcde")}, "list of up to 4", "stop", id="stops"),
        pytest.param({"stop": 1}, "stop must be", "stop", id="stop-number"),
        pytest.param({"stream": 1}, "stream must be true or false", "stream", id="stream"),
        pytest.param({"stream_options": {}}, "only with stream: true", "stream_options", id="options-of-none"),
        pytest.param({"stream": True, "stream_options": {"x": 1}}, "'stream_options.x'", "stream_options", id="option"),
        pytest.param({"stream": True, "stream_options": {"include_usage": 1}}, "true or false", "stream_options", id="usage-number"),
        pytest.param({"messages": []}, "messages must be a list of 1 to 4096", "messages", id="no-messages"),
        pytest.param({"model": ""}, "you must provide a model", "model", id="no-model"),
        pytest.param({"model": 1}, "model must be a string", "model", id="model-number"),
    ],
)
def test_what_is_not_done_is_refused_by_its_name(fields: dict[str, Any], words: str, field: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        chat(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("prompt", "more"),
    [
        pytest.param("", {}, id="empty"),
        pytest.param(None, {}, id="none"),
        pytest.param(["a", "b"], {}, id="two"),
        pytest.param([1, 2], {}, id="tokens"),
        pytest.param([[1]], {}, id="lists-of-tokens"),
    ],
)
def test_a_prompt_is_one_text(prompt: Any, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="prompt must be one text") as caught:
        completion(prompt=prompt, **more)
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(b"{", InvalidRequest, id="no-json"),
        pytest.param(b"[]", InvalidRequest, id="no-object"),
        pytest.param(b'{"model":"../m","prompt":"a"}', ModelNotFound, id="no-name"),
        pytest.param(b'{"model":"m","prompt":"\\ud800"}', InvalidRequest, id="half-a-pair"),
        pytest.param(b" " * (LIMITS.max_prompt_bytes + 1), PayloadTooLarge, id="too-large"),
    ],
)
def test_bodies_that_are_none(body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        finish(request_steps(body, is_chat=False, limits=LIMITS))


def test_where_fewer_tokens_are_allowed_than_openais_default_these_are_it() -> None:
    body = orjson.dumps({"model": "m", "prompt": "a"})
    assert finish(request_steps(body, is_chat=False, limits=GenerationLimits(1024, 4))).max_tokens == 4


def test_a_body_of_very_many_values_is_refused_before_it_is_parsed() -> None:
    limits = GenerationLimits(max_prompt_bytes=1 << 20, max_tokens=1000)
    body = b'{"model":"m","messages":[%b]}' % b",".join([b"[]"] * 300_000)
    with pytest.raises(PayloadTooLarge, match="more than 32768 lists"):
        finish(request_steps(body, is_chat=True, limits=limits))
    most = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "say {}, [], or nothing"}] * MAX_MESSAGES})
    assert len(finish(request_steps(most, is_chat=True, limits=limits)).messages) == MAX_MESSAGES
