"""Tokenize and encode in one step, with the very code and files of the models `text_tokenizer` and `text_encoder`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from python_backends.runtime.errors import BackendError
from python_backends.runtime.execution import Answer, GroupRunner, InferenceRequest
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.session import find_model_file, open_session, run_function
from python_backends.runtime.triton import serve
from python_backends.text_encoder.padding import pad_and_concatenate, similar_lengths
from python_backends.text_tokenizer.tokenizer import load_tokenizer

MODELS = Path(__file__).resolve().parents[4] / "model_repository"


class TritonPythonModel:
    """Embeds texts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load what the two models of the ensemble load."""
        # Triton fills in "model.py" here, which is neither's file.
        config = replace(parse_model_config(json.loads(args["model_config"])), default_model_filename="")
        session = open_session(find_model_file(MODELS / "text_encoder" / "1", ""), config, kind="CPU", device_id=0)
        self._tokenizer = load_tokenizer(MODELS / "text_tokenizer" / "1", config)
        self._runner = GroupRunner(
            run=run_function(session, config),
            plan=similar_lengths,
            assemble=pad_and_concatenate,
            output_names=["EMBEDDING"],
            scheduler_drops_cancelled=True,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return serve(requests, self._embed)

    def _embed(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        tokenized = self._tokenizer.tokenize([request.inputs["TEXT"] for request in requests])
        encodable = [
            replace(request, inputs=tokens)
            for request, tokens in zip(requests, tokenized, strict=True)
            if not isinstance(tokens, BackendError)
        ]
        embedded = iter(self._runner.execute(encodable))
        return [tokens if isinstance(tokens, BackendError) else next(embedded) for tokens in tokenized]
