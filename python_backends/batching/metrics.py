"""Batching's counts as Triton's own metrics: `tidegate_batching_*{model, version, variant}` on its metrics port.

Importable only inside a Python stub. An increment is a round trip to the server (19 us measured), so sums are handed over twice a second
by a thread of their own, and a last time at the end.
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
    """Hands a tally's counts to Triton until `close`."""

    def __init__(self, tally: Tally, labels: Mapping[str, str]) -> None:
        self._tally = tally
        try:
            # Triton forgets a family with its last reference.
            self._families = {name: _counter(name, description) for name, description in COUNTERS.items()}
            self._metrics = {name: family.Metric(labels=dict(labels)) for name, family in self._families.items()}
        except Exception as exc:
            # A server that was started without metrics says so in an exception with no base class of its own.
            LOGGER.warning("batching is not counted, Triton takes no metrics: %s", exc)
            self._metrics = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="batching-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Hand over the rest."""
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
                LOGGER.exception("metrics could not be handed over")


def _counter(name: str, description: str) -> Any:
    return pb_utils.MetricFamily(name=PREFIX + name, description=description, kind=pb_utils.MetricFamily.COUNTER)
