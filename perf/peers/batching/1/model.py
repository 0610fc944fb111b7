"""One batch of all that Triton hands over, padded to its longest or to `pad_to` tokens; the same runtime and files as `text_encoder`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from python_backends.batching.counts import Counts, Tally
from python_backends.batching.metrics import Metrics
from python_backends.runtime.execution import Answer, Array, GroupRunner, InferenceRequest, Tensors
from python_backends.runtime.machine import this_machine
from python_backends.runtime.model_config import parse_model_config
from python_backends.runtime.runtimes import open_runtime
from python_backends.runtime.triton import serve, version_directory
from python_backends.runtime.variants.variant import choose_variant
from python_backends.text_encoder.padding import pad_and_concatenate


class TritonPythonModel:
    """Encoder of token sequences."""

    def initialize(self, args: dict[str, str]) -> None:
        # Triton fills in "model.py" here, which is not the variant's file.
        config = replace(parse_model_config(json.loads(args["model_config"])), default_model_filename="")
        name = config.parameters["variant"]
        variant = choose_variant(version_directory(args), name, kind="CPU", machine_kind=this_machine("cpu").kind)
        self._pad_to = config.integer("pad_to", 0)
        self._tally = Tally()
        self._metrics = Metrics(self._tally, {"model": config.name, "version": args["model_version"], "variant": name})
        self._runner = GroupRunner(
            run=open_runtime(variant, config, kind="CPU", device_id=0).run,
            plan=lambda requests: [list(range(len(requests)))],
            assemble=self._assemble,
            output_names=["EMBEDDING"],
            scheduler_drops_cancelled=config.uses_dynamic_batching,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return serve(requests, self._encode)

    def _encode(self, requests: Sequence[InferenceRequest]) -> list[Answer]:
        self._count([request.inputs for request in requests])
        return self._runner.execute(requests)

    def _assemble(self, arrays: Sequence[Array]) -> Array:
        """Assemble a batch; with `pad_to` as if an array of that length and no rows were among them."""
        return pad_and_concatenate([*arrays, np.zeros((0, self._pad_to), arrays[0].dtype)] if self._pad_to else arrays)

    def _count(self, requests: Sequence[Tensors]) -> None:
        shapes = [inputs["INPUT_IDS"].shape for inputs in requests]
        rows = sum(batch for batch, _ in shapes)
        longest = max(self._pad_to, *(length for _, length in shapes))
        useful = sum(batch * length for batch, length in shapes)
        self._tally.add(Counts(batches=1, requests=len(requests), rows=rows, useful_tokens=useful, padded_tokens=rows * longest))
