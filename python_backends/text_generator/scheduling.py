"""Scheduler of continuous batching: who joins the batch, and who computes how many tokens in its next step.

Pure; `generation.py` asks before each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a batch.

    `kv_cache_tokens` is shared by all sequences, each of which reserves its prompt and the longest answer that it may have
    when it joins: one that has joined is never thrown out. `prefill_tokens` bounds the prompt tokens of a step in which
    others write, so it bounds how long those wait for their next token.
    """

    max_sequences: int
    kv_cache_tokens: int
    prefill_tokens: int


NOBODY_WRITES = 4
"""Factor of `prefill_tokens` in a step in which nobody writes."""


def joining(waiting: Sequence[int], *, sequences: int, reserved: int, limits: Limits) -> int:
    """Return how many of the waiting requests join now, in the order in which they came.

    `waiting` are their reservations in tokens. The first one that has no room keeps its place: nobody overtakes it, so it
    joins as soon as enough others have ended.
    """
    count = 0
    for tokens in waiting:
        if sequences + count >= limits.max_sequences or reserved + tokens > limits.kv_cache_tokens:
            break
        reserved += tokens
        count += 1
    return count


def prompt_shares(unread: Sequence[int], *, writing: int, limits: Limits) -> list[int]:
    """Return how many tokens of each prompt are read in the next step; `unread` are what remains of them, oldest first.

    `writing` sequences get their next token in the same step, always. The prompt with the least left may take half, so
    that a short one does not wait for long ones before it; the oldest take the rest, so that each is read to its end.
    """
    budget = limits.prefill_tokens * (1 if writing else NOBODY_WRITES)
    shares = [0] * len(unread)
    if not unread:
        return shares
    shortest = min(range(len(unread)), key=lambda index: (unread[index], index))
    shares[shortest] = min(unread[shortest], budget if len(unread) == 1 else budget // 2)
    budget -= shares[shortest]
    for index, tokens in enumerate(unread):
        more = min(tokens - shares[index], budget)
        shares[index] += more
        budget -= more
    return shares
