"""What h2load says of a spike is read as what became of its requests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from perf.soak.asks import GRPC, HTTP
from perf.soak.flood import Flooded, Said, read


def said(way: str, rows: Sequence[tuple[int, int]], *, data: int = 0, started: int = 20, answer_bytes: int = 100) -> Said:
    """`rows` are statuses and milliseconds."""
    words = f"requests: 9 total, {started} started, 9 done\ntraffic: 1B (1) total, 1B (1) headers (space savings 0.00%), 1B ({data}) data\n"
    log = "".join(f"1795256070724487\t{status}\t{1000 * ms}\n" for status, ms in rows)
    return Said(way, 30, words, log.encode(), answer_bytes)


def test_http_by_status() -> None:
    rows = [(200, 10), (200, 30), (200, 1_500), (503, 2), (429, 3), (504, 1_000), (500, 1), (-1, 1)]
    found = read(said(HTTP, rows))
    assert (found.requests, found.sent) == (30, 20)
    assert (found.answers, found.in_time, found.refused, found.expired, found.errors) == (3, 2, 2, 1, 2)
    assert found.p50_ms == 30


@pytest.mark.parametrize(
    ("ms", "data", "expected"),
    [
        pytest.param([10, 20, 30], 300, (3, 3, 0, 0), id="all answered"),
        pytest.param([10, 20, 30], 100, (1, 1, 2, 0), id="what ends early without a message is refused"),
        pytest.param([10, 1_100, 1_200], 100, (1, 1, 0, 2), id="and what ends late has expired"),
        pytest.param([10, 1_100, 1_200], 200, (2, 1, 0, 1), id="an answer that came late"),
        pytest.param([1_100, 1_200], 200, (2, 0, 0, 0), id="all came late"),
    ],
)
def test_grpc_by_bytes_and_times(ms: list[int], data: int, expected: tuple[int, ...]) -> None:
    found = read(said(GRPC, [(200, each) for each in ms], data=data))
    assert (found.answers, found.in_time, found.refused, found.expired) == expected
    assert found.errors == 0


def test_no_more_was_sent_than_planned() -> None:
    assert read(said(HTTP, [(200, 1)], started=40)).sent == 30


def test_where_nothing_ended_there_are_no_latencies() -> None:
    found: Flooded = read(said(GRPC, []))
    assert (found.answers, found.p50_ms == found.p50_ms) == (0, False)


def test_words_that_say_nothing() -> None:
    with pytest.raises(RuntimeError, match="measured nothing"):
        read(Said(HTTP, 1, "no h2load", b"", 1))
