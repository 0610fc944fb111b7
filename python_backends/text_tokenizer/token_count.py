"""The output `TOKENS` INT32 [batch, 1]: each text's number of tokens after truncation, special tokens
included, on request.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from python_backends.runtime.errors import ConfigError
from python_backends.runtime.execution import Answer, InferenceRequest, Tensors
from python_backends.runtime.model_config import ModelConfig

TOKENS = "TOKENS"
MASK = "ATTENTION_MASK"


def without_count(config: ModelConfig) -> ModelConfig:
    """Return `config` without the output `TOKENS`, which is computed here and not by the model's file.

    Raises:
        ConfigError: `TOKENS` is not INT32 [1], or there is no mask to count by.
    """
    count = next((tensor for tensor in config.outputs if tensor.name == TOKENS), None)
    if count is None:
        return config
    if (count.data_type, count.dims) != ("TYPE_INT32", (1,)):
        raise ConfigError(f"model '{config.name}': output '{TOKENS}' is counted here, and must be a TYPE_INT32 of dims [ 1 ]")
    if all(tensor.name != MASK for tensor in config.inputs):
        raise ConfigError(f"model '{config.name}': output '{TOKENS}' is counted by the input '{MASK}', which the configuration lacks")
    return replace(config, outputs=tuple(tensor for tensor in config.outputs if tensor is not count))


def with_count(answer: Answer, request: InferenceRequest, tokens: Tensors) -> Answer:
    """Add `TOKENS`, counted by the mask in `tokens`, to an answer if the request asks for it and did not
    fail.
    """
    if TOKENS not in request.requested_output_names or not isinstance(answer, dict):
        return answer
    return {**answer, TOKENS: tokens[MASK].sum(axis=1, keepdims=True, dtype=np.int32)}
