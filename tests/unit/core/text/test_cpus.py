from __future__ import annotations

import pytest

from control_plane.core.text.cpus import cpus_of_worker, format_cpus, is_range, parse_cpus


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        pytest.param("0", (0,), id="one"),
        pytest.param("3,1", (3, 1), id="in the order given"),
        pytest.param("0-3", (0, 1, 2, 3), id="a range"),
        pytest.param("0, 2-3 ,2", (0, 2, 3), id="each once, blanks allowed"),
        pytest.param("5-5", (5,), id="a range of one"),
    ],
)
def test_reads_a_list(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpus(text) == cpus
    assert parse_cpus(format_cpus(cpus)) == cpus


@pytest.mark.parametrize("text", ["", "a", "-1", "1-", "3-1", "1,,2", "0x1", "1.5", "\u0661", "999999", "0-3-5"])
def test_refuses_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a CPU or range of CPUs; write a list such as 0, 0,2 or 0-3"):
        parse_cpus(text)


@pytest.mark.parametrize(
    ("workers", "shares"),
    [
        pytest.param(1, [(4, 5, 6, 7)], id="one has all"),
        pytest.param(4, [(4,), (5,), (6,), (7,)], id="one each"),
        pytest.param(2, [(4, 6), (5, 7)], id="shared out evenly"),
        pytest.param(5, [(4,), (5,), (6,), (7,), ()], id="too few"),
    ],
)
def test_shares_of_workers(workers: int, shares: list[tuple[int, ...]]) -> None:
    assert [cpus_of_worker((4, 5, 6, 7), worker, workers) for worker in range(workers)] == shares


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [((), True), ((3,), True), ((3, 4, 5), True), ((0, 2), False), ((5, 4), False), ((1, 1), False)],
)
def test_a_range_has_no_gaps(cpus: tuple[int, ...], expected: bool) -> None:
    assert is_range(cpus) is expected
