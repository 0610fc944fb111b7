"""A published BERT sentence encoder, read once however many variants of it are built in one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from python_backends.export.weights import WheelFile

if TYPE_CHECKING:
    # PyTorch and transformers take seconds to import: what is up to date must not cost them.
    from python_backends.export.sentence_encoder import SentenceEncoder


class SentenceModel:
    """Its files, and what is made of them when it is first asked for; texts longer than `max_tokens` are cut."""

    def __init__(self, *, weights: WheelFile, config: WheelFile, tokenizer: WheelFile, max_tokens: int, opset: int) -> None:
        self._weights, self._config, self._tokenizer_file = weights, config, tokenizer
        self._max_tokens, self._opset = max_tokens, opset

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """In PyTorch, FP32: the reference. Raises BuildError: the files are missing or not the ones expected."""
        from python_backends.export.sentence_encoder import load_sentence_encoder

        return load_sentence_encoder(self._weights.read(), self._config.read())

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """The published config.json. Raises BuildError as `encoder`."""
        configuration: dict[str, Any] = json.loads(self._config.read())
        return configuration

    @cached_property
    def onnx(self) -> bytes:
        """As exported, in operators of the ONNX standard."""
        from python_backends.export.sentence_encoder import export_to_onnx

        return export_to_onnx(self.encoder, opset=self._opset)

    @cached_property
    def fused_onnx(self) -> bytes:
        """With the operators that ONNX Runtime alone knows."""
        from python_backends.export.fuse import fuse_bert

        return fuse_bert(self.onnx, heads=self.configuration["num_attention_heads"], hidden_size=self.configuration["hidden_size"])

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, special tokens included."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._tokenizer_file.read().decode())
        tokenizer.no_padding()
        tokenizer.enable_truncation(self._max_tokens)
        return tokenizer
