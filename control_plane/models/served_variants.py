"""Asks a Triton which variants of its models it serves."""

from __future__ import annotations

import logging

from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ServedVariant
from control_plane.models.domain.served_variants import read_served_variants
from control_plane.triton.ports import Upstream

_log = logging.getLogger(__name__)


async def served_variants(upstream: Upstream) -> dict[str, ServedVariant]:
    """By model; of a Triton whose metrics cannot be read, none: nothing depends on it but what is shown and the table to charge by."""
    try:
        return read_served_variants(await upstream.metrics_text())
    except ControlPlaneError as exc:
        _log.debug("which variants are served is not known: %s", exc)
        return {}
