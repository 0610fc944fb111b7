"""Parses OpenAI's requests for completions and chats.

What is not done is refused by its name, and never passed over: a caller who asks for three answers must not take one for all
that there are. Fields that change nothing of an answer (`user`, `metadata`) are accepted. Beside OpenAI's fields there are
those of vLLM's sampling that its own server accepts (`top_k`, `min_p`, `min_tokens`, `repetition_penalty`). Source:
https://platform.openai.com/docs/api-reference/completions and /chat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import InvalidRequest, PayloadTooLarge
from control_plane.generation.domain.messages import Message, message_steps
from control_plane.protocols.json_structure import bounded_steps
from control_plane.protocols.openai import read_model

COMPLETION_TOKENS = 16
"""Most tokens of a completion that names no number, as at OpenAI; of a chat it is the limit."""
MAX_STOPS, _MAX_STOP_BYTES = 4, 1024
_SHOWN_CHARS = 64


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """Limits on what a call may ask for."""

    max_prompt_bytes: int
    """Largest body of a call, and largest prompt that a chat's template may make of it."""
    max_tokens: int
    """Most tokens that may be generated."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A validated call for a completion, or for the next turn of a chat."""

    model: str
    max_tokens: int
    prompt: str = ""
    messages: tuple[Message, ...] = ()
    """The messages of a chat; none for a completion."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """The model's `sampling_parameters`."""
    is_streamed: bool = False
    includes_usage: bool = False
    """Whether a stream ends with the numbers of tokens."""

    @property
    def is_chat(self) -> bool:
        return bool(self.messages)


class _Range(NamedTuple):
    """Bounds of a number."""

    least: float
    most: float
    above_least: bool = False


_NUMBERS = {
    "temperature": _Range(0, 2),
    "top_p": _Range(0, 1, above_least=True),
    "min_p": _Range(0, 1),
    "presence_penalty": _Range(-2, 2),
    "frequency_penalty": _Range(-2, 2),
    "repetition_penalty": _Range(0, 2, above_least=True),
}
_WHOLE = {
    "top_k": _Range(-1, 2**31 - 1),
    "min_tokens": _Range(0, 2**31 - 1),
    "seed": _Range(-(2**63), 2**63 - 1),
}
_ONLY: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "logprobs": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
}
"""Field -> the values with which it asks for nothing; null is one of each."""
_IGNORED = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"))
_READ = frozenset(("model", "stream", "stream_options", "stop", "max_tokens", *_NUMBERS, *_WHOLE))
_OF_CHAT, _OF_COMPLETION = _READ | {"messages", "max_completion_tokens"}, _READ | {"prompt"}


def request_steps(body: bytes | bytearray, *, is_chat: bool, limits: GenerationLimits) -> Steps[CompletionRequest]:
    """Parse and validate a call's body, in steps.

    Raises InvalidRequest, which names the wrong field; ModelNotFound: no model can have that name; PayloadTooLarge.
    """
    check_size(len(body), limits)
    yield from bounded_steps(body)
    fields = _parse(body)
    model = read_model(fields)
    for name, value in fields.items():
        _check_supported(name, value, _OF_CHAT if is_chat else _OF_COMPLETION)
    max_tokens = _max_tokens(fields, limits.max_tokens, limits.max_tokens if is_chat else min(COMPLETION_TOKENS, limits.max_tokens))
    is_streamed, includes_usage = _streaming(fields)
    messages: tuple[Message, ...] = ()
    if is_chat:
        messages = yield from message_steps(fields.get("messages"))
    return CompletionRequest(
        model,
        max_tokens,
        prompt="" if is_chat else _prompt(fields.get("prompt")),
        messages=messages,
        sampling=_sampling(fields, max_tokens),
        is_streamed=is_streamed,
        includes_usage=includes_usage,
    )


def check_size(body_bytes: int, limits: GenerationLimits) -> None:
    """Check the size of a body, which may not have come yet. Raises PayloadTooLarge."""
    if body_bytes > limits.max_prompt_bytes:
        raise PayloadTooLarge(f"a call for generated text may have {limits.max_prompt_bytes} bytes (TIDEGATE_MAX_PROMPT_BYTES)")


