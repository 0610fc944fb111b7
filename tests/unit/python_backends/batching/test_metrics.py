"""Counts on their way to Triton's metrics."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from python_backends.batching.counts import COUNTERS, Counts, Tally
from tests.unit.python_backends.fake_triton import MetricFamily, stub

LABELS = {"model": "m", "version": "1", "variant": "int8"}
KEY = (("model", "m"), ("variant", "int8"), ("version", "1"))


@pytest.fixture
def metrics(tmp_path: Path) -> Iterator[Any]:
    with stub("text_encoder", tmp_path):
        yield importlib.import_module("python_backends.batching.metrics")


def reached(name: str) -> float:
    return MetricFamily.values[f"tidegate_batching_{name}", KEY]


def test_what_is_left_is_handed_over_at_the_end_and_nothing_twice(metrics: Any) -> None:
    tally = Tally()
    handing_over = metrics.Metrics(tally, LABELS)
    tally.add(Counts(1, 2, 3, 4, 5, 0.5, 0.25, 6, 7))

    handing_over.close()

    assert [reached(name) for name in COUNTERS] == [1, 2, 3, 4, 5, 0.5, 0.25, 6, 7]
    assert tally.take() == {}


def test_counts_are_handed_over_while_work_goes_on(metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PERIOD_S", 0.001)
    handed_over = threading.Event()

    class Watched(Tally):
        def take(self) -> Any:
            counts = super().take()
            if not counts:
                handed_over.set()
            return counts

    tally = Watched()
    tally.add(Counts(batches=7))
    handing_over = metrics.Metrics(tally, LABELS)

    # The first round takes the seven, the next one finds nothing.
    assert handed_over.wait(10)
    assert reached("batches_total") == 7
    handing_over.close()


def test_a_server_that_refuses_an_increment_stops_neither_counting_nor_the_end(metrics: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally()
    handing_over = metrics.Metrics(tally, LABELS)
    tally.add(Counts(batches=1))
    for metric in handing_over._metrics.values():
        monkeypatch.setattr(metric, "increment", lambda value: 1 / 0)

    handing_over.close()

    assert not handing_over._thread.is_alive()


def test_a_server_without_metrics_is_served_all_the_same(
    metrics: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(metrics.pb_utils, "MetricFamily")
    tally = Tally()
    handing_over = metrics.Metrics(tally, LABELS)
    tally.add(Counts(batches=1))

    handing_over.close()

    assert "Triton accepts no metrics" in caplog.text
    assert tally.take() == {}
