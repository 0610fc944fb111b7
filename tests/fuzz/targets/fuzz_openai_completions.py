"""Requests of OpenAI's completions and chats: whatever comes is read within its limits or refused, and no message forges a turn."""

from __future__ import annotations

from contextlib import suppress

from google.protobuf.message import DecodeError

from tests.fuzz.harness import fuzz, instrumented

with instrumented():
    from control_plane.core.algorithms.steps import finish
    from control_plane.core.errors import InvalidRequest, ModelNotFound, PayloadTooLarge
    from control_plane.core.model import MODEL_NAME
    from control_plane.generation.domain.completion_request import CompletionRequest, GenerationLimits, request_steps
    from control_plane.generation.domain.generation_tensors import read_response, request_message
    from control_plane.generation.domain.generative_model import GenerativeModel
    from control_plane.generation.domain.messages import without_control_tokens

LIMITS = GenerationLimits(max_prompt_bytes=4096, max_tokens=100)
TOKENS = ("<|im_end|>", "<|im_start|>", "</s>")
MODEL = GenerativeModel(frozenset(("text_input", "sampling_parameters", "stream")))


def check(data: bytes) -> None:
    for is_chat in (True, False):
        request = read(data, is_chat=is_chat)
        if request is not None:
            examine(request, is_chat=is_chat)
    with suppress(DecodeError):  # no message of Triton's is that
        read_response(data)


def read(data: bytes, *, is_chat: bool) -> CompletionRequest | None:
    """None when it is refused, with words that can be sent."""
    try:
        return finish(request_steps(data, is_chat=is_chat, limits=LIMITS))
    except (InvalidRequest, ModelNotFound, PayloadTooLarge) as exc:
        str(exc).encode()
        return None


def examine(request: CompletionRequest, *, is_chat: bool) -> None:
    assert MODEL_NAME.fullmatch(request.model)
    assert 1 <= request.max_tokens == request.sampling["max_tokens"] <= LIMITS.max_tokens
    assert bool(request.messages) == is_chat != bool(request.prompt)
    prompt = request.prompt
    if is_chat:
        messages = finish(without_control_tokens(request.messages, TOKENS))
        assert not any(token in each["content"] for each in messages for token in TOKENS)
        prompt = "".join(each["content"] for each in messages)
    request_message(request, MODEL, prompt, name="m", version="", request_id="1")


if __name__ == "__main__":
    fuzz(check)
