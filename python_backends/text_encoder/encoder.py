"""Computes batches of token sequences: drops cancelled requests, pads to one length, and isolates requests
that fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.counts import Tally, of_batch
from python_backends.runtime.errors import RequestCancelled
from python_backends.runtime.execution import Answer, GroupRunner, InferenceRequest, Run, Tensors
from python_backends.text_encoder.padding import pad_and_concatenate
from python_backends.text_tokenizer.token_count import TOKENS, with_count

# Age from which a request is checked for cancellation. The check is a round trip to the server (110 us
# measured); the gateway cancels no request in its first 50 ms, and few other clients give up that soon.
CANCELLATION_CHECK_AFTER_S = 0.05


class EncoderRequest:
    """A request with the function that sends its answer."""

    __slots__ = ("plain", "send")

    def __init__(self, plain: InferenceRequest) -> None:
        self.plain = plain
        # Set only if the request is answered later, from a lane's thread, or is part of another one.
        self.send: Callable[[Answer], None] | None = None

    def answer(self, answer: Answer) -> None:
        """Send the answer; call it once."""
        assert self.send is not None, "the request has no sender"
        self.send(answer)


class Encoder:
    """Computes batches with a runtime's `run`, and counts them in a tally."""

    def __init__(self, run: Run, output_names: Sequence[str], tally: Tally) -> None:
        self._tally = tally
        computed = [name for name in output_names if name != TOKENS]
        self._runner = GroupRunner(
            run=run, plan=_together, assemble=pad_and_concatenate, output_names=computed, scheduler_drops_cancelled=True
        )

    def compute(self, batch: Batch[EncoderRequest]) -> list[Answer]:
        """Return an answer per request of the batch, in its order."""
        began_s = time.monotonic()
        gone = {waiter for waiter in batch.waiters if self._has_left(waiter, began_s)}
        here = Batch([waiter for waiter in batch.waiters if waiter not in gone], batch.cost_ms)
        asked = [waiter.request.plain for waiter in here.waiters]
        answers = iter([with_count(answer, plain, plain.inputs) for plain, answer in zip(asked, self._runner.execute(asked), strict=True)])
        if here.waiters:
            self._tally.add(of_batch(here, began_s=began_s, ended_s=time.monotonic()))
        left = RequestCancelled("the request was cancelled by its client")
        return [left if waiter in gone else next(answers) for waiter in batch.waiters]

    @staticmethod
    def _has_left(waiter: Waiter[EncoderRequest], now_s: float) -> bool:
        return now_s - waiter.since_s > CANCELLATION_CHECK_AFTER_S and waiter.request.plain.is_cancelled()


def to_waiter(request: EncoderRequest, now_s: float) -> Waiter[EncoderRequest]:
    """Wrap a request for the batch queue, with its rows and length."""
    rows, length = next(iter(request.plain.inputs.values())).shape
    return Waiter(request, rows, length, now_s)


def _together(requests: Sequence[Tensors]) -> list[list[int]]:
    # One group: the batch queue has already planned which requests run together.
    return [list(range(len(requests)))] if requests else []
