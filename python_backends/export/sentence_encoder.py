"""A BERT sentence encoder in PyTorch, and the same as ONNX: pooling and normalisation are part of the graph.

Mean of the last hidden states over the attention mask, then L2 normalisation, as sentence-transformers does for models whose modules.json
says Transformer, Pooling (mean), Normalize. The library itself is not needed for that.
"""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import numpy as np
import onnxruntime as ort
import torch
from safetensors.torch import load
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from python_backends.export.agreement import Embed
from python_backends.export.recipe import BuildError
from python_backends.runtime.execution import Array

SOURCE = Path(__file__)

INPUT_IDS, ATTENTION_MASK, EMBEDDING = "INPUT_IDS", "ATTENTION_MASK", "EMBEDDING"

# In published checkpoints, but not part of what is computed here.
UNUSED_WEIGHTS = {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}


class SentenceEncoder(nn.Module):
    """Token ids and attention mask INT64 [batch, length] -> unit vectors FP32 [batch, hidden size]."""

    def __init__(self, bert: BertModel) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode; a position whose mask is 0 has no influence."""
        hidden = self.bert(
            input_ids=input_ids,
            attention_mask=attention_mask,
            # One segment always: baked in, so that callers need not send zeros.
            token_type_ids=torch.zeros_like(input_ids),
        ).last_hidden_state
        # The sum points where the mean does, and the length is lost to normalisation.
        total = (attention_mask.unsqueeze(1).to(hidden.dtype) @ hidden).squeeze(1)
        # 1e-12 guards against an empty mask, as `nn.functional.normalize` does, but without its copies of the divisor.
        return total / total.norm(dim=1, keepdim=True).clamp(min=1e-12)


def load_sentence_encoder(safetensors: bytes, config: bytes) -> SentenceEncoder:
    """The encoder in eval mode.

    Raises:
        BuildError: The weights do not belong to the configuration.
    """
    # Plain matrix products instead of a fused attention operator: what ONNX optimizers and quantizers know how to handle.
    bert = BertModel(BertConfig(**json.loads(config), attn_implementation="eager"), add_pooling_layer=False)
    keys = bert.load_state_dict(load(safetensors), strict=False)
    if keys.missing_keys or set(keys.unexpected_keys) - UNUSED_WEIGHTS:
        raise BuildError(f"the weights do not fit the model: missing {keys.missing_keys}, unexpected {keys.unexpected_keys}")
    encoder = SentenceEncoder(bert)
    encoder.eval()
    return encoder


def export_to_onnx(encoder: SentenceEncoder, *, opset: int) -> bytes:
    """The encoder as an ONNX file: inputs INPUT_IDS and ATTENTION_MASK [batch, length], output EMBEDDING [batch, hidden size]."""
    # Two rows of different lengths, lest the tracer take the mask for a constant.
    attention_mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]])
    input_ids = 2000 * attention_mask
    file = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        # The exporter that `dynamo=False` selects is deprecated, and comments on Python branches that are the same for every input here.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            encoder,
            (input_ids, attention_mask),
            file,
            dynamo=False,
            opset_version=opset,
            input_names=[INPUT_IDS, ATTENTION_MASK],
            output_names=[EMBEDDING],
            dynamic_axes={
                INPUT_IDS: {0: "batch", 1: "length"},
                ATTENTION_MASK: {0: "batch", 1: "length"},
                EMBEDDING: {0: "batch"},
            },
        )
    return file.getvalue()


def embed_with_torch(encoder: SentenceEncoder) -> Embed:
    """The encoder as a function of NumPy arrays."""

    def embed(input_ids: Array, attention_mask: Array) -> Array:
        with torch.no_grad():
            embedding: Tensor = encoder(torch.from_numpy(input_ids), torch.from_numpy(attention_mask))
        return np.asarray(embedding)

    return embed


def embed_with_onnxruntime(model: bytes) -> Embed:
    """An ONNX file from `export_to_onnx` as a function of NumPy arrays."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])

    def embed(input_ids: Array, attention_mask: Array) -> Array:
        (embedding,) = session.run([EMBEDDING], {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask})
        return np.asarray(embedding)

    return embed
