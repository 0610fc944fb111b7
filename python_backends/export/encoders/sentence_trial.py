"""Trial of sentence encoders (`recipe.Trial`): texts in padded batches, as served, against FP32 standard
operators without padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from python_backends.export.encoders.embedding import embed_by_length, embed_padded, embed_with_onnxruntime
from python_backends.export.encoders.evaluate import cosine_agreement, row_cosines, similarity_agreement
from python_backends.export.encoders.sentence_model import SentenceModel
from python_backends.export.encoders.texts import Pair, read_similarity, read_sts_benchmark
from python_backends.export.recipe import Agreement
from python_backends.runtime.execution import Array, Run, Tensors
from python_backends.runtime.model_config import ModelConfig, parse_model_config

INPUT_IDS, ATTENTION_MASK, EMBEDDING = "INPUT_IDS", "ATTENTION_MASK", "EMBEDDING"

# Enough neighbours that short texts are padded beside long ones.
BATCH_SIZE = 8

# Any token id that is neither special nor beyond the vocabulary; its meaning does not influence times.
ORDINARY_TOKEN = 2000


class SentenceTrial:
    """Trial on texts whose embeddings must not change (`sentences`, one per line), and pairs scored by people
    (`similarity`).
    """

    def __init__(
        self, model: SentenceModel, *, name: str, sentences: Path, similarity: Path, parameters: Mapping[str, str] | None = None
    ) -> None:
        """`parameters` are those of the served configuration that influence the speed of a run."""
        self._model, self._name, self._parameters = model, name, parameters or {}
        self._sentences, self._similarity = sentences, similarity
        self._references: dict[str, Array] = {}

    @cached_property
    def config(self) -> ModelConfig:
        """A configuration with the model's tensors and `parameters`, and defaults for everything else."""
        tensor = {"data_type": "TYPE_INT64", "dims": [-1]}
        embedding = {"name": EMBEDDING, "data_type": "TYPE_FP32", "dims": [self._model.configuration["hidden_size"]]}
        inputs = [{"name": INPUT_IDS, **tensor}, {"name": ATTENTION_MASK, **tensor}]
        parameters = {key: {"string_value": value} for key, value in self._parameters.items()}
        return parse_model_config(
            {"name": self._name, "max_batch_size": 64, "input": inputs, "output": [embedding], "parameters": parameters}
        )

    def inputs(self, batch: int, length: int) -> Tensors:
        """Make sentences of one length, without padding."""
        ones = np.ones((batch, length), dtype=np.int64)
        return {INPUT_IDS: ORDINARY_TOKEN * ones, ATTENTION_MASK: ones}

    def compare(self, run: Run) -> Agreement:
        """Measure the cosines of all texts, and the ranking of the pairs."""
        pairs = read_similarity(self._similarity)
        lines = [line for line in self._sentences.read_text().splitlines() if line]
        texts = list(dict.fromkeys([*lines, *_texts_of(pairs)]))
        embeddings = self._embed(run, texts)
        reference = self._reference(texts)
        return {
            "against_fp32": cosine_agreement(reference, embeddings),
            "similarity": _rank(pairs, dict(zip(texts, reference, strict=True)), dict(zip(texts, embeddings, strict=True))),
        }

    def benchmark(self, run: Run, path: Path) -> Mapping[str, float]:
        """Measure the ranking of the pairs of an STS benchmark file."""
        pairs = read_sts_benchmark(path)
        texts = _texts_of(pairs)
        reference = dict(zip(texts, self._reference(texts), strict=True))
        return _rank(pairs, reference, dict(zip(texts, self._embed(run, texts), strict=True)))

    def _embed(self, run: Run, texts: Sequence[str]) -> Array:
        def embed(input_ids: Array, attention_mask: Array) -> Array:
            (embedding,) = run([EMBEDDING], {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask})
            return embedding

        return embed_padded(embed, self._model.tokenize(texts), batch_size=BATCH_SIZE)

    def _reference(self, texts: Sequence[str]) -> Array:
        """Return FP32 embeddings; each text is computed once, however many variants are compared with it."""
        if missing := [text for text in texts if text not in self._references]:
            embed = embed_with_onnxruntime(self._model.onnx)
            embeddings = embed_by_length(embed, self._model.tokenize(missing), batch_size=BATCH_SIZE)
            self._references |= zip(missing, embeddings, strict=True)
        return np.stack([self._references[text] for text in texts])


def _texts_of(pairs: Sequence[Pair]) -> list[str]:
    return list(dict.fromkeys(text for pair in pairs for text in (pair.first, pair.second)))


def _rank(pairs: Sequence[Pair], reference: Mapping[str, Array], candidate: Mapping[str, Array]) -> Mapping[str, float]:
    def cosines(embeddings: Mapping[str, Array]) -> Array:
        return row_cosines(np.stack([embeddings[pair.first] for pair in pairs]), np.stack([embeddings[pair.second] for pair in pairs]))

    return similarity_agreement([pair.score for pair in pairs], cosines(reference), cosines(candidate))
