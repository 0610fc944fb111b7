"""Model configurations as Triton hands them to a backend: complete JSON, every default spelt out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from python_backends.runtime.model_config import ModelConfig, parse_model_config


def tensor(name: str, data_type: str = "TYPE_FP32", dims: Sequence[int] = (2,), **more: Any) -> dict[str, Any]:
    """An entry of `input` or `output`."""
    return {"name": name, "data_type": data_type, "dims": list(dims), **more}


def config_json(**changes: Any) -> dict[str, Any]:
    """Make the JSON that Triton 24.10 sends for a model with only a name configured, plus `changes`."""
    return {
        "name": "m",
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "max_batch_size": 0,
        "input": [],
        "output": [],
        "batch_input": [],
        "batch_output": [],
        "optimization": {"priority": "PRIORITY_DEFAULT", "eager_batching": False},
        "instance_group": [{"name": "m_0", "kind": "KIND_CPU", "count": 1, "gpus": []}],
        "default_model_filename": "model.onnx",
        "parameters": {},
        **changes,
    }


def config(**changes: Any) -> ModelConfig:
    """Parse the same JSON into a `ModelConfig`."""
    return parse_model_config(config_json(**changes))


def parameters(**values: str) -> Mapping[str, Mapping[str, str]]:
    """`parameters` in Triton's form."""
    return {key: {"string_value": value} for key, value in values.items()}
