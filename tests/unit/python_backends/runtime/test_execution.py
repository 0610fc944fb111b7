"""Planning, assembling, running and splitting: on random requests, and for what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.runtime.errors import BackendError, ExecutionError, RequestCancelled, RequestError
from python_backends.runtime.execution import (
    Answer,
    Array,
    GroupRunner,
    InferenceRequest,
    Plan,
    Tensors,
    concatenate,
    group_by_shape,
    one_by_one,
    split,
)

SHAPES = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=12)


def all_together(requests: Sequence[Tensors]) -> list[list[int]]:
    return [list(range(len(requests)))]


def request(array: Array, *, outputs: Sequence[str] = ("DOUBLE", "NEGATIVE"), cancelled: bool = False) -> InferenceRequest:
    return InferenceRequest({"X": array}, outputs, lambda: cancelled)


def rows(batch: int, length: int, *, first: int = 0) -> Array:
    return np.arange(first, first + batch * length, dtype=np.float32).reshape(batch, length)


@dataclass
class Model:
    """DOUBLE = 2 X and NEGATIVE = -X, remembering what it ran; it fails on an X that contains `poison`."""

    poison: float = -1.0
    runs: list[tuple[list[str], tuple[int, ...]]] = field(default_factory=list)

    def run(self, names: Sequence[str], inputs: Tensors) -> list[Array]:
        x = inputs["X"]
        self.runs.append((list(names), x.shape))
        if (x == self.poison).any():
            raise RequestError("poisoned")
        return [{"DOUBLE": 2 * x, "NEGATIVE": -x}[name] for name in names]

    def runner(self, plan: Plan = group_by_shape, **changes: Any) -> GroupRunner:
        settings: dict[str, Any] = {"output_names": ("DOUBLE", "NEGATIVE"), "scheduler_drops_cancelled": True, **changes}
        return GroupRunner(run=self.run, plan=plan, assemble=concatenate, **settings)


def values(answer: Answer) -> dict[str, list[Any]]:
    assert not isinstance(answer, BackendError), answer
    return {name: array.tolist() for name, array in answer.items()}


@given(SHAPES)
def test_each_request_gets_its_own_rows_back_and_each_shape_runs_once(shapes: list[tuple[int, int]]) -> None:
    model = Model()
    arrays = [rows(batch, length, first=100 * index) for index, (batch, length) in enumerate(shapes)]

    answers = model.runner().execute([request(array) for array in arrays])

    assert [values(answer) for answer in answers] == [{"DOUBLE": (2 * array).tolist(), "NEGATIVE": (-array).tolist()} for array in arrays]
    assert len(model.runs) == len({length for _, length in shapes})
    assert sum(shape[0] for _, shape in model.runs) == sum(batch for batch, _ in shapes)


@pytest.mark.parametrize("plan", [group_by_shape, one_by_one, all_together])
@given(shapes=SHAPES)
def test_every_plan_covers_every_request_once(plan: Plan, shapes: list[tuple[int, int]]) -> None:
    planned = plan([{"X": rows(*shape)} for shape in shapes])

    assert sorted(index for group in planned for index in group) == list(range(len(shapes)))


def test_groups_differ_by_any_input_and_by_which_inputs_are_there() -> None:
    requests = [
        {"X": rows(1, 2), "Z": rows(1, 3)},
        {"X": rows(2, 2), "Z": rows(2, 3)},
        {"X": rows(1, 2), "Z": rows(1, 2)},
        {"X": rows(1, 2)},
        {"Z": rows(5, 3), "X": rows(5, 2)},
    ]

    assert group_by_shape(requests) == [[0, 1, 4], [2], [3]]


def test_a_single_array_is_not_copied() -> None:
    array = rows(2, 2)

    assert concatenate([array]) is array


def test_only_outputs_that_somebody_wants_are_computed_and_each_gets_only_its_own() -> None:
    model = Model()

    first, second = model.runner().execute([request(rows(1, 2), outputs=["NEGATIVE"]), request(rows(1, 2), outputs=["DOUBLE"])])
    model.runner().execute([request(rows(1, 2), outputs=["NEGATIVE"])])

    assert values(first) == {"NEGATIVE": [[0, -1]]}
    assert values(second) == {"DOUBLE": [[0, 2]]}
    assert [names for names, _ in model.runs] == [["DOUBLE", "NEGATIVE"], ["NEGATIVE"]]


def test_one_request_that_fails_its_group_is_found_and_its_neighbours_are_answered() -> None:
    model = Model(poison=2.0)
    arrays = [rows(1, 2), rows(1, 2, first=2), rows(1, 2, first=4), rows(1, 3, first=6)]

    answers = model.runner().execute([request(array) for array in arrays])

    assert [isinstance(answer, RequestError) for answer in answers] == [False, True, False, False]
    assert values(answers[2])["DOUBLE"] == [[8, 10]]
    # The group of three, then each of the three alone, then the other group.
    assert [shape for _, shape in model.runs] == [(3, 2), (1, 2), (1, 2), (1, 2), (1, 3)]


def test_a_single_request_that_fails_is_not_tried_twice() -> None:
    model = Model(poison=0.0)

    (answer,) = model.runner().execute([request(rows(1, 2))])

    assert str(answer) == "poisoned"
    assert len(model.runs) == 1


def test_an_output_that_has_not_a_row_per_row_cannot_be_divided() -> None:
    group = [request(rows(1, 2)), request(rows(2, 2))]

    with pytest.raises(ExecutionError, match=r"output 'DOUBLE' has the shape \[7\] for a batch of 3: its first dimension is not the batch"):
        split({"DOUBLE": np.zeros(7)}, group)


def test_requests_whose_output_cannot_be_divided_are_run_one_by_one() -> None:
    runner = GroupRunner(
        run=lambda names, inputs: [inputs["X"].sum(axis=0)],
        plan=all_together,
        assemble=concatenate,
        output_names=["Y"],
        scheduler_drops_cancelled=True,
    )

    answers = runner.execute([request(rows(1, 2), outputs=["Y"]), request(rows(4, 2), outputs=["Y"])])

    assert [values(answer)["Y"] for answer in answers] == [[0, 1], [12, 16]]


def test_what_was_cancelled_in_the_queue_is_not_asked_about_again() -> None:
    model = Model()

    answers = model.runner().execute([request(rows(1, 2), cancelled=True)])

    assert values(answers[0])["DOUBLE"] == [[0, 2]]


def test_later_groups_have_waited_and_are_asked() -> None:
    model = Model()
    requests = [request(rows(1, 2)), request(rows(1, 3), cancelled=True), request(rows(2, 3)), request(rows(1, 4), cancelled=True)]

    answers = model.runner().execute(requests)

    assert [isinstance(answer, RequestCancelled) for answer in answers] == [False, True, False, True]
    assert [shape for _, shape in model.runs] == [(1, 2), (2, 3)]


def test_without_a_batcher_that_drops_them_the_first_group_is_asked_too() -> None:
    model = Model()

    answers = model.runner(scheduler_drops_cancelled=False).execute([request(rows(1, 2), cancelled=True)])

    assert isinstance(answers[0], RequestCancelled)
    assert model.runs == []


def test_a_model_without_a_batch_dimension_runs_each_request_as_it_is() -> None:
    model = Model()

    answers = model.runner(one_by_one).execute([request(np.float32([1, 2])), request(np.float32([3, 4]))])

    assert [values(answer)["DOUBLE"] for answer in answers] == [[2, 4], [6, 8]]
    assert [shape for _, shape in model.runs] == [(2,), (2,)]


def test_no_requests_are_no_runs() -> None:
    model = Model()

    assert model.runner(all_together).execute([]) == []
    assert model.runs == []
