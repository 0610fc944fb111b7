"""Causal language models of `transformers` (Llama class), for sequences that are at different places of their texts.

A forward pass takes the next tokens of several sequences one after the other, without padding: one token of a sequence that
writes, a part of a prompt of one that is read. Everything but attention works on single tokens and so on all of them at once;
attention is computed per sequence, on keys and values that the sequence keeps. That is a function registered with
transformers' attention interface; the model's own code is transformers', unchanged.

`text_generator` calls it, and recipes through `open_model`, the common interface of the runtimes.
"""

from __future__ import annotations

import ctypes
import json
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM

from python_backends.runtime.engines.cpu import THREADS_PARAMETER, usable_cpu_count
from python_backends.runtime.engines.divided_outputs import divide_outputs
from python_backends.runtime.engines.half_weights import halve_linear, is_available
from python_backends.runtime.errors import ConfigError, ExecutionError, RequestError
from python_backends.runtime.execution import Array, Tensors
from python_backends.runtime.machine import computes_bfloat16
from python_backends.runtime.model_config import ModelConfig
from python_backends.runtime.signature import Signature, TensorSignature
from python_backends.runtime.streaming.streamed_layers import CudaDevice, stream_layers

ATTENTION = "tidegate_ragged"

WEIGHTS_KEY = "tidegate_weights"
"""Key of a folder's config.json which says how a recipe wants its weights to be computed with."""

AS_STORED = "auto"
PRECISIONS = (AS_STORED, "fp32", "fp16", "bf16")


class KeyValues:
    """Keys and values of one sequence, with room for `capacity` tokens; `length` of them are filled."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def extended(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Add [heads, tokens, size] behind what is there; return all of the layer's as [1, heads, length + tokens, size]."""
        if layer not in self._layers:
            self._layers[layer] = self._room(key), self._room(value)
        keys, values = self._layers[layer]
        end = self.length + key.shape[1]
        keys[:, self.length : end] = key
        values[:, self.length : end] = value
        return keys[None, :, :end], values[None, :, :end]

    def _room(self, like: torch.Tensor) -> torch.Tensor:
        return like.new_empty((like.shape[0], self.capacity, like.shape[2]))


@dataclass(slots=True)
class Piece:
    """The next tokens of a sequence, and what it keeps."""

    tokens: Sequence[int]
    kept: KeyValues
    mask: torch.Tensor | None = None


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _mask: Any, *, pieces: Sequence[Piece], **more: Any
) -> tuple[torch.Tensor, None]:
    """Compute attention [1, heads, tokens, size] -> [1, tokens, heads, size], each piece on its own sequence."""
    if more.get("softcap"):
        raise ExecutionError("models that cap attention scores are not supported")
    attended, at = [], 0
    for piece in pieces:
        end = at + len(piece.tokens)
        keys, values = piece.kept.extended(module.layer_idx, key[0, :, at:end], value[0, :, at:end])
        attended.append(
            functional.scaled_dot_product_attention(
                query[:, :, at:end],
                keys,
                values,
                attn_mask=piece.mask,
                is_causal=piece.mask is None and end - at > 1,
                scale=more.get("scaling"),
                enable_gqa=query.shape[1] != keys.shape[1],
            )
        )
        at = end
    whole = attended[0] if len(attended) == 1 else torch.cat(attended, dim=2)
    return whole.transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attend)
AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)


class CausalLM:
    """A loaded model on one device."""

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device
        config = model.config
        window = getattr(config, "sliding_window", None) or config.max_position_embeddings
        self.context = min(config.max_position_embeddings, window)
        """Tokens of prompt and answer together, at most; where a model attends to a window only, those that it never leaves."""
        self.vocabulary = int(config.vocab_size)

    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        """Compute the pieces; return the logits [pieces, vocabulary] FP32 after the last token of each.

        Raises:
            ExecutionError: The model failed, for example because memory is full; what the pieces keep is of no use then.
        """
        ends = np.cumsum([len(piece.tokens) for piece in pieces]) - 1
        return self._compute(pieces, torch.from_numpy(ends).to(self._device))

    def all_logits(self, piece: Piece) -> torch.Tensor:
        """Compute one piece; return the logits [tokens, vocabulary] FP32 after each of its tokens. Raises as `forward`."""
        return self._compute([piece], 0)

    def _compute(self, pieces: Sequence[Piece], keep: torch.Tensor | int) -> torch.Tensor:
        tokens: list[int] = []
        positions: list[int] = []
        for piece in pieces:
            count, past = len(piece.tokens), piece.kept.length
            tokens += piece.tokens
            positions += range(past, past + count)
            if count > 1 and past:
                piece.mask = torch.ones(count, past + count, dtype=torch.bool, device=self._device).tril(past)
        try:
            with torch.inference_mode():
                output = self._model(
                    input_ids=torch.tensor([tokens], device=self._device),
                    position_ids=torch.tensor([positions], device=self._device),
                    use_cache=False,
                    logits_to_keep=keep,
                    pieces=pieces,
                )
                logits: torch.Tensor = output.logits[0].float()
        except (RuntimeError, MemoryError, IndexError) as exc:
            raise ExecutionError(f"the language model failed: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}") from exc
        for piece in pieces:
            piece.kept.length += len(piece.tokens)
        return logits


