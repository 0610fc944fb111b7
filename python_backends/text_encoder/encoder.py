"""Computes batches of token sequences: drops requests that were cancelled or have expired, pads to one length,
and isolates requests that fail.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from python_backends.batching.batch_queue import Batch, Waiter
from python_backends.batching.counts import Counts, Tally, of_batch
from python_backends.runtime.errors import BackendError, RequestCancelled, RequestExpired
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
        gone = {waiter: error for waiter in batch.waiters if (error := self._why_not(waiter, began_s)) is not None}
        here = Batch([waiter for waiter in batch.waiters if waiter not in gone], batch.cost_ms)
        asked = [waiter.request.plain for waiter in here.waiters]
        answers = iter([with_count(answer, plain, plain.inputs) for plain, answer in zip(asked, self._runner.execute(asked), strict=True)])
        if here.waiters:
            self._tally.add(of_batch(here, began_s=began_s, ended_s=time.monotonic()))
        if gone:
            expired = sum(isinstance(error, RequestExpired) for error in gone.values())
            self._tally.add(Counts(cancelled=len(gone) - expired, expired=expired))
        return [gone.get(waiter) or next(answers) for waiter in batch.waiters]

    @staticmethod
    def _why_not(waiter: Waiter[EncoderRequest], now_s: float) -> BackendError | None:
        """Return why a request is not computed: nobody waits for its answer any more; else None."""
        if waiter.has_expired(now_s):
            return RequestExpired("Request timeout expired")  # Triton's own words, which the gateway knows
        if now_s - waiter.since_s > CANCELLATION_CHECK_AFTER_S and waiter.request.plain.is_cancelled():
            return RequestCancelled("the request was cancelled by its client")
        return None


def to_waiter(request: EncoderRequest, now_s: float) -> Waiter[EncoderRequest]:
    """Wrap a request that came at `now_s` for the batch queue, with its rows and length."""
    rows, length = next(iter(request.plain.inputs.values())).shape
    return Waiter(request, rows, length, now_s, now_s + request.plain.time_left_s)


def _together(requests: Sequence[Tensors]) -> list[list[int]]:
    # One group: the batch queue has already planned which requests run together.
    return [list(range(len(requests)))] if requests else []
