from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.objects.domain.rollout import Agreement
from control_plane.rollout.domain.agreement import KINDS, PairJudge, Tensor


def fp32(*values: Any) -> Tensor:
    return np.array(values, np.float32)


def texts(*values: str) -> Tensor:
    held = np.empty(len(values), object)
    held[:] = [value.encode() for value in values]
    return held


def agree(kind: str, stable: Tensor, candidate: Tensor, **how: Any) -> bool | None:
    return PairJudge(Agreement(kind, **how)).agree({"Y": stable}, {"Y": candidate})


NAN = float("nan")


@pytest.mark.parametrize(
    ("kind", "stable", "candidate", "verdict"),
    [
        pytest.param("exact", fp32(1, NAN), fp32(1, NAN), True, id="exact: equal, NaN too"),
        pytest.param("exact", fp32(1, 2), fp32(1, 2.0000002), False, id="exact: the last bit"),
        pytest.param("exact", fp32(1), np.array([1], np.int64), False, id="exact: another type"),
        pytest.param("exact", fp32(1, 1), fp32(1), False, id="exact: another shape"),
        pytest.param("exact", texts("a"), texts("a"), True, id="exact: texts"),
        pytest.param("exact", texts("a"), texts("b"), False, id="exact: other texts"),
        pytest.param("tolerance", fp32(1, 1000), fp32(1.0005, 1000.5), True, id="tolerance: absolute and relative"),
        pytest.param("tolerance", fp32(1, 2), fp32(1, 2.01), False, id="tolerance: beyond"),
        pytest.param("tolerance", fp32(NAN), fp32(0), False, id="tolerance: a number for none"),
        pytest.param("tolerance", fp32(1), texts("1"), False, id="tolerance: a text"),
        pytest.param("classes", fp32([0.1, 0.9], [0.6, 0.4]), fp32([0.4, 0.6], [0.9, 0.1]), True, id="classes: other scores"),
        pytest.param("classes", fp32([0.1, 0.9], [0.6, 0.4]), fp32([0.4, 0.6], [0.4, 0.6]), False, id="classes: one row"),
        pytest.param("classes", texts("cat"), texts("dog"), False, id="classes: their names"),
        pytest.param("classes", np.array([3]), np.array([3]), True, id="classes: their numbers"),
        pytest.param("same-space", fp32([3, 4]), fp32([30, 40]), True, id="same space: another length"),
        pytest.param("same-space", fp32([3, 4]), fp32([4, 3]), False, id="same space: turned"),
        pytest.param("same-space", fp32([3, 4]), fp32([0, 0]), False, id="same space: nothing"),
        pytest.param("same-space", fp32([3, 4]), fp32([3, NAN]), False, id="same space: no number"),
        pytest.param("same-space", fp32([3, 4]), fp32([3, 4, 0]), False, id="same space: more dimensions"),
        pytest.param("edit-distance", texts("the quick brown fox"), texts("the quick brown fix"), True, id="edits: one of nineteen"),
        pytest.param("edit-distance", texts("the quick brown fox"), texts("a slow brown dog"), False, id="edits: many"),
        pytest.param("edit-distance", texts("", ""), texts("", ""), True, id="edits: nothing"),
    ],
)
def test_when_two_answers_agree(kind: str, stable: Tensor, candidate: Tensor, verdict: bool) -> None:
    assert agree(kind, stable, candidate) is verdict


@pytest.mark.parametrize("kind", KINDS)
def test_equal_answers_agree_and_a_missing_tensor_does_not(kind: str) -> None:
    same = texts("a", "b") if kind == "edit-distance" else fp32([1, 2], [3, 4])
    assert agree(kind, same, same) is (None if kind == "another-space" else True)
    assert PairJudge(Agreement(kind)).agree({"Y": same}, {}) is False
    assert PairJudge(Agreement(kind, "Z")).agree({"Y": same}, {"Y": same}) is None, "stable has none of that name"


def test_one_output_is_compared_where_it_is_named_else_all() -> None:
    stable, candidate = {"Y": fp32(1), "Z": fp32(1)}, {"Y": fp32(1), "Z": fp32(2)}
    assert PairJudge(Agreement("exact", "Y")).agree(stable, candidate) is True
    assert PairJudge(Agreement("exact")).agree(stable, candidate) is False


def test_a_limit_of_ones_own() -> None:
    assert agree("same-space", fp32([3, 4]), fp32([4, 3]), limit=0.9) is True


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match="there is no agreement 'alike'; there are exact, tolerance, "):
        PairJudge(Agreement("alike"))


