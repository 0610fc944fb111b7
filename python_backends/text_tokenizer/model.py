"""Triton's entry point of the backend `text_tokenizer`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from python_backends.runtime.errors import BackendError
from python_backends.runtime.execution import Answer, InferenceRequest
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.triton import serve, version_directory
from python_backends.text_tokenizer.token_count import with_count
from python_backends.text_tokenizer.tokenizer import load_tokenizer


class TritonPythonModel:
    """An instance of a model that tokenizes texts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the tokenizer; an error's text is the reason that Triton reports."""
        self._tokenizer = load_tokenizer(version_directory(args), parse_model_config(json.loads(args["model_config"])))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return one response per request, in order."""
        return serve(requests, self._tokenize)

    def _tokenize(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        answers = self._tokenizer.tokenize([request.inputs["TEXT"] for request in requests])
        return [
            answer if isinstance(answer, BackendError) else with_count(answer, request, answer)
            for request, answer in zip(requests, answers, strict=True)
        ]
