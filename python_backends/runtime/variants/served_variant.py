"""Info metric of the variant that an instance serves, on Triton's metrics port:
`tidegate_served_variant{model, version, variant, reason}`.

Its value is the time of the instance's load, in seconds since 1970: during a reload two instances report, and
the later one is right. The control plane shows the variant in `tidegate models`, and charges requests by its
latency table. Importable only inside a Python stub.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

LOGGER = logging.getLogger(__name__)

NAME = "tidegate_served_variant"
DESCRIPTION = "Since when a model serves this variant, and why this one, in seconds since 1970"


class ServedVariant:
    """Info metric that exists until `close`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._held: tuple[Any, Any] | None = None
        try:
            family = pb_utils.MetricFamily(name=NAME, description=DESCRIPTION, kind=pb_utils.MetricFamily.GAUGE)
            metric = family.Metric(labels=dict(labels))
            metric.set(time.time())
            # Triton drops a family or metric when its last reference is gone.
            self._held = family, metric
        except Exception as exc:
            # A server without metrics raises an exception that has no base class of its own.
            LOGGER.warning("the variant is not reported, since Triton accepts no metrics: %s", exc)

    def close(self) -> None:
        """Remove the metric: the instance no longer serves."""
        self._held = None
