"""Choosing tokens: what temperature, top-k, top-p, penalties and seeds mean."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from python_backends.text_generator.sampling import Draw, sample
from python_backends.text_generator.sampling_parameters import SamplingParameters

LOGITS = torch.tensor([[0.0, 1.0, 3.0, 2.0, -1.0]])


def draw(prompt: tuple[int, ...] = (), ends: tuple[int, ...] = (), **parameters: Any) -> Draw:
    return Draw(SamplingParameters(**parameters), prompt, ends)


def many(drawn: Draw, logits: torch.Tensor = LOGITS, count: int = 400) -> Counter[int]:
    return Counter(sample(logits, [drawn])[0] for _ in range(count))


def test_without_temperature_it_is_the_likeliest() -> None:
    assert many(draw(temperature=0), count=3) == {2: 3}


def test_top_k_leaves_the_likeliest_in() -> None:
    assert many(draw(top_k=2, seed=1)).keys() == {2, 3}


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        pytest.param(0.1, {2}, id="one-at-least"),
        pytest.param(0.65, {2, 3}, id="as-many-as-it-takes"),
        pytest.param(0.95, {1, 2, 3}, id="three"),
    ],
)
def test_top_p_leaves_in_what_reaches_it(top_p: float, expected: set[int]) -> None:
    # Chances: 0.03, 0.09, 0.64, 0.23, 0.01.
    assert many(draw(top_p=top_p, seed=1)).keys() == expected


def test_top_p_finds_what_is_far_down_in_a_large_vocabulary() -> None:
    falling = torch.linspace(1, 0, 5000).unsqueeze(0)

    assert max(many(draw(top_p=0.99, seed=1), falling, count=50)) > 4000


def test_chances_are_those_of_the_softmax() -> None:
    counted = many(draw(seed=3), count=4000)

    for token, chance in enumerate(LOGITS[0].softmax(0).tolist()):
        assert counted[token] / 4000 == pytest.approx(chance, abs=0.03)


def test_a_seed_says_everything_and_no_seed_nothing() -> None:
    flat = torch.zeros(1, 1000)

    def ten(**parameters: Any) -> list[int]:
        drawn = draw(**parameters)
        return [sample(flat, [drawn])[0] for _ in range(10)]

    assert ten(seed=7) == ten(seed=7)
    assert ten(seed=7) != ten(seed=8)
    assert ten() != ten()


def test_rows_do_not_see_each_other() -> None:
    logits = torch.cat([LOGITS, -LOGITS, LOGITS])
    draws = [draw(temperature=0), draw(temperature=0, repetition_penalty=2.0), draw(top_k=1)]

    assert sample(logits, draws) == [2, 4, 2]
    assert torch.equal(logits, torch.cat([LOGITS, -LOGITS, LOGITS]))


def test_penalties_are_of_what_was_written_and_repetition_also_of_the_prompt() -> None:
    repeated = draw(prompt=(2,), temperature=0, repetition_penalty=2.0)
    assert [sample(LOGITS, [repeated])[0] for _ in range(2)] == [3, 2]

    present = draw(prompt=(2,), temperature=0, presence_penalty=1.5)
    assert [sample(LOGITS, [present])[0] for _ in range(3)] == [2, 3, 2]

    frequent = draw(temperature=0, frequency_penalty=0.6)
    assert [sample(LOGITS, [frequent])[0] for _ in range(4)] == [2, 2, 3, 2]


def test_an_answer_does_not_end_before_its_least_tokens() -> None:
    drawn = draw(ends=(2,), temperature=0, min_tokens=2)

    assert [sample(LOGITS, [drawn])[0] for _ in range(3)] == [3, 3, 2]