def load_causal_lm(
    folder: Path,
    *,
    weights: str = AS_STORED,
    kind: str,
    device_id: int,
    threads: int | None = None,
    weight_memory_bytes: int | None = None,
) -> CausalLM:
    """Load a model from a folder with config.json and safetensors; no code of the folder is run, nothing is downloaded.

    `weights` is one of `PRECISIONS`. On a CPU "fp16" is of linear layers' weights only, all else is FP32. Without a word
    the model is computed as it is stored on a GPU, and in FP32 on a CPU, unless that multiplies bfloat16 itself. On a GPU
    `weight_memory_bytes` bounds the weights that are there at a time.

    Raises:
        ConfigError: The folder is no model that can be served here; the text says why.
    """
    if weights not in PRECISIONS:
        raise ConfigError(f"parameter 'weights' must be one of {', '.join(PRECISIONS)}, not '{weights}'")
    document = _config_of(folder)
    precision = document.get(WEIGHTS_KEY, weights) if weights == AS_STORED else weights
    device = _cuda(device_id) if kind == "GPU" else _cpu(precision, threads)
    model = _read(folder, _dtype(precision, document, device))
    if not type(model)._supports_attention_backend:
        raise ConfigError(
            f"{type(model).__name__} cannot be served here: it does not use transformers' attention interface, "
            "by which sequences of different lengths share a batch"
        )
    model.eval().requires_grad_(False)
    if precision == "fp16" and device.type == "cpu":
        halve_linear(model)
        with suppress(OSError, AttributeError):  # not glibc's: nothing to do
            ctypes.CDLL(None).malloc_trim(0)  # it keeps the FP32 weights' pages otherwise, twice what is left
    elif device.type == "cpu" and model.dtype == torch.float32:
        divide_outputs(model)
    elif device.type == "cuda" and weight_memory_bytes is not None:
        stream_layers(model, decoder_layers(model), weight_memory_bytes, CudaDevice(device))
    return CausalLM(model.to(device), device)


def _config_of(folder: Path) -> dict[str, Any]:
    try:
        document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as exc:
        raise ConfigError(
            f"'{folder}' has no config.json that can be read ({exc}): it must be a folder that transformers can load"
        ) from exc
    return document


def _cuda(device_id: int) -> torch.device:
    if not torch.cuda.is_available():
        raise ConfigError("instance_group asks for a GPU, but PyTorch here has no CUDA: install its CUDA build or use KIND_CPU")
    return torch.device("cuda", device_id)


def _cpu(precision: str, threads: int | None) -> torch.device:
    """Return the CPU, on which PyTorch computes with so many threads from now on."""
    if precision == "fp16" and not is_available():
        raise ConfigError("weights 'fp16' need a CPU with AVX2: take 'fp32'")
    torch.set_num_threads(threads or usable_cpu_count())
    return torch.device("cpu")


def _read(folder: Path, dtype: torch.dtype) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return AutoModelForCausalLM.from_pretrained(
                str(folder),
                dtype=dtype,
                attn_implementation=ATTENTION,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
            )
    except (OSError, ValueError, RuntimeError, KeyError, ImportError) as exc:
        raise ConfigError(f"transformers cannot load '{folder}': {(str(exc) or type(exc).__name__).splitlines()[0]}") from exc


def _dtype(asked: str, document: dict[str, Any], device: torch.device) -> torch.dtype:
    if asked == AS_STORED:
        stored = document.get("dtype") or document.get("torch_dtype")
        if device.type == "cpu" and not (stored == "bfloat16" and computes_bfloat16()):
            return torch.float32
        return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(str(stored), torch.float32)
    if asked == "fp16" and device.type == "cpu":
        return torch.float32  # in which its linear layers compute; only their weights have half of it
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(asked, torch.float32)


def decoder_layers(model: Any) -> Sequence[torch.nn.Module]:
    """Return a model's layers in the order in which they compute. Raises ConfigError: it has no list of them."""
    count = model.config.num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return [*module]
    raise ConfigError(f"weights cannot be streamed: {type(model).__name__} has no list of its {count} layers")


class CausalLMRuntime:
    """A model behind the common interface of the runtimes, by which recipes measure it: INPUT_IDS [batch, length] INT64 to
    NEXT_LOGITS [batch, vocabulary] or LOGITS [batch, length, vocabulary] FP32.
    """

    def __init__(self, model: CausalLM) -> None:
        self._model = model
        self.signature = Signature(
            (TensorSignature("INPUT_IDS", "TYPE_INT64", (-1, -1)),), (TensorSignature("NEXT_LOGITS", "TYPE_FP32", (-1, model.vocabulary)),)
        )

    def run(self, output_names: Sequence[str], inputs: Tensors) -> Sequence[Array]:
        """See `Runtime.run`."""
        rows = inputs["INPUT_IDS"].tolist()
        if max(len(row) for row in rows) > self._model.context:
            raise RequestError(f"INPUT_IDS are longer than the model's context of {self._model.context} tokens")
        pieces = [Piece(row, KeyValues(len(row))) for row in rows]
        if "LOGITS" in output_names:
            logits = torch.stack([self._model.all_logits(piece) for piece in pieces])
        else:
            logits = self._model.forward(pieces)
        return [logits.cpu().numpy()]

    def close(self) -> None:
        """See `Runtime.close`."""
        del self._model


def open_model(file: Path, config: ModelConfig, *, kind: str, device_id: int) -> CausalLMRuntime:
    """Open the folder of a variant's weights. Raises ConfigError as `load_causal_lm`."""
    threads = config.integer(THREADS_PARAMETER, 0)
    return CausalLMRuntime(load_causal_lm(file.parent, kind=kind, device_id=device_id, threads=threads or None))
