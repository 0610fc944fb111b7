"""A language model of random weights and two hundred words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

WORDS = [f"w{number}" for number in range(200)]


def save_language_model(folder: Path, *, hidden_size: int, layers: int) -> Path:
    """Write a Llama in FP32, four times as wide between its layers, as a folder that `text_generator` serves."""
    shape: dict[str, Any] = {"hidden_size": hidden_size, "intermediate_size": 4 * hidden_size, "num_hidden_layers": layers}
    heads: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8}
    config = transformers.LlamaConfig(vocab_size=len(WORDS), max_position_embeddings=128, bos_token_id=0, eos_token_id=1, **shape, **heads)
    torch.manual_seed(3)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
