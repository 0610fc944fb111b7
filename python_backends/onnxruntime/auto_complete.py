"""Complete a model configuration from the ONNX file, as the native backend does.

Follows `AutoCompleteConfig`, `AutoCompleteMaxBatch` and `AutoCompleteIO` in onnxruntime_backend r24.10:
nothing is touched where inputs and outputs are both configured; a list that is configured in part is left for
`check_signature` to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.signature import Signature, TensorSignature

# The native backend's default for `--backend-config=onnxruntime,default-max-batch-size`; a Python-based
# backend is not told of that option.
DEFAULT_MAX_BATCH_SIZE = 4


def is_complete(config: Mapping[str, Any]) -> bool:
    """Whether the configuration is complete, so that the ONNX file need not be read."""
    return bool(config["input"] and config["output"])


def complete(config: Mapping[str, Any], signature: Signature) -> dict[str, Any]:
    """Return a copy of Triton's configuration, with missing batching, inputs and outputs filled in.

    Raises:
        ConfigError: max_batch_size is set but an input or output of the file has no dynamic first dimension.
    """
    completed = dict(config)
    if signature.is_batchable:
        completed["max_batch_size"] = config["max_batch_size"] or DEFAULT_MAX_BATCH_SIZE
    elif config["max_batch_size"]:
        raise ConfigError(
            f"autofill failed for model '{config['name']}': model does not support batching while non-zero max_batch_size is specified"
        )
    if completed["max_batch_size"] > 1 and "sequence_batching" not in config:
        completed.setdefault("dynamic_batching", {})
    for key, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        if not config[key]:
            completed[key] = [_describe(tensor, has_batch=completed["max_batch_size"] > 0) for tensor in tensors]
    return completed


def _describe(tensor: TensorSignature, *, has_batch: bool) -> dict[str, Any]:
    dims = list(tensor.shape[1:] if has_batch else tensor.shape)
    description: dict[str, Any] = {"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]}
    if has_batch and not dims:
        # A configuration cannot have empty dims: clients send [batch, 1], the model gets [batch].
        description["reshape"] = {"shape": []}
    return description
