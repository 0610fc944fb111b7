"""One request of a ModelStreamInfer call, from its admission to its answer; used by `frontends/kserve/grpc_stream`."""

from __future__ import annotations

from dataclasses import dataclass

from control_plane.admission.waiting_room import Place
from control_plane.core.infer_call import InferCall
from control_plane.frontends.kserve.grpc_infer import InferMessage
from control_plane.inference.in_flight.running_request import AuthorizedRequest
from control_plane.inference.inference import InferenceService
from control_plane.inference.retries.queries_of_death import Suspect
from control_plane.inference.routes.targets import Arm


@dataclass(slots=True, eq=False)
class StreamRequest:
    """One admitted request of a stream."""

    message: InferMessage
    call: InferCall
    """The call as it goes to Triton, after routing."""
    deadline_s: float | None
    """The route's deadline in seconds, if it has one."""
    running: AuthorizedRequest
    size_bytes: int
    """Bytes of the message as it came, before it was readdressed."""
    arm: Arm | None = None
    """The choice among the route's targets, if it has any."""
    place: Place | None = None
    """Place in the waiting room while it waits for others of its sequence; for a slot it takes another."""
    suspect: Suspect | None = None
    """What the quarantine has against it, of a request to a decoupled model."""

    async def acquire_slot(self, inference: InferenceService, *, timeout_s: float) -> float:
        """Leave the waiting room, and wait for the model's in-flight slot, for `timeout_s` where the route has no deadline; return
        the seconds that are left then. Raises Overloaded, LimitExceeded."""
        self.leave_room()
        return await inference.acquire_slot(self.running, timeout_s=timeout_s if self.deadline_s is None else self.deadline_s)

    def leave_room(self) -> None:
        """Leave the place in the waiting room, if it has one; idempotent."""
        place, self.place = self.place, None
        if place is not None:
            place.leave()
