from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.infer_call import InferCall
from control_plane.core.tensor import Tensor
from control_plane.metering.domain.compute_units import UNKNOWN, ModelCost, UnitTable, estimated_tokens, read_unit_table, request_costs
from python_backends.runtime.variants.latency_table import LatencyTable

TABLE = UnitTable((8, 16, 32), (1.0, 2.0, 6.0))


def units_of(call: InferCall, costs: Mapping[str, ModelCost], mean_ms: Mapping[str, float]) -> float | None:
    cost = request_costs(costs, mean_ms).get(call.model_name, UNKNOWN)
    rows = cost.rows(call)
    rest = cost.counted_units(rows)
    return None if rest is None else cost.table_units(call, rows) + rest


def ids(rows: int, length: int, *, model: str = "m") -> InferCall:
    return InferCall(model, "", "", (Tensor("INPUT_IDS", "INT64", (rows, length)), Tensor("ATTENTION_MASK", "INT64", (rows, length))))


def texts(rows: int, text_bytes: int, *, model: str = "m") -> InferCall:
    return InferCall(model, "", "", (Tensor("TEXT", "BYTES", (rows, 1)),), text_bytes=text_bytes)


@pytest.mark.parametrize(
    ("rows", "length", "units"),
    [
        pytest.param(1, 8, 1.0, id="the smallest length"),
        pytest.param(1, 1, 1.0, id="below it"),
        pytest.param(1, 16, 2.0, id="a measured one"),
        pytest.param(1, 12, 1.5, id="between two"),
        pytest.param(1, 24, 4.0, id="between two others"),
        pytest.param(1, 32, 6.0, id="the largest"),
        pytest.param(1, 64, 12.0, id="beyond it"),
        pytest.param(5, 16, 10.0, id="several rows cost what they would one by one"),
        pytest.param(0, 16, 0.0, id="no rows"),
    ],
)
def test_units_of_ids(rows: int, length: int, units: float) -> None:
    assert TABLE.units(rows, length) == units
    assert units_of(ids(rows, length), {"m": ModelCost(TABLE)}, {}) == units


@pytest.mark.parametrize(
    ("rows", "text_bytes", "length"),
    [
        pytest.param(1, 0, 2, id="an empty text has its two special tokens"),
        pytest.param(1, 45, 12, id="one"),
        pytest.param(2, 90, 12, id="several, of the same length for all that is known"),
        pytest.param(1, 10**9, 32, id="one that the tokenizer will cut"),
        pytest.param(0, 0, 2, id="none"),
    ],
)
def test_units_of_texts(rows: int, text_bytes: int, length: int) -> None:
    assert units_of(texts(rows, text_bytes), {"m": ModelCost(TABLE)}, {}) == pytest.approx(TABLE.units(rows, length))


