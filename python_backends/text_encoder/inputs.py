"""Inputs of requests as token sequences: token ids are passed on, texts are tokenized here, all texts of a
call together.

Tokenizing in a model of its own would cost an ensemble step and the transfer of tokens between two stubs: ten
times the tokenizing itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from python_backends.runtime.errors import BackendError, ConfigError, RequestError
from python_backends.runtime.execution import InferenceRequest, Tensors
from python_backends.runtime.model_config import ModelConfig
from python_backends.text_encoder.padding import check_lengths
from python_backends.text_tokenizer.tokenizer import TextTokenizer, load_tokenizer

TEXT = "TEXT"
Request = InferenceRequest | BackendError


class TokenInputs:
    """Converter of requests' inputs to token sequences; its `config` lacks the text input."""

    def __init__(self, version_directory: Path, config: ModelConfig) -> None:
        """Open the tokenizer, if the model takes texts.

        Raises:
            ConfigError: As `load_tokenizer`, or the configuration does not say where the tokenizer is.
        """
        takes_text = any(tensor.name == TEXT for tensor in config.inputs)
        self._tokenizer = _open_tokenizer(version_directory, config) if takes_text else None
        tokens = [tensor for tensor in config.inputs if tensor.name != TEXT]
        self.config = replace(config, inputs=tuple(replace(tensor, optional=False) for tensor in tokens)) if takes_text else config

    def check(self, inputs: Tensors) -> Tensors:
        """Return the inputs of one request if they are texts or a token sequence. Raises RequestError."""
        if self._tokenizer is None:
            return check_lengths(inputs)
        if inputs.keys() == {TEXT}:
            return inputs
        names = [tensor.name for tensor in self.config.inputs]
        if inputs.keys() != set(names):
            raise RequestError(f"give {TEXT}, or {' and '.join(names)}; this request has {', '.join(inputs) or 'nothing'}")
        return self._tokenizer.check_tokens(check_lengths(inputs))

    def tokenized(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests in order, with texts replaced by tokens, or by a RequestError where a text is
        not UTF-8.
        """
        texts = {index: inputs for index, request in enumerate(requests) if (inputs := _texts(request))}
        if not texts:
            return [*requests]
        assert self._tokenizer is not None, "check lets no texts through without one"
        answers = dict(zip(texts, self._tokenizer.tokenize([inputs[TEXT] for inputs in texts.values()]), strict=True))
        return [_with_tokens(request, answers[index]) if index in answers else request for index, request in enumerate(requests)]


def _open_tokenizer(version_directory: Path, config: ModelConfig) -> TextTokenizer:
    path = config.parameters.get("tokenizer")
    if path is None:
        raise ConfigError(f"model '{config.name}': input '{TEXT}' needs the parameter 'tokenizer', a path from the version's folder")
    return load_tokenizer(version_directory, replace(config, default_model_filename=path))


def _texts(request: Request) -> Tensors | None:
    return request.inputs if isinstance(request, InferenceRequest) and TEXT in request.inputs else None


def _with_tokens(request: Request, tokens: Tensors | BackendError) -> Request:
    assert isinstance(request, InferenceRequest)
    return tokens if isinstance(tokens, BackendError) else replace(request, inputs=tokens)
