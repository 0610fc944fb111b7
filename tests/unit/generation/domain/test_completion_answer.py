"""Answers in OpenAI's form, streamed and whole."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from control_plane.generation.domain.completion_answer import CompletionAnswer
from control_plane.generation.domain.completion_request import CompletionRequest
from control_plane.generation.domain.generation_tensors import Generated

HI = ({"role": "user", "content": "hi"},)
SAID = (Generated("a", "", 3, 1), Generated("", "", 3, 0), Generated(' "b"\n', "", 3, 1), Generated("", "stop", 3, 0))


def answered(*said: Generated, **wanted: Any) -> bytes:
    answer = CompletionAnswer(CompletionRequest("m", 10, **wanted), id_="id-1", created_s=5)
    return b"".join([*(answer.take(each) for each in said), answer.finish()])


def events(body: bytes) -> list[Any]:
    *lines, last, rest = body.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    return [orjson.loads(line.removeprefix(b"data: ")) for line in lines]


def test_a_streamed_chat() -> None:
    found = events(answered(*SAID, messages=HI, is_streamed=True))

    assert [each["choices"][0]["delta"] for each in found] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": ' "b"\n'},
        {},
    ]
    assert [each["choices"][0]["finish_reason"] for each in found] == [None, None, None, "stop"]
    assert {(each["id"], each["object"], each["created"], each["model"], "usage" in each) for each in found} == {
        ("id-1", "chat.completion.chunk", 5, "m", False)
    }


def test_a_streamed_completion_with_its_usage() -> None:
    found = events(answered(*SAID, prompt="p", is_streamed=True, includes_usage=True))

    assert [each["choices"][0]["text"] for each in found[:-1]] == ["a", ' "b"\n', ""]
    assert [each["usage"] for each in found[:-1]] == [None] * 3
    assert (found[-1]["choices"], found[-1]["usage"]) == ([], {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    assert {each["object"] for each in found} == {"text_completion"}


def test_a_stream_of_nothing_has_a_beginning_and_an_end() -> None:
    assert [each["choices"][0] for each in events(answered(messages=HI, is_streamed=True))] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
    ]


def test_whole_answers() -> None:
    chat, completion = orjson.loads(answered(*SAID, messages=HI)), orjson.loads(answered(*SAID, prompt="p"))

    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    same = {"index": 0, "logprobs": None, "finish_reason": "stop"}
    message = {"role": "assistant", "content": 'a "b"\n', "refusal": None}
    head = {"id": "id-1", "created": 5, "model": "m", "usage": usage}
    assert chat == {**head, "object": "chat.completion", "choices": [{**same, "message": message}]}
    assert completion == {**head, "object": "text_completion", "choices": [{**same, "text": 'a "b"\n'}]}


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        pytest.param([Generated("a", "length")], "length", id="the-models-own"),
        pytest.param([Generated("a", "abort")], "stop", id="one-that-clients-do-not-know"),
        pytest.param([Generated("a")] * 9, "stop", id="untold"),
        pytest.param([Generated("a")] * 10, "length", id="untold-by-responses"),
        pytest.param([Generated("ab", "", None, 10)], "length", id="untold-by-tokens"),
    ],
)
def test_why_it_ended(said: list[Generated], reason: str) -> None:
    answer = orjson.loads(answered(*said, prompt="p"))
    assert answer["choices"][0]["finish_reason"] == reason


def test_a_model_that_counts_nothing_has_no_usage() -> None:
    streamed = events(answered(Generated("a"), prompt="p", is_streamed=True, includes_usage=True))
    assert orjson.loads(answered(Generated("a"), prompt="p"))["usage"] is None
    assert all(each["usage"] is None and each["choices"] for each in streamed)


def test_a_name_cannot_be_taken_for_the_text() -> None:
    answer = CompletionAnswer(CompletionRequest("text-text", 10, prompt="p", is_streamed=True), id_="text", created_s=5)
    assert orjson.loads(answer.take(Generated("x")).removeprefix(b"data: "))["model"] == "text-text"
