"""Configurations of sharded models, as Triton tells them."""

from __future__ import annotations

import json
from typing import Any

Maps = tuple[str, dict[str, str], dict[str, str]]


def config(*steps: Maps, inputs: str = "X", outputs: str = "Y", dims: tuple[int, ...] = (-1,), max_batch_size: int = 8, **more: Any) -> str:
    """An ensemble `whole` of FP32 tensors, each named by one letter; a step is its model, inputs and outputs."""

    def tensors(names: str) -> list[dict[str, Any]]:
        return [{"name": name, "data_type": "TYPE_FP32", "dims": list(dims), **more.get(name, {})} for name in names]

    scheduled = [{"model_name": model, "model_version": -1, "input_map": given, "output_map": gives} for model, given, gives in steps]
    said = {"name": "whole", "max_batch_size": max_batch_size, "input": tensors(inputs), "output": tensors(outputs)}
    return json.dumps({**said, "ensemble_scheduling": {"step": scheduled}})


CHAIN = config(("back", {"h": "H"}, {"y": "Y"}), ("front", {"x": "X"}, {"h": "H"}))
"""Two parts, the second of which is written first."""
