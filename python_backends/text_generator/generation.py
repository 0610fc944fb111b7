"""The loop of continuous batching: a thread that computes step after step while there are requests.

In each step every sequence that writes gets its next token and prompts are read in parts (`scheduling`). A request that is
cancelled, fails or ends leaves before the next step, in which another one may have its place. A failed step fails the
requests that were in it, and no others.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence

from python_backends.runtime.engines.causal_lm import CausalLM
from python_backends.runtime.errors import BackendError, ExecutionError, QueueFull, RequestCancelled, Unavailable
from python_backends.text_generator.counts import Counts
from python_backends.text_generator.generated_sequence import GeneratedSequence, Reader
from python_backends.text_generator.sampling import Draw, sample
from python_backends.text_generator.sampling_parameters import SamplingParameters
from python_backends.text_generator.scheduling import Limits, joining, prompt_shares
from python_backends.text_generator.text_stream import Decode, TextStream

LOGGER = logging.getLogger(__name__)


class Generator:
    """Continuous batching on one model, until `close`."""

    def __init__(self, model: CausalLM, decode: Decode, *, ends: Collection[int], limits: Limits, max_waiting: int, counts: Counts) -> None:
        self._model = model
        self._decode = decode
        self._ends = frozenset(ends)
        self._limits = limits
        self._max_waiting = max_waiting
        self._counts = counts
        self._waiting: deque[GeneratedSequence] = deque()
        self._running: list[GeneratedSequence] = []
        self._changed = threading.Condition()
        self._closed = False
        self.after_step: Callable[[], None] = lambda: None
        """Called after each step, in the loop's thread; it may wait until parts of answers are on their way."""
        self._thread = threading.Thread(target=self._serve, name="generation", daemon=True)

    @property
    def waiting(self) -> int:
        """Number of requests that have no place yet."""
        return len(self._waiting)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def start(self) -> None:
        """Begin to compute."""
        self._thread.start()

    def submit(self, prompt: Sequence[int], parameters: SamplingParameters, reader: Reader) -> None:
        """Queue a prompt of at least one token, which with its answer is no longer than the cache and the model's context.

        Raises:
            QueueFull: Too many wait already.
        """
        draw = Draw(parameters, prompt, self._ends)
        stream = TextStream(self._decode, parameters.stop, prompt)
        sequence = GeneratedSequence(prompt, parameters, reader, draw, stream)
        with self._changed:
            if len(self._waiting) >= self._max_waiting:
                raise QueueFull(f"{self._max_waiting} requests are waiting already: try again later")
            self._waiting.append(sequence)
            self._changed.notify()

    def close(self) -> None:
        """End the loop; requests that are not answered by then get an error."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while self._has_work():
            try:
                self._step()
            except Exception as exc:
                LOGGER.exception("a step of generation failed")
                self._fail(self._running, ExecutionError(f"generation failed: {exc}"))
                self._running = []
            self._counts.observe(running=len(self._running), waiting=len(self._waiting), cached=self._reserved())
            self.after_step()
        self._fail([*self._running, *self._waiting], Unavailable("the model is being unloaded"))
        self.after_step()

    def _has_work(self) -> bool:
        """Wait for requests; return False once closed."""
        with self._changed:
            while not (self._closed or self._waiting or self._running):
                self._changed.wait()
            return not self._closed

    def _step(self) -> None:
        self._admit()
        if not self._running:
            return
        reading = [sequence for sequence in self._running if sequence.unread]
        writing = [sequence for sequence in self._running if not sequence.unread]
        shares = prompt_shares([sequence.unread for sequence in reading], writing=len(writing), limits=self._limits)
        taking = [(sequence, share) for sequence, share in zip(reading, shares, strict=True) if share]
        pieces = [*(sequence.piece(1) for sequence in writing), *(sequence.piece(share) for sequence, share in taking)]
        computed = [*writing, *(sequence for sequence, _ in taking)]
        try:
            logits = self._model.forward(pieces)
        except ExecutionError as exc:
            self._fail(computed, exc)
            self._leave(computed)
            return
        self._counts.add(steps=1, prompt_tokens=sum(share for _, share in taking))
        whole = [index for index, sequence in enumerate(computed) if not sequence.unread]
        if whole:
            self._write([computed[index] for index in whole], sample(logits[whole], [computed[index].draw for index in whole]))

    def _write(self, sequences: Sequence[GeneratedSequence], tokens: Sequence[int]) -> None:
        self._counts.add(tokens=len(tokens))
        self._leave([sequence for sequence, token in zip(sequences, tokens, strict=True) if sequence.write(token, self._ends)])

    def _admit(self) -> None:
        """Let those leave for whom nobody waits, and let others have their places."""
        gone = [sequence for sequence in [*self._running, *self._waiting] if sequence.reader.is_gone]
        self._fail(gone, RequestCancelled("the request was cancelled by its client"))
        self._counts.add(cancelled=len(gone))
        self._leave(gone)
        with self._changed:
            for sequence in gone:
                if sequence in self._waiting:
                    self._waiting.remove(sequence)
            count = joining(
                [sequence.reserved for sequence in self._waiting],
                sequences=len(self._running),
                reserved=self._reserved(),
                limits=self._limits,
            )
            self._running += [self._waiting.popleft() for _ in range(count)]

    def _reserved(self) -> int:
        return sum(sequence.reserved for sequence in self._running)

    def _leave(self, sequences: Collection[GeneratedSequence]) -> None:
        left = {id(sequence) for sequence in sequences}
        self._running = [sequence for sequence in self._running if id(sequence) not in left]

    def _fail(self, sequences: Collection[GeneratedSequence], error: BackendError) -> None:
        for sequence in sequences:
            sequence.reader.fail(error)
