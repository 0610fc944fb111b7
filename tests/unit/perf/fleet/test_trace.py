from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from perf.fleet.trace import busiest, requests

MODELS = ["a", "b", "c"]


def trace(path: Path, rows: list[tuple[str, str]]) -> Path:
    file = path / "requests.csv.gz"
    lines = ["gmt_create,checkpoint_model_version_id", *(f"2024-11-15 {time},{model}" for time, model in rows)]
    file.write_bytes(gzip.compress("\n".join(lines).encode()))
    return file


class TestOfATrace:
    def test_the_most_used_models_in_the_busiest_stretch_in_their_order(self, tmp_path: Path) -> None:
        rows = [("00:00:00", "M1"), ("00:30:00", "M2"), ("01:00:00", "M1"), ("01:00:10", "M9"), ("01:00:20", "M2"), ("01:01:00", "M1")]
        found = requests(trace(tmp_path, rows), ["a", "b"], count=3, seconds=6)
        assert [request.at_s for request in found] == pytest.approx([0, 2, 6])
        first, second, third = (request.model for request in found)
        assert first == third != second

    def test_as_long_as_it_is_to_be(self, tmp_path: Path) -> None:
        rows = [(f"00:{minute:02d}:00", f"M{minute % 3}") for minute in range(30)]
        found = requests(trace(tmp_path, rows), MODELS, count=11, seconds=5)
        assert [request.at_s for request in found] == pytest.approx([0.5 * at for at in range(11)])
        assert Counter(request.model for request in found).keys() == set(MODELS)

    def test_a_shorter_one_is_used_whole(self, tmp_path: Path) -> None:
        rows = [("00:00:00", "M0"), ("00:00:10", "M0")]
        assert len(requests(trace(tmp_path, rows), MODELS, count=11, seconds=5)) == 2


@pytest.mark.parametrize(
    ("times_s", "count", "first"),
    [
        pytest.param([0, 10, 11, 12, 30], 3, 1, id="in the middle"),
        pytest.param([0, 1, 2, 10], 3, 0, id="at the beginning"),
        pytest.param([0, 10, 11, 11], 3, 1, id="at the end"),
        pytest.param([0, 10], 3, 0, id="no more than there are"),
    ],
)
def test_where_most_is_asked_for(times_s: list[float], count: int, first: int) -> None:
    assert busiest(times_s, count) == first


def test_without_a_trace_they_are_drawn_the_same_ones_each_time() -> None:
    found = requests(None, MODELS, count=300, seconds=60)
    assert found == requests(None, MODELS, count=300, seconds=60)
    assert len(found) == 300
    assert 45 < found[-1].at_s < 75
    assert {request.model for request in found} == set(MODELS)
