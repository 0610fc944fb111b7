"""Exports a sentence encoder as a PyTorch program, `model.pt2`, which runs without transformers and without
this package.

Batch and length stay dynamic. The same file serves on a CPU and on a GPU, where
`runtime/engines/torch_runtime.py` moves it on loading.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from python_backends.export.encoders.bert_graph import ATTENTION_MASK, EMBEDDING, INPUT_IDS
from python_backends.export.encoders.sentence_encoder import SentenceEncoder
from python_backends.export.recipe import BuildError
from python_backends.runtime.interface import Interface, TensorSpec, write_interface

FILENAME = "model.pt2"

# Name of a file inside the archive; its content is the `torch_mode` to use where a configuration names none.
MODE_ENTRY = "torch_mode"

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def export_program(encoder: SentenceEncoder, directory: Path, *, precision: str, mode: str = "") -> Path:
    """Write the encoder and its interface into `directory`; the encoder itself is left as it is.

    `precision` is that of weights and products, "fp32" or "bf16"; pooling and the output are FP32 in both. `mode` is the `torch_mode` to
    serve it in where a configuration names none, "" for the device's own default.

    Raises:
        BuildError: PyTorch cannot turn the encoder into a program.
    """
    if precision not in PRECISIONS:
        raise BuildError(f"unknown precision '{precision}', known are: {', '.join(PRECISIONS)}")
    path = directory / FILENAME
    try:
        program = _program(_prepared(encoder, PRECISIONS[precision]), longest=encoder.bert.config.max_position_embeddings)
    except Exception as exc:
        # torch.export raises errors of many kinds, none of them in common.
        raise BuildError(f"PyTorch {torch.__version__} cannot export the encoder: {exc}") from exc
    torch.export.save(program, path, extra_files={MODE_ENTRY: mode})
    write_interface(interface_of(encoder.bert.config), directory)
    return path


def interface_of(config: Any) -> Interface:
    """Return the inputs and outputs of an encoder with this BERT configuration."""
    return Interface(
        inputs=(
            TensorSpec(INPUT_IDS, "TYPE_INT64", ("batch", "length"), below=config.vocab_size),
            TensorSpec(ATTENTION_MASK, "TYPE_INT64", ("batch", "length")),
        ),
        outputs=(TensorSpec(EMBEDDING, "TYPE_FP32", ("batch", config.hidden_size)),),
        maximum={"length": config.max_position_embeddings},
    )


def missing_for_gpu() -> str | None:
    """Say what this machine lacks to build and measure a variant for a GPU; None if nothing."""
    if torch.cuda.is_available():
        return None
    return f"it needs an NVIDIA GPU and a CUDA build of PyTorch (this is {torch.__version__})"


class _Bert(nn.Module):
    """BERT with weights of one precision and hidden states in FP32: pooling in half precision would lose more
    than BERT itself does."""

    def __init__(self, bert: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.bert = bert.to(dtype)

    def forward(self, **inputs: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.bert(**inputs).last_hidden_state.float())


def _prepared(encoder: SentenceEncoder, dtype: torch.dtype) -> SentenceEncoder:
    prepared = copy.deepcopy(encoder)
    # One operator instead of four: less memory traffic on a CPU, a fused kernel on a GPU.
    prepared.bert.set_attn_implementation("sdpa")
    prepared.bert = _Bert(prepared.bert, dtype)
    return prepared


def _program(encoder: SentenceEncoder, *, longest: int) -> torch.export.ExportedProgram:
    # Two rows of different lengths, lest the tracer take the mask for a constant, and ids of their own, lest it take both for one input.
    attention_mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]])
    dims = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("length", min=1, max=longest)}
    with torch.no_grad():
        return torch.export.export(encoder, (2 * attention_mask, attention_mask), dynamic_shapes=(dims, dims), strict=False)
