"""Tells on Triton's metrics port which variant an instance serves and why: `tidegate_served_variant{model, version, variant, reason}`.

Its value is when the instance was loaded, in seconds since 1970: while a model is loaded anew, two instances tell, and the later is right.
Importable only inside a Python stub. The control plane shows it in `tidegate models` and charges requests by that variant's latency table.
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
    """An info metric that is there until `close`."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._held: tuple[Any, Any] | None = None
        try:
            family = pb_utils.MetricFamily(name=NAME, description=DESCRIPTION, kind=pb_utils.MetricFamily.GAUGE)
            metric = family.Metric(labels=dict(labels))
            metric.set(time.time())
            # Triton forgets either with its last reference.
            self._held = family, metric
        except Exception as exc:
            # A server that was started without metrics says so in an exception with no base class of its own.
            LOGGER.warning("the variant is not told, Triton takes no metrics: %s", exc)

    def close(self) -> None:
        """It is served no longer."""
        self._held = None
