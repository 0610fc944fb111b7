"""Exports the counts of generation as Triton's metrics: `tidegate_generation_*{model, version, variant}` on its metrics port.

Importable only inside a Python stub. Each call is a round trip to the server, so a thread reports twice a second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from python_backends.text_generator.counts import COUNTERS, GAUGES, Counts

LOGGER = logging.getLogger(__name__)

PREFIX = "tidegate_generation_"
PERIOD_S = 0.5


class Metrics:
    """Reporter of counts to Triton, until `close`."""

    def __init__(self, counts: Counts, labels: Mapping[str, str]) -> None:
        self._counts = counts
        self._families: list[Any] = []
        self._metrics: dict[str, Any] = {}
        self._said: Mapping[str, int] = {}
        try:
            for kind, names in ((pb_utils.MetricFamily.COUNTER, COUNTERS), (pb_utils.MetricFamily.GAUGE, GAUGES)):
                for name, description in names.items():
                    family = pb_utils.MetricFamily(name=PREFIX + name, description=description, kind=kind)
                    # Triton drops a metric family when its last reference is gone, so both are kept.
                    self._families.append(family)
                    self._metrics[name] = family.Metric(labels=dict(labels))
        except Exception as exc:
            # A server without metrics raises an exception that has no base class of its own.
            LOGGER.warning("generation is not counted, since Triton accepts no metrics: %s", exc)
            self._metrics = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="generation-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Report the remaining counts and end the thread."""
        self._closed.set()
        self._thread.join()
        self._metrics, self._families = {}, []

    def _serve(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(PERIOD_S)
            try:
                self._report()
            except Exception:
                # The root of a thread: a server without metrics must not stop the counting.
                LOGGER.exception("metrics could not be reported to Triton")

    def _report(self) -> None:
        added, seen = self._counts.take()
        if not self._metrics:
            return
        for name, count in added.items():
            self._metrics[name].increment(count)
        for name, value in seen.items():
            if self._said.get(name) != value:
                self._metrics[name].set(value)
        self._said = seen
