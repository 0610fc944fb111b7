"""A language model of random weights and two hundred words, written without PyTorch, which takes seconds to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{number}" for number in range(200)]


def save_language_model(folder: Path, *, hidden_size: int, layers: int, longest: int = 128) -> Path:
    """Write a Llama in FP32, four times as wide between its layers, as a folder that `text_generator` serves; texts have
    `longest` tokens at most."""
    width = 4 * hidden_size
    shape: dict[str, Any] = {"hidden_size": hidden_size, "intermediate_size": width, "num_hidden_layers": layers}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8}
    kind = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32"}
    texts = {"vocab_size": len(WORDS), "max_position_embeddings": longest, "bos_token_id": 0, "eos_token_id": 1}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(kind | shape | heads | texts))
    save_file(_weights(hidden_size, width, layers), folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[2]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def _weights(hidden_size: int, width: int, layers: int) -> dict[str, np.ndarray[Any, Any]]:
    drawn = np.random.default_rng(3)

    def matrix(rows: int, columns: int) -> np.ndarray[Any, Any]:
        return drawn.normal(0.0, 0.02, (rows, columns)).astype(np.float32)

    one = np.ones(hidden_size, np.float32)
    weights = {f"{name}.weight": matrix(len(WORDS), hidden_size) for name in ("model.embed_tokens", "lm_head")} | {"model.norm.weight": one}
    for number in range(layers):
        layer = f"model.layers.{number}"
        weights |= {f"{layer}.self_attn.{each}_proj.weight": matrix(hidden_size, hidden_size) for each in "qkvo"}
        weights |= {f"{layer}.mlp.{each}_proj.weight": matrix(width, hidden_size) for each in ("gate", "up")}
        weights |= {f"{layer}.mlp.down_proj.weight": matrix(hidden_size, width)}
        weights |= {f"{layer}.{each}_layernorm.weight": one for each in ("input", "post_attention")}
    return weights
