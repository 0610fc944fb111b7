"""What is behind KServe's protocol, whichever data port a call comes over; wired by `app/data_plane/data_plane`."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.auth.access import Access
from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.inference.inference import InferenceService
from control_plane.models.ports import ModelAdministration
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.triton.servers import Servers


@dataclass(frozen=True, slots=True, kw_only=True)
class KServeServices:
    """Services of one process that answer KServe's calls, and the limits on these calls."""

    inference: InferenceService
    access: Access
    servers: Servers
    models: ModelAdministration
    budget: BodyBudget
    """Memory for bodies: one budget for both ports, since the limit is for the process's memory."""
    limits: BodyLimits
    forwarding: HeaderForwarding = NO_FORWARDING
    read_timeout_s: float
    """Time for a call that has nothing computed, and for each request of a stream."""
    allow_shared_memory: bool = False
