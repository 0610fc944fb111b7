"""Files of a published BERT sentence encoder, read once however many variants are built in one run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from python_backends.export.encoders.weights import WheelFile
from python_backends.runtime.execution import Array

if TYPE_CHECKING:
    # They take seconds to import, and PyTorch need not be here: what is up to date must not cost them.
    from python_backends.export.encoders.bert_graph import BertShape
    from python_backends.export.encoders.sentence_encoder import SentenceEncoder


class SentenceModel:
    """Published sentence encoder: its files, and graphs and weights made of them on first use.

    Texts longer than `max_tokens` are cut. Every method that reads a file raises BuildError if the file is
    missing or has another checksum.
    """

    def __init__(self, *, weights: WheelFile, config: WheelFile, tokenizer: WheelFile, max_tokens: int) -> None:
        self._weights_file, self._config, self._tokenizer_file = weights, config, tokenizer
        self._max_tokens = max_tokens

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """The published config.json."""
        configuration: dict[str, Any] = json.loads(self._config.read())
        return configuration

    @cached_property
    def weights(self) -> dict[str, Array]:
        """Weights by their names in the checkpoint."""
        from safetensors.numpy import load

        weights: dict[str, Array] = load(self._weights_bytes)
        return weights

    @cached_property
    def shape(self) -> BertShape:
        """Sizes of the model's graph."""
        from python_backends.export.encoders.bert_graph import BertShape

        return BertShape.of(self.configuration)

    @cached_property
    def onnx(self) -> bytes:
        """The model in operators of the ONNX standard: the reference for every other form."""
        return self.graph(self.weights, fused=False)

    @cached_property
    def fused_onnx(self) -> bytes:
        """The model with ONNX Runtime's own fused operators."""
        return self.graph(self.weights, fused=True)

    def graph(self, weights: dict[str, Array], *, fused: bool) -> bytes:
        """Write weights of this model's shape, or narrower ones, as an ONNX file."""
        from python_backends.export.encoders.bert_graph import bert_graph

        return bert_graph(weights, self.shape, fused=fused)

    @cached_property
    def encoder(self) -> SentenceEncoder:
        """The model in PyTorch, FP32."""
        from python_backends.export.encoders.sentence_encoder import load_sentence_encoder

        return load_sentence_encoder(self._weights_bytes, self._config.read())

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text, special tokens included."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(list(texts))]

    @cached_property
    def _weights_bytes(self) -> bytes:
        return self._weights_file.read()

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_str(self._tokenizer_file.read().decode())
        tokenizer.no_padding()
        tokenizer.enable_truncation(self._max_tokens)
        return tokenizer
