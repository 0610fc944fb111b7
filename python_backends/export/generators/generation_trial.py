"""Trial of language models (`recipe.Trial`): how well a variant foretells texts, beside fp32 as transformers itself computes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.export.recipe import Agreement
from python_backends.runtime.execution import Array, Run, Tensors
from python_backends.runtime.model_config import ModelConfig, parse_model_config

INPUT_IDS, LOGITS, NEXT_LOGITS = "INPUT_IDS", "LOGITS", "NEXT_LOGITS"

# Any token id that is neither special nor beyond the vocabulary; its meaning does not influence times.
ORDINARY_TOKEN = 2000


@dataclass(frozen=True, slots=True)
class GenerationGate:
    """Accuracy gate of a variant against FP32: how much less likely it finds the texts, and how often the likeliest next
    token is the same.
    """

    perplexity_increase_at_most: float
    top1_agreement_at_least: float

    def shortfall(self, agreement: Agreement) -> str | None:
        """Return by how much the measurements miss the gate; None if they pass. NaN does not pass."""
        increase, same = agreement["perplexity"]["increase"], agreement["against_fp32"]["top1_agreement"]
        if not increase <= self.perplexity_increase_at_most:
            return f"its perplexity is {increase:.2%} above fp32's, more than {self.perplexity_increase_at_most:.2%}"
        if not same >= self.top1_agreement_at_least:
            return f"its likeliest token is fp32's in {same:.2%} of all places, less than {self.top1_agreement_at_least:.2%}"
        return None


class GenerationTrial:
    """Trial on the first `count` lines of a file of texts; `load_reference` returns transformers' own model in FP32."""

    def __init__(self, load_reference: Callable[[], Any], tokenizer: Callable[[], Any], *, texts: Path, count: int) -> None:
        self._load_reference, self._tokenizer = load_reference, tokenizer
        self._texts, self._count = texts, count

    @cached_property
    def config(self) -> ModelConfig:
        """A configuration with the tensors by which the runtime is measured."""
        inputs = [{"name": INPUT_IDS, "data_type": "TYPE_INT64", "dims": [-1]}]
        outputs = [{"name": NEXT_LOGITS, "data_type": "TYPE_FP32", "dims": [-1]}]
        return parse_model_config({"name": "language_model", "max_batch_size": 64, "input": inputs, "output": outputs})

    def inputs(self, batch: int, length: int) -> Tensors:
        """Make prompts of one length."""
        return {INPUT_IDS: np.full((batch, length), ORDINARY_TOKEN, dtype=np.int64)}

    def compare(self, run: Run) -> Agreement:
        """Measure the perplexity of the texts, and in how many places the likeliest next token is the same."""
        loss, reference_loss, same, places = 0.0, 0.0, 0, 0
        for tokens, (least, likeliest) in zip(self._tokens, self._reference, strict=True):
            (logits,) = run([LOGITS], {INPUT_IDS: np.array([tokens])})
            losses, best = _losses(logits[0], tokens)
            loss, reference_loss = loss + float(losses.sum()), reference_loss + float(least.sum())
            same, places = same + int((best == likeliest).sum()), places + len(best)
        perplexity, reference = float(np.exp(loss / places)), float(np.exp(reference_loss / places))
        return {
            "against_fp32": {"top1_agreement": round(same / places, 5), "places": places},
            "perplexity": {
                "perplexity": round(perplexity, 4),
                "perplexity_fp32": round(reference, 4),
                "increase": round(perplexity / reference - 1, 5),
            },
        }

    @cached_property
    def _tokens(self) -> Sequence[Sequence[int]]:
        tokenizer = self._tokenizer()
        lines = [line for line in self._texts.read_text().splitlines() if line][: self._count]
        return [tokenizer.encode(line).ids for line in lines]

    @cached_property
    def _reference(self) -> Sequence[tuple[Array, Array]]:
        import torch

        model = self._load_reference()
        with torch.inference_mode():
            return [_losses(model(torch.tensor([[*tokens]])).logits[0].numpy(), tokens) for tokens in self._tokens]


def _losses(logits: Array, tokens: Sequence[int]) -> tuple[Array, Array]:
    """Return, for each token but the first, its negative log likelihood, and the token that was likeliest."""
    before, after = logits[:-1].astype(np.float64), np.array(tokens[1:])
    highest = before.max(axis=1)
    totals = highest + np.log(np.exp(before - highest[:, None]).sum(axis=1))
    return totals - before[np.arange(len(after)), after], before.argmax(axis=1)
