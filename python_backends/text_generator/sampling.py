"""Next tokens from logits: penalties, temperature, top-k, top-p, and a random number of the request's own generator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from python_backends.text_generator.sampling_parameters import SamplingParameters

_LIKELIEST = 1024
"""Tokens in which `top_p` is looked for first: sorting a whole vocabulary takes milliseconds, and it is rarely further down."""


@dataclass(slots=True)
class Draw:
    """What the choice of a request's tokens depends on; `ends` are the tokens that end an answer."""

    parameters: SamplingParameters
    prompt: Sequence[int]
    ends: Collection[int]
    written: Counter[int] = field(default_factory=Counter)
    """How often each token has been chosen."""
    generator: torch.Generator | None = None

    @property
    def count(self) -> int:
        """Number of tokens chosen so far."""
        return self.written.total()

    @property
    def must_go_on(self) -> bool:
        """Whether the answer must not end with the next token."""
        return self.count < self.parameters.min_tokens

    @property
    def is_plain(self) -> bool:
        """Whether the next token is simply the likeliest."""
        return self.parameters.is_greedy and not self.parameters.has_penalties and not self.must_go_on


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Choose a token for each row of `logits` [rows, vocabulary] FP32, and count it in its draw."""
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    for index, draw in enumerate(draws):
        if not draw.is_plain:
            chosen[index] = _drawn(logits[index].clone(), draw)
        draw.written[chosen[index]] += 1
    return chosen


def _drawn(row: torch.Tensor, draw: Draw) -> int:
    parameters = draw.parameters
    if draw.must_go_on and draw.ends:
        row[[*draw.ends]] = -torch.inf
    if parameters.has_penalties:
        _penalize(row, draw)
    if parameters.is_greedy:
        return int(row.argmax())
    chances, ids = _chances(row / parameters.temperature, parameters)
    if draw.generator is None:
        draw.generator = torch.Generator(device=row.device)
        draw.generator.seed() if parameters.seed is None else draw.generator.manual_seed(parameters.seed)
    index = int(torch.multinomial(chances, 1, generator=draw.generator))
    return index if ids is None else int(ids[index])


def _chances(row: torch.Tensor, parameters: SamplingParameters) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the chances of the tokens that stay, and which those are; None for all of them in their own order."""
    if 0 < parameters.top_k < len(row):
        values, ids = row.topk(parameters.top_k)
        chances = values.softmax(dim=-1)
    elif parameters.top_p < 1:
        total = row.logsumexp(dim=-1)
        values, ids = row.topk(min(_LIKELIEST, len(row)))
        if float((values - total).exp().sum()) < parameters.top_p:
            values, ids = row.sort(descending=True)
        chances = (values - total).exp()
    else:
        return row.softmax(dim=-1), None
    # The token with which the sum reaches top_p is the last that stays.
    chances[chances.cumsum(dim=-1) - chances >= parameters.top_p] = 0
    return chances, ids


def _penalize(row: torch.Tensor, draw: Draw) -> None:
    parameters = draw.parameters
    if parameters.repetition_penalty != 1:
        seen = torch.tensor([*{*draw.prompt, *draw.written}], device=row.device, dtype=torch.long)
        values = row[seen]
        row[seen] = torch.where(values > 0, values / parameters.repetition_penalty, values * parameters.repetition_penalty)
    if draw.written and (parameters.presence_penalty or parameters.frequency_penalty):
        ids = torch.tensor([*draw.written], device=row.device)
        counts = torch.tensor([*draw.written.values()], device=row.device, dtype=row.dtype)
        row[ids] -= parameters.presence_penalty + parameters.frequency_penalty * counts
