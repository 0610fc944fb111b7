"""Tokenize and encode in one step, with the very code and files of the models `text_tokenizer` and `text_encoder`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from python_backends.runtime.errors import BackendError
from python_backends.runtime.execution import Answer, GroupRunner, InferenceRequest, Tensors
from python_backends.runtime.machine import this_machine
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.runtimes import open_runtime
from python_backends.runtime.triton import serve
from python_backends.runtime.variant import AUTO, choose_variant
from python_backends.text_encoder.padding import pad_and_concatenate
from python_backends.text_tokenizer.tokenizer import load_tokenizer

MODELS = Path(__file__).resolve().parents[4] / "model_repository"


class TritonPythonModel:
    """Embeds texts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load what the two models of the ensemble load."""
        # Triton fills in "model.py" here, which is neither's file.
        config = replace(parse_model_config(json.loads(args["model_config"])), default_model_filename="")
        variant = choose_variant(
            MODELS / "text_encoder" / "1", config.parameters.get("variant", AUTO), kind="CPU", machine_kind=this_machine("cpu").kind
        )
        self._tokenizer = load_tokenizer(MODELS / "text_tokenizer" / "1", config)
        self._runner = GroupRunner(
            run=open_runtime(variant, config, kind="CPU", device_id=0).run,
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


def similar_lengths(requests: Sequence[Tensors]) -> list[list[int]]:
    """Indices in groups of lengths within one power of two, short ones first: what can be done without a table of costs."""
    groups: dict[int, list[int]] = {}
    for index, inputs in enumerate(requests):
        groups.setdefault((inputs["INPUT_IDS"].shape[1] - 1).bit_length(), []).append(index)
    return [groups[key] for key in sorted(groups)]