def test_the_length_of_texts_is_that_of_our_own_texts() -> None:
    """Checks the estimate on the repository's texts, where the tokenizer is built; the docstring has these
    figures.
    """
    model_repository = Path(__file__).parents[4] / "model_repository"
    file = model_repository / "text_tokenizer/1/tokenizer.json"
    if not file.exists():
        pytest.skip("text_tokenizer is not built")
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    names = ("sentences", "queries", "pages", "calibration")
    lines = [line for name in names for line in (model_repository / f"text_encoder/texts/{name}.txt").read_text().splitlines() if line]
    true = [len(tokenizer.encode(line).ids) for line in lines]
    steep = UnitTable((1, 10**6), (1.0, 1e6))  # units are tokens
    estimated = [steep.text_units(1, len(line.encode())) for line in lines]
    assert sum(estimated) / sum(true) == pytest.approx(1.004, abs=0.02)
    errors = sorted(one / other - 1 for one, other in zip(estimated, true, strict=True))
    assert (len(lines), errors[len(lines) // 20], errors[-len(lines) // 20]) == (
        768,
        pytest.approx(-0.24, abs=0.02),
        pytest.approx(0.30, abs=0.02),
    )


_TABLES = st.integers(1, 6).flatmap(
    lambda columns: st.fixed_dictionaries(
        {
            "threads": st.just(2),
            "batches": st.just([1, 4]),
            "lengths": st.lists(st.integers(1, 512), min_size=columns, max_size=columns, unique=True).map(sorted),
            "ms": st.lists(st.lists(st.floats(0.01, 1e4), min_size=columns, max_size=columns), min_size=2, max_size=2),
        }
    )
)


@given(entry=_TABLES, length=st.integers(1, 2000))
def test_a_row_costs_what_the_backend_reckons_with(entry: dict[str, Any], length: int) -> None:
    ours = read_unit_table(entry)
    assert ours is not None
    assert ours.units(1, length) == pytest.approx(LatencyTable.from_manifest(entry).cost_ms(1, length))
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(ours.units(1, each) for each in range(1, 700, 20)))


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(None, id="none"),
        pytest.param([], id="no object"),
        pytest.param({}, id="empty"),
        pytest.param({"batches": [1], "lengths": [], "ms": [[]]}, id="no lengths"),
        pytest.param({"batches": [], "lengths": [8], "ms": [[1.0]]}, id="no batches"),
        pytest.param({"batches": [0], "lengths": [8], "ms": [[1.0]]}, id="a batch of none"),
        pytest.param({"batches": [1], "lengths": [8, 16], "ms": [[1.0]]}, id="a time is missing"),
        pytest.param({"batches": [1], "lengths": [16, 8], "ms": [[1.0, 2.0]]}, id="lengths that descend"),
        pytest.param({"batches": [1], "lengths": [0, 8], "ms": [[1.0, 2.0]]}, id="a length of nothing"),
        pytest.param({"batches": [1], "lengths": [8], "ms": [[0.0]]}, id="no time at all"),
        pytest.param({"batches": [1], "lengths": [8], "ms": [[float("nan")]]}, id="no number"),
        pytest.param({"batches": [1], "lengths": [8], "ms": [["fast"]]}, id="a word"),
    ],
)
def test_what_is_no_table_is_none(entry: object) -> None:
    assert read_unit_table(entry) is None


def test_a_table_that_begins_with_a_larger_batch_tells_the_share_of_a_row() -> None:
    assert read_unit_table({"batches": [2], "lengths": [8], "ms": [[3.0]]}) == UnitTable((8,), (1.5,))


@pytest.mark.parametrize(
    ("served", "ms"),
    [
        pytest.param({}, 9.0, id="nobody has told yet"),
        pytest.param({"m": "int8"}, 4.0, id="as the backend has told"),
        pytest.param({"m": "bf16"}, 9.0, id="one that has no table"),
        pytest.param({"other": "int8"}, 9.0, id="another model's"),
    ],
)
def test_a_model_that_is_built_in_several_variants_costs_what_the_one_that_is_served_does(served: dict[str, str], ms: float) -> None:
    tables = {name: UnitTable((8,), (its_ms,)) for name, its_ms in (("fp32", 9.0), ("int8", 4.0))}
    costs = {"m": ModelCost(tables["fp32"], by_variant=tables), "e": ModelCost(steps=("m",))}
    assert request_costs(costs, {}, served)["m"].tables == (UnitTable((8,), (ms,)),)
    assert request_costs(costs, {}, served)["e"].tables == (UnitTable((8,), (ms,)),)


