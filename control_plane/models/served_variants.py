"""Query for the variants of models that a Triton serves, for lists of models and for metering."""

from __future__ import annotations

import logging

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ServedVariant
from control_plane.models.domain.served_variants import read_served_variants
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)


async def served_variants(upstream: Upstream) -> dict[str, ServedVariant]:
    """Return the served variants by model; none if Triton's metrics cannot be read, since only lists and
    metering depend on them.
    """
    try:
        return read_served_variants(await upstream.metrics_text())
    except ControlPlaneError as exc:
        _log.debug("which variants are served is not known: %s", exc)
        return {}
