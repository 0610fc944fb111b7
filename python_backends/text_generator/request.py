"""Requests of Triton's vLLM backend: which tensors there are, and what one asks for.

Its source (24.10 and later) is what names, defaults and refusals follow. Not there: images, log probabilities, embeddings and
LoRA adapters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from python_backends.runtime.errors import ConfigError, RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.text import decode_utf8
from python_backends.text_generator.sampling_parameters import SamplingParameters, known_sampling_parameters, parse_sampling_parameters

_FLAGS = ("stream", "exclude_input_in_output", "return_finish_reason", "return_num_input_tokens", "return_num_output_tokens")

INPUTS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "text_input": ("TYPE_STRING", (1,)),
    "stream": ("TYPE_BOOL", (1,)),
    "sampling_parameters": ("TYPE_STRING", (1,)),
    "exclude_input_in_output": ("TYPE_BOOL", (1,)),
    "return_finish_reason": ("TYPE_BOOL", (1,)),
    "return_num_input_tokens": ("TYPE_BOOL", (1,)),
    "return_num_output_tokens": ("TYPE_BOOL", (1,)),
}
"""All are optional but the first."""
OUTPUTS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "text_output": ("TYPE_STRING", (-1,)),
    "finish_reason": ("TYPE_STRING", (-1,)),
    "num_input_tokens": ("TYPE_UINT32", (1,)),
    "num_output_tokens": ("TYPE_UINT32", (-1,)),
}

CHARS_PER_TOKEN = 64
"""Characters of a prompt for each token that it may have: what is longer is refused before it is tokenized."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tokens of a prompt, of an answer, and of both together."""

    prompt_tokens: int
    output_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for; `echo` is the text that its answer begins with."""

    tokens: list[int]
    parameters: SamplingParameters
    stream: bool
    echo: str
    tells: frozenset[str]
    """Outputs that come beside the text."""


class Prompts:
    """Reader of requests for one model."""

    def __init__(self, tokenizer: Tokenizer, bounds: Bounds, *, begin: int | None = None) -> None:
        """`begin` is the token that the tokenizer puts before every text, if the model has one."""
        self._tokenizer = tokenizer
        self._bounds = bounds
        self._begin = begin

    def read(self, inputs: Tensors, parameters: str) -> Wish:
        """Read a request; `parameters` are its own, as JSON, and count where it has no tensor `sampling_parameters`.

        Raises:
            RequestError: It is malformed, its prompt is too long, or it demands more tokens than the model may write.
        """
        (text,) = decode_utf8(inputs["text_input"], "text_input")
        flags = {name: _flag(inputs[name]) for name in _FLAGS if name in inputs}
        stream = flags.get("stream", False)
        excludes_input = flags.get("exclude_input_in_output", stream)
        if stream and not excludes_input:
            raise RequestError("a stream never repeats its input: leave 'exclude_input_in_output' out, or set it to true")
        if "sampling_parameters" in inputs:
            (said,) = decode_utf8(inputs["sampling_parameters"], "sampling_parameters")
            sampling = parse_sampling_parameters(said)
        else:
            sampling = known_sampling_parameters(parameters)
        tokens = self._tokens(text)
        return Wish(
            tokens=tokens,
            parameters=self._bounded(sampling, len(tokens)),
            stream=stream,
            echo="" if excludes_input else text,
            tells=frozenset(name for name in OUTPUTS if flags.get(f"return_{name}")),
        )

    def _tokens(self, text: str) -> list[int]:
        limit = self._bounds.prompt_tokens
        if len(text) > limit * CHARS_PER_TOKEN:
            raise RequestError(f"text_input has {len(text)} characters, far more than the maximum model length of {limit} tokens")
        tokens: list[int] = self._tokenizer.encode(text).ids
        if tokens[:2] == [self._begin, self._begin]:
            del tokens[0]  # a chat template has written it, too
        if not tokens:
            raise RequestError("text_input is empty")
        if len(tokens) > limit:
            raise RequestError(f"text_input has {len(tokens)} tokens, more than the maximum model length of {limit}")
        return tokens

    def _bounded(self, sampling: SamplingParameters, tokens: int) -> SamplingParameters:
        room = min(self._bounds.output_tokens, self._bounds.context_tokens - tokens)
        if sampling.min_tokens > room:
            raise RequestError(f"sampling parameter 'min_tokens' is {sampling.min_tokens}, after this prompt there is room for {room}")
        return replace(sampling, max_tokens=min(sampling.max_tokens, room))


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of Triton's configuration with the inputs and outputs that it lacks, decoupled and without batches.

    Raises:
        ConfigError: It asks Triton to batch.
    """
    if config.get("max_batch_size"):
        raise ConfigError(f"model '{config['name']}': max_batch_size must be 0, requests are batched token by token here")
    inputs = [{"name": name, "data_type": kind, "dims": [*dims], "optional": name != "text_input"} for name, (kind, dims) in INPUTS.items()]
    outputs = [{"name": name, "data_type": kind, "dims": [*dims]} for name, (kind, dims) in OUTPUTS.items()]
    return {
        **config,
        "max_batch_size": 0,
        "input": [*config["input"], *_missing(inputs, config["input"])],
        "output": [*config["output"], *_missing(outputs, config["output"])],
        "model_transaction_policy": {"decoupled": True},
    }


def _missing(all_of_them: list[dict[str, Any]], there: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = {tensor["name"] for tensor in there}
    return [tensor for tensor in all_of_them if tensor["name"] not in names]


def _flag(array: Array) -> bool:
    return bool(array.ravel()[0])