class TestModels:
    def test_a_table_wins_over_what_was_measured(self) -> None:
        assert units_of(ids(2, 8), {"m": ModelCost(TABLE)}, {"m": 0.001}) == 2.0

    def test_without_a_table_rows_cost_the_mean(self) -> None:
        assert units_of(ids(3, 8), {"m": ModelCost()}, {"m": 0.5}) == 1.5
        assert units_of(ids(3, 8), {}, {"m": 0.5}) == 1.5

    def test_of_what_nothing_is_known_there_are_none(self) -> None:
        assert units_of(ids(3, 8), {"m": ModelCost()}, {"other": 0.5}) is None

    def test_an_ensemble_costs_what_its_steps_do(self) -> None:
        costs = {"e": ModelCost(steps=("tokenizer", "encoder")), "encoder": ModelCost(TABLE)}
        call = texts(2, 90, model="e")
        assert units_of(call, costs, {"tokenizer": 0.25, "e": 99.0}) == pytest.approx(2 * 0.25 + 2 * 1.5)
        assert units_of(call, costs, {}) == pytest.approx(3.0)
        assert units_of(call, {"e": ModelCost(steps=("tokenizer", "encoder"))}, {}) is None

    def test_a_step_that_is_there_twice_costs_twice(self) -> None:
        costs = {"e": ModelCost(steps=("encoder", "encoder")), "encoder": ModelCost(TABLE)}
        assert units_of(ids(1, 16, model="e"), costs, {}) == 4.0

    def test_ensembles_of_ensembles_and_a_cycle_come_to_an_end(self) -> None:
        costs = {"a": ModelCost(steps=("b", "m")), "b": ModelCost(steps=("m",)), "m": ModelCost(TABLE)}
        assert units_of(ids(1, 16, model="a"), costs, {}) == 4.0
        endless = {"x": ModelCost(steps=("y",) * 20), "y": ModelCost(steps=("x", "m") * 10), "m": ModelCost(TABLE)}
        assert units_of(ids(1, 16, model="x"), endless, {}) == 20 * 10 * 2.0

    @pytest.mark.parametrize(
        "steps",
        [
            pytest.param(lambda each: (f"m{each + 1}",), id="a chain"),
            pytest.param(lambda each: (f"m{each + 1}",) * 2, id="each the next one twice"),
            pytest.param(lambda each: tuple(f"m{other}" for other in range(5000)), id="all each other"),
        ],
    )
    def test_a_repository_that_means_harm_is_counted_up_to_a_bound(self, steps: Callable[[int], tuple[str, ...]]) -> None:
        costs = {f"m{each}": ModelCost(steps=steps(each)) for each in range(50)} | {"m50": ModelCost(TABLE)}
        assert len(request_costs(costs, {}, of=["m0"])["m0"].tables) <= 500
        deep = {f"d{each}": ModelCost(steps=(f"d{each + 1}",)) for each in range(5000)}
        assert request_costs(deep, {}, of=["d0"])["d0"].counted == ()

    def test_texts_in_more_than_two_dimensions_still_count_by_their_bytes(self) -> None:
        call = InferCall("m", "", "", (Tensor("IMAGE", "FP32", (1, 3, 224, 224)),))
        assert units_of(call, {"m": ModelCost(TABLE)}, {}) == 1.0

    @pytest.mark.parametrize(
        ("shapes", "is_batched", "rows"),
        [
            pytest.param([(4, 8)], True, 4, id="the first dimension"),
            pytest.param([(4, 8)], False, 1, id="a model without a batch dimension"),
            pytest.param([()], True, 1, id="a scalar"),
            pytest.param([], True, 1, id="no inputs, as in a raw request"),
            pytest.param([(0, 8)], True, 0, id="an empty batch"),
        ],
    )
    def test_rows(self, shapes: list[tuple[int, ...]], is_batched: bool, rows: int) -> None:
        call = InferCall("m", "", "", tuple(Tensor("X", "FP32", shape) for shape in shapes))
        assert request_costs({"m": ModelCost(is_batched=is_batched)}, {})["m"].rows(call) == rows
        if is_batched:
            assert request_costs({}, {"m": 1.0})["m"].rows(call) == UNKNOWN.rows(call) == rows


@pytest.mark.parametrize(("text_bytes", "tokens"), [(0, 2), (1, 2), (45, 12), (4500, 1002)])
def test_a_texts_tokens_are_estimated_by_its_bytes(text_bytes: int, tokens: int) -> None:
    assert estimated_tokens(text_bytes) == tokens
