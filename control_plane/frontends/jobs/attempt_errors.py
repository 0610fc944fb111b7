"""Turns a transient error into the outcome of an attempt at a job; used by `frontends/jobs/compute` and
`frontends/batches/compute_lines`.
"""

from __future__ import annotations

from control_plane.core.errors import ControlPlaneError, LimitExceeded, Overloaded
from control_plane.frontends.common.status import message_of
from control_plane.jobs.ports import TryAgain


def try_again_after(error: ControlPlaneError, *, was_computed: bool) -> TryAgain:
    """Return the outcome of an attempt that met a retryable error; `was_computed` as in `TryAgain`."""
    retry_after_s = error.retry_after_s if isinstance(error, LimitExceeded | Overloaded) else None
    is_crowded = not was_computed and not isinstance(error, LimitExceeded)  # one tenant's limit is no reason to hold up others
    return TryAgain(message_of(error), was_computed=was_computed, retry_after_s=retry_after_s, is_crowded=is_crowded)
