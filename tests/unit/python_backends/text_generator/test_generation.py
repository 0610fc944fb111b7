"""Continuous batching on a model that counts: who is in which step, what each reader hears, and who leaves when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch

from python_backends.runtime.engines.causal_lm import CausalLM, Piece
from python_backends.runtime.errors import BackendError, ExecutionError, QueueFull, RequestCancelled
from python_backends.text_generator.counts import Counts
from python_backends.text_generator.generated_sequence import Written
from python_backends.text_generator.generation import Generator
from python_backends.text_generator.sampling_parameters import SamplingParameters
from python_backends.text_generator.scheduling import Limits

WAIT_S = 30.0
VOCABULARY, END = 200, 0
GREEDY = SamplingParameters(temperature=0, max_tokens=5)
LIMITS = Limits(max_sequences=3, kv_cache_tokens=1000, prefill_tokens=8)


class Counting(CausalLM):
    """The token after one is the next number; steps go on only while they may."""

    def __init__(self) -> None:
        self.steps: list[list[list[int]]] = []
        self.fails_at: int | None = None
        self._may_go_on = threading.Semaphore(0)
        self._is_free = threading.Event()
        self._is_free.set()

    def hold(self) -> None:
        self._is_free.clear()

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self._may_go_on.release()

    def release(self) -> None:
        self._is_free.set()
        self.step(10_000)

    def forward(self, pieces: Sequence[Piece]) -> torch.Tensor:
        if not self._is_free.is_set():
            assert self._may_go_on.acquire(timeout=WAIT_S)
        self.steps.append([[*piece.tokens] for piece in pieces])
        if any(self.fails_at in piece.tokens for piece in pieces):
            raise ExecutionError("the language model failed: memory is full")
        logits = torch.zeros(len(pieces), VOCABULARY)
        for row, piece in enumerate(pieces):
            assert piece.kept.length + len(piece.tokens) <= piece.kept.capacity
            piece.kept.length += len(piece.tokens)
            logits[row, piece.tokens[-1] + 1 if piece.tokens[-1] + 1 < VOCABULARY else END] = 1
        return logits


@dataclass
class Reading:
    """A reader that remembers."""

    is_gone: bool = False
    parts: list[Written] = field(default_factory=list)
    error: BackendError | None = None
    over: threading.Event = field(default_factory=threading.Event)
    heard: threading.Event = field(default_factory=threading.Event)

    def take(self, written: Written) -> None:
        self.parts.append(written)
        self.heard.set()
        if written.finish_reason:
            self.over.set()

    def fail(self, error: BackendError) -> None:
        self.error = error
        self.over.set()

    def whole(self) -> tuple[str, int, str]:
        assert self.over.wait(WAIT_S)
        assert self.error is None
        return "".join(part.text for part in self.parts), sum(part.tokens for part in self.parts), self.parts[-1].finish_reason


Start = Callable[..., Generator]


@pytest.fixture
def model() -> Counting:
    return Counting()


@pytest.fixture
def start(model: Counting) -> Iterator[Start]:
    started: list[Generator] = []

    def start_one(limits: Limits = LIMITS, max_waiting: int = 9) -> Generator:
        generator = Generator(model, decode, ends=[END], limits=limits, max_waiting=max_waiting, counts=Counts())
        started.append(generator)
        generator.start()
        return generator

    yield start_one
    model.release()
    for generator in started:
        generator.close()


def decode(tokens: Sequence[int]) -> str:
    return "".join(f"{token}," for token in tokens)


def test_tokens_come_one_by_one_and_the_last_says_why(start: Start) -> None:
    reading = Reading()
    start().submit([7], GREEDY, reading)

    assert reading.whole() == ("8,9,10,11,12,", 5, "length")
    assert [part.text for part in reading.parts] == ["8,", "9,", "10,", "11,", "12,"]


def test_a_token_that_ends_an_answer_ends_it_and_is_no_text(start: Start) -> None:
    ended, ignored = Reading(), Reading()
    generator = start()
    generator.submit([VOCABULARY - 2], GREEDY, ended)
    generator.submit([VOCABULARY - 2], SamplingParameters(temperature=0, max_tokens=4, ignore_eos=True), ignored)

    assert ended.whole() == (f"{VOCABULARY - 1},", 2, "stop")
    assert ignored.whole()[1:] == (4, "length")


def test_a_stop_string_ends_an_answer(start: Start) -> None:
    reading = Reading()
    start().submit([7], SamplingParameters(temperature=0, max_tokens=50, stop=("10,1",)), reading)

    assert reading.whole() == ("8,9,", 4, "stop")


def test_a_request_joins_and_leaves_between_two_tokens_of_another(start: Start, model: Counting) -> None:
    model.hold()
    generator, first, second = start(), Reading(), Reading()
    generator.submit([10], SamplingParameters(temperature=0, max_tokens=8), first)
    model.step(2)
    assert first.heard.wait(WAIT_S)
    generator.submit([100], SamplingParameters(temperature=0, max_tokens=2), second)
    model.release()

    assert (first.whole()[0], second.whole()[0]) == (decode(range(11, 19)), decode([101, 102]))
    together = [step for step in model.steps if len(step) == 2]
    assert len(together) == 2
    assert len(model.steps) == 8


def test_no_more_than_the_limits_at_once_and_the_others_after_them(start: Start, model: Counting) -> None:
    generator, readings = start(), [Reading() for _ in range(9)]
    for index, reading in enumerate(readings):
        generator.submit([10 * index + 1], GREEDY, reading)

    assert all(reading.whole()[1] == 5 for reading in readings)
    assert max(len(step) for step in model.steps) == LIMITS.max_sequences


def test_what_has_no_room_in_the_cache_waits_for_it(start: Start, model: Counting) -> None:
    generator, readings = start(Limits(max_sequences=3, kv_cache_tokens=12, prefill_tokens=8)), [Reading() for _ in range(3)]
    for reading in readings:
        generator.submit([1], GREEDY, reading)  # of 6 tokens each

    assert all(reading.whole()[1] == 5 for reading in readings)
    assert max(len(step) for step in model.steps) == 2


def test_too_many_that_wait_are_refused(start: Start, model: Counting) -> None:
    model.hold()
    generator, first = start(max_waiting=1), Reading()
    generator.submit([1], GREEDY, first)
    model.step()
    assert first.heard.wait(WAIT_S)
    for _ in range(LIMITS.max_sequences - 1):
        generator.submit([2], GREEDY, Reading())
        model.step()
        while generator.waiting:
            pass
    generator.submit([3], GREEDY, Reading())

    with pytest.raises(QueueFull, match="1 requests are waiting already: try again later"):
        generator.submit([4], GREEDY, Reading())


def test_long_prompts_never_keep_a_writer_from_its_next_token(start: Start, model: Counting) -> None:
    model.hold()
    generator, writer = start(), Reading()
    generator.submit([10], SamplingParameters(temperature=0, max_tokens=30), writer)
    model.step()
    assert writer.heard.wait(WAIT_S)
    long = [Reading(), Reading()]
    for reading in long:
        generator.submit([1] * 100, SamplingParameters(temperature=0, max_tokens=1), reading)
    model.release()

    assert writer.whole()[1] == 30
    assert all(reading.whole()[0] == "2," for reading in long)
    for step in model.steps[1:30]:
        assert [len(piece) for piece in step if piece[0] >= 10] == [1]
        assert sum(len(piece) for piece in step if piece[0] == 1) <= LIMITS.prefill_tokens
    # Alone, prompts are read in larger parts.
    assert max(sum(map(len, step)) for step in model.steps) > LIMITS.prefill_tokens + 1 or len(model.steps) <= 30


def test_whoever_has_left_loses_its_place_before_the_next_step(start: Start, model: Counting) -> None:
    model.hold()
    generator, gone, other = start(Limits(max_sequences=1, kv_cache_tokens=1000, prefill_tokens=8)), Reading(), Reading()
    generator.submit([10], SamplingParameters(temperature=0, max_tokens=100), gone)
    model.step()
    assert gone.heard.wait(WAIT_S)
    generator.submit([150], GREEDY, other)
    gone.is_gone = True
    model.release()

    assert other.whole()[1] == 5
    assert gone.over.wait(WAIT_S)
    assert isinstance(gone.error, RequestCancelled)
    # The step that was under way, and perhaps one that had begun with it.
    assert [step[0][0] for step in model.steps].index(150) <= 2


def test_whoever_leaves_while_it_waits_is_never_computed(start: Start, model: Counting) -> None:
    model.hold()
    generator, first = start(Limits(max_sequences=1, kv_cache_tokens=1000, prefill_tokens=8)), Reading()
    generator.submit([10], GREEDY, first)
    model.step()
    assert first.heard.wait(WAIT_S)
    gone = Reading(is_gone=True)
    generator.submit([150], GREEDY, gone)
    model.release()

    assert first.whole()[1] == 5
    assert gone.over.wait(WAIT_S)
    assert isinstance(gone.error, RequestCancelled)
    assert not any(150 in piece for step in model.steps for piece in step)


def test_a_step_that_fails_fails_who_was_in_it_and_nobody_else(start: Start, model: Counting) -> None:
    model.fails_at = 13
    generator, bad, later = start(), Reading(), Reading()
    generator.submit([10], GREEDY, bad)
    assert bad.over.wait(WAIT_S)
    generator.submit([20], GREEDY, later)

    assert isinstance(bad.error, ExecutionError)
    assert later.whole()[1] == 5


def test_an_answer_is_the_same_alone_and_beside_others_with_a_seed(start: Start) -> None:
    generator = start()
    parameters = SamplingParameters(temperature=50, max_tokens=20, seed=5, top_p=0.9, ignore_eos=True)
    alone = Reading()
    generator.submit([1, 2, 3], parameters, alone)
    expected = alone.whole()
    together = [Reading() for _ in range(3)]
    for reading in together:
        generator.submit([1, 2, 3], parameters, reading)

    assert [reading.whole() for reading in together] == [expected] * 3
    assert len(set(expected[0].split(","))) > 5


def test_closing_tells_whoever_still_waits(start: Start, model: Counting) -> None:
    model.hold()
    generator, running = start(), Reading()
    generator.submit([1], SamplingParameters(temperature=0, max_tokens=150), running)
    model.step(3)
    assert running.heard.wait(WAIT_S)
    closing = threading.Thread(target=generator.close)
    closing.start()
    while not generator.is_closed:
        pass
    model.release()
    closing.join(WAIT_S)

    assert running.error is not None
    assert all(first.tokens == second.tokens == 1 for first, second in pairwise(running.parts))