def _parse(body: bytes | bytearray) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    if type(fields) is not dict:
        raise InvalidRequest("the body must be a JSON object")
    return fields


def _check_supported(name: str, value: Any, known: frozenset[str]) -> None:
    if value is None or name in known or name in _IGNORED:
        return
    shown = name[:_SHOWN_CHARS]
    if name not in _ONLY:
        raise InvalidRequest(f"unsupported parameter: {shown!r}", field=shown)
    if not any(type(value) is type(each) and value == each for each in _ONLY[name]):
        only = " or ".join(orjson.dumps(each).decode() for each in _ONLY[name])
        raise InvalidRequest(f"unsupported parameter: {shown!r}; it may be left out, or {only}", field=shown)


def _max_tokens(fields: dict[str, Any], most: int, default: int) -> int:
    given = {name: value for name in ("max_tokens", "max_completion_tokens") if (value := fields.get(name)) is not None}
    for name, value in given.items():
        if type(value) is not int or not 1 <= value <= most:
            raise InvalidRequest(f"{name} must be a whole number from 1 to {most} (TIDEGATE_MAX_COMPLETION_TOKENS)", field=name)
    if len(set(given.values())) > 1:
        raise InvalidRequest("max_tokens and max_completion_tokens say different things; send one of them", field="max_tokens")
    return next(iter(given.values()), default)


def _streaming(fields: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the answer is streamed, and whether it ends with the usage."""
    stream, options = fields.get("stream"), fields.get("stream_options")
    if stream is not None and type(stream) is not bool:
        raise InvalidRequest("stream must be true or false", field="stream")
    if options is None:
        return bool(stream), False
    if type(options) is not dict or not stream:
        raise InvalidRequest("stream_options must be an object, and only with stream: true", field="stream_options")
    for name, value in options.items():
        if name != "include_usage" and value not in (None, False):
            raise InvalidRequest(f"unsupported parameter: 'stream_options.{name[:_SHOWN_CHARS]}'", field="stream_options")
    include = options.get("include_usage")
    if include is not None and type(include) is not bool:
        raise InvalidRequest("stream_options.include_usage must be true or false", field="stream_options")
    return True, bool(include)


def _prompt(value: Any) -> str:
    if type(value) is list and len(value) == 1:
        value = value[0]
    if type(value) is not str or not value:
        raise InvalidRequest("prompt must be one text that is not empty; lists and tokens are not supported", field="prompt")
    return value


def _sampling(fields: dict[str, Any], max_tokens: int) -> dict[str, Any]:
    sampling: dict[str, Any] = {"max_tokens": max_tokens}
    for name, bounds in _NUMBERS.items():
        if (value := fields.get(name)) is not None:
            is_number = type(value) in (int, float) and bounds.least <= value <= bounds.most
            if not is_number or (bounds.above_least and value == bounds.least):
                least = f"above {bounds.least:g}" if bounds.above_least else f"{bounds.least:g}"
                raise InvalidRequest(f"{name} must be a number from {least} to {bounds.most:g}", field=name)
            sampling[name] = float(value)
    for name, bounds in _WHOLE.items():
        if (value := fields.get(name)) is not None:
            if type(value) is not int or not bounds.least <= value <= bounds.most:
                raise InvalidRequest(f"{name} must be a whole number from {int(bounds.least)} to {int(bounds.most)}", field=name)
            sampling[name] = value
    if sampling.get("min_tokens", 0) > max_tokens:
        raise InvalidRequest(f"min_tokens must not be above max_tokens, which is {max_tokens}", field="min_tokens")
    if (stop := _stop(fields.get("stop"))) is not None:
        sampling["stop"] = stop
    return sampling


def _stop(value: Any) -> list[str] | None:
    if value is None or value == []:
        return None
    stops = [value] if type(value) is str else value
    is_list = type(stops) is list and len(stops) <= MAX_STOPS
    if not is_list or not all(type(each) is str and 0 < len(each.encode()) <= _MAX_STOP_BYTES for each in stops):
        raise InvalidRequest(f"stop must be a text of 1 to {_MAX_STOP_BYTES} bytes, or a list of up to {MAX_STOPS} such", field="stop")
    return list(stops)