# Embeddings: texts of some topics, as models would place them


class Corpus:
    """Texts of 40 topics, some alike, with places that a model of so many dimensions gives them."""

    def __init__(self, seed: int = 1) -> None:
        self._drawn = np.random.default_rng(seed)
        self.topics = self._drawn.normal(size=(40, 24)) @ self._drawn.normal(size=(24, 24))
        self.meanings = [self.topics[self._drawn.integers(40)] + 0.8 * self._drawn.normal(size=24) for _ in range(600)]

    def space(self, dimensions: int, *, seed: int, blur: float = 0.0) -> list[Tensor]:
        """What a model makes of the texts' meanings: a projection of its own, with what it gets wrong."""
        drawn = np.random.default_rng(seed)
        projection = drawn.normal(size=(24, dimensions)) / np.sqrt(dimensions)
        placed = [np.tanh(0.3 * meaning @ projection) for meaning in self.meanings]
        return [(row + blur * drawn.normal(size=dimensions) / np.sqrt(dimensions)).astype(np.float32)[None] for row in placed]


CORPUS = Corpus()
STABLE = CORPUS.space(64, seed=10)


def rotated(space: list[Tensor]) -> list[Tensor]:
    size = space[0].shape[-1]
    turn, _ = np.linalg.qr(np.random.default_rng(5).normal(size=(size, size)))
    return [(row @ turn).astype(np.float32) for row in space]


def differing(kind: str, candidate: list[Tensor]) -> float:
    """The part of the answers that differ, of those that can be judged."""
    judge = PairJudge(Agreement(kind))
    verdicts = [judge.agree({"E": one}, {"E": other}) for one, other in zip(STABLE, candidate, strict=True)]
    told = [verdict for verdict in verdicts if verdict is not None]
    assert len(told) > 400
    return told.count(False) / len(told)


@pytest.mark.parametrize(
    ("candidate", "same_space", "another_space"),
    [
        pytest.param(STABLE, 0.0, 0.0, id="the same model"),
        pytest.param([row + np.float32(1e-3) for row in STABLE], 0.0, 0.0, id="rounded otherwise"),
        pytest.param(rotated(STABLE), 1.0, 0.0, id="rotated"),
        pytest.param([-row for row in STABLE], 1.0, 0.0, id="mirrored"),
        pytest.param(CORPUS.space(128, seed=11), 1.0, 0.03, id="a new space of more dimensions"),
        pytest.param(CORPUS.space(48, seed=12, blur=0.1), 1.0, 0.03, id="a new space of fewer dimensions"),
    ],
)
def test_what_is_good_in_which_space(candidate: list[Tensor], same_space: float, another_space: float) -> None:
    """A new embedding space does not roll back a good model, nor does a rotated one pass as the same."""
    assert differing("same-space", candidate) == pytest.approx(same_space, abs=0.005)
    assert differing("another-space", candidate) <= another_space


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(list(np.random.default_rng(3).normal(size=(600, 1, 64)).astype(np.float32)), id="noise"),
        pytest.param([STABLE[0]] * 600, id="the same for all texts"),
        pytest.param([*STABLE[1:], STABLE[0]], id="another text's"),
        pytest.param([np.full((1, 64), np.nan, np.float32)] * 600, id="no numbers"),
    ],
)
def test_what_is_wrong_in_any_space(candidate: list[Tensor]) -> None:
    assert differing("same-space", candidate) > 0.9
    assert differing("another-space", candidate) > 0.7


def test_a_part_of_texts_that_went_wrong_shows_as_that_part() -> None:
    drawn = random.Random(4)
    broken = [np.zeros_like(row) if drawn.random() < 0.2 else row for row in STABLE]
    assert differing("another-space", broken) == pytest.approx(0.2, abs=0.06)
    assert differing("same-space", broken) == pytest.approx(0.2, abs=0.06)


def test_of_a_batch_one_row_is_looked_at_each_time_the_next() -> None:
    judge = PairJudge(Agreement("same-space"))
    stable, candidate = fp32([1, 0], [1, 0], [1, 0]), fp32([1, 0], [0, 1], [1, 0])
    assert [judge.agree({"E": stable}, {"E": candidate}) for _ in range(6)] == [True, False, True, True, False, True]


def test_a_text_of_the_sample_says_nothing_about_itself() -> None:
    judge = PairJudge(Agreement("another-space"))
    assert [judge.agree({"E": STABLE[0]}, {"E": STABLE[0]}) for _ in range(300)] == [None] * 300
