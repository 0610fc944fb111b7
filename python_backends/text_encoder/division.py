"""Division of requests whose texts differ in length: their rows are computed in several batches, each as long as its
longest row, as if they had come in requests of their own.

Padded to its longest row, a request of 63 sentences and one page would cost as much as 64 pages; and so would sentences
that their client has padded to the length of a page, which are cut back here.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from python_backends.batching.batch_queue import Waiter
from python_backends.batching.plan import CostColumns, Item, plan_batches
from python_backends.runtime.errors import BackendError
from python_backends.runtime.execution import Answer, Array, InferenceRequest, Tensors
from python_backends.text_encoder.encoder import EncoderRequest, to_waiter
from python_backends.text_tokenizer.token_count import MASK

_WORTH_DIVIDING = 0.8
"""Requests are divided whose parts cost at most this part of the whole: each further batch costs copies and a turn of a
lane, which the latency table does not tell."""


@dataclass(frozen=True, slots=True)
class Divided:
    """A request with what waits for batches in its place: itself, or its parts, which answer it once all of them are
    answered."""

    request: EncoderRequest
    waiters: Sequence[Waiter[EncoderRequest]]

    @property
    def rows(self) -> int:
        return sum(waiter.rows for waiter in self.waiters)


def divide(plain: InferenceRequest, columns: CostColumns, now_s: float) -> Divided:
    """Divide a request into parts of about equal lengths, or cut it back to one, if that costs less by the latency table."""
    request, parts = EncoderRequest(plain), _parts(plain.inputs, columns)
    if not parts:
        return Divided(request, [to_waiter(request, now_s)])
    gathering = _Gathering(request, [rows for rows, _ in parts])
    waiters = []
    for number, (rows, length) in enumerate(parts):
        part = EncoderRequest(replace(plain, inputs={name: array[rows, :length] for name, array in plain.inputs.items()}))
        part.send = partial(gathering.put, number)
        waiters.append(to_waiter(part, now_s))
    return Divided(request, waiters)


def _parts(inputs: Tensors, columns: CostColumns) -> list[tuple[Array, int]]:
    """Return the rows of each part and their longest length; none where that gains nothing over the request as it is."""
    mask = inputs.get(MASK)
    if mask is None or (len(mask) == 1 and mask[0, -1]):  # most are one text without padding
        return []
    rows, longest = mask.shape
    lengths = _lengths(mask)
    if lengths.sum() > _WORTH_DIVIDING * rows * longest:
        return []
    different, counts = np.unique(lengths, return_counts=True)
    items = [Item(count, length) for length, count in zip(different.tolist(), counts.tolist(), strict=True)]
    parts, cost_ms = [], 0.0
    for start, end in plan_batches(items, columns):
        last = items[end - 1].length
        parts.append((np.flatnonzero((lengths >= items[start].length) & (lengths <= last)), last))
        cost_ms += columns(last)[len(parts[-1][0])]
    return parts if cost_ms <= _WORTH_DIVIDING * columns(longest)[rows] else []


def _lengths(mask: Array) -> Array:
    """Return each row's length up to the last position that its mask shows; of a row without any the whole."""
    return np.asarray(mask.shape[1] - np.argmax(mask[:, ::-1] != 0, axis=1))


class _Gathering:
    """The answers to the parts of one request, of which the last one that comes has the whole sent; thread-safe."""

    def __init__(self, request: EncoderRequest, rows: Sequence[Array]) -> None:
        """`rows` are the places of each part's rows in the request."""
        self._request = request
        self._rows = rows
        self._answers: list[Answer | None] = [None] * len(rows)
        self._missing = len(rows)
        self._lock = threading.Lock()

    def put(self, number: int, answer: Answer) -> None:
        """Take the answer to a part; if it is the last, answer the request."""
        with self._lock:
            self._answers[number] = answer
            self._missing -= 1
            is_last = not self._missing
        if is_last:
            self._request.answer(self._whole())

    def _whole(self) -> Answer:
        tensors = list[Tensors]()
        for answer in self._answers:
            if isinstance(answer, BackendError):
                return answer
            assert answer is not None, "a part is missing"
            tensors.append(answer)
        places = np.argsort(np.concatenate(self._rows))
        return {name: np.concatenate([each[name] for each in tensors])[places] for name in tensors[0]}
