"""Exports the counters of batching as Triton's metrics: `tidegate_batching_*{model, version, variant}` on its
metrics port.

Importable only inside a Python stub. An increment is a round trip to the server (19 us measured), so a thread
reports sums twice a second, and once more at the end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.batching.counts import COUNTERS, Tally

LOGGER = logging.getLogger(__name__)

PREFIX = "tidegate_batching_"
PERIOD_S = 0.5


class Metrics:
    """Reporter of a tally's counts to Triton, until `close`."""

    def __init__(self, tally: Tally, labels: Mapping[str, str]) -> None:
        self._tally = tally
        try:
            # Triton drops a metric family when its last reference is gone, so both are kept.
            self._families = {name: _counter(name, description) for name, description in COUNTERS.items()}
            self._metrics = {name: family.Metric(labels=dict(labels)) for name, family in self._families.items()}
        except Exception as exc:
            # A server without metrics raises an exception that has no base class of its own.
            LOGGER.warning("batching is not counted, since Triton accepts no metrics: %s", exc)
            self._metrics = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="batching-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the remaining counts and end the thread."""
        self._closed.set()
        self._thread.join()

    def _serve(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(PERIOD_S)
            try:
                counted = self._tally.take()
                for name, metric in self._metrics.items():
                    if name in counted:
                        metric.increment(counted[name])
            except Exception:
                # The root of a thread: a server without metrics must not stop the counting.
                LOGGER.exception("metrics could not be reported to Triton")


def _counter(name: str, description: str) -> Any:
    return pb_utils.MetricFamily(name=PREFIX + name, description=description, kind=pb_utils.MetricFamily.COUNTER)
