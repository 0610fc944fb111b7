"""Slots at the models, for which requests wait: the concurrency limiters of all models in one process, and what waiting for
them has in common.

`admission/admission` makes this, and `admission/permit` acquires a slot of it for its request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from copy import copy

from control_plane.admission.background import BackgroundGate
from control_plane.admission.concurrency_limiter import ConcurrencyLimiter, SlotLimits
from control_plane.admission.domain.fair_queue import QueueLimits
from control_plane.admission.domain.idle_capacity import may_take_guest
from control_plane.admission.tenant_limits import ShedCounts
from control_plane.admission.waiting_room import WaitingRoom
from control_plane.core.errors import Overloaded
from control_plane.objects.domain.tenant import Tenant
from control_plane.telemetry.shed_reason import ShedReason

# Most idle models whose measured pace is remembered: clients may send any model name.
_MAX_IDLE_MODELS = 1024

# By so much priorities are lowered in the background: below those of any tenant.
_BACKGROUND = 1_000_000_000

_WHY = {
    ShedReason.QUEUE_FULL: "too many requests wait for model {model!r}; try again later",
    ShedReason.NO_IDLE_ROOM: "model {model!r} is busy with this region's own requests; those of other regions are computed while it is not",
    ShedReason.DEADLINE: "model {model!r} is too busy to answer before the request's deadline, or before callers like this one leave; "
    "try again later or give it more time",
}


class ModelSlots:
    """Slots of one process at all models, for requests of callers or, in a copy, for work in the background."""

    def __init__(
        self,
        limits: SlotLimits,
        *,
        sequences: SlotLimits | None = None,
        queue: QueueLimits,
        room: WaitingRoom,
        background: BackgroundGate,
        sheds: ShedCounts,
        now_s: Callable[[], float],
    ) -> None:
        """`sequences` limits the requests that go on with sequences; None: as others. `now_s` is the event loop's clock."""
        self.now_s = now_s
        self.room = room
        self.background = background
        self.is_in_background = self.is_for_guests = False
        self.is_special = False
        """Whether one of the two is so: one question for each request of a caller."""
        self.is_preempted: Callable[[str], Awaitable[bool]] | None = None
        """See `in_background`."""
        self.models: dict[str, ConcurrencyLimiter] = {}
        """Concurrency limiters of the models that requests have needed; see `of`."""
        self.sequences: dict[str, ConcurrencyLimiter] = {}
        """Concurrency limiters of the requests that go on with sequences, by model."""
        self._limits, self._sequence_limits = limits, sequences or limits
        self._queue = queue
        self._sheds = sheds

    def of(self, model: str, *, continues_sequence: bool = False) -> ConcurrencyLimiter:
        """Return a model's concurrency limiter, made when it is first needed; of requests that go on with sequences another.

        Triton holds a request that starts a sequence until another has ended. Behind such, a request of a sequence under way
        would wait here until Triton ends that for lack of requests.
        """
        models = self.sequences if continues_sequence else self.models
        slots = models.get(model)
        if slots is None:
            limits = self._sequence_limits if continues_sequence else self._limits
            slots = models[model] = ConcurrencyLimiter(limits, self._queue, self.now_s)
        return slots

    def forget_if_idle(self, model: str, continues_sequence: bool = False) -> None:
        """Forget a model's limiter that is idle if too many are remembered; called when one of its requests has ended."""
        models = self.sequences if continues_sequence else self.models
        if len(models) > _MAX_IDLE_MODELS and models[model].are_idle:
            del models[model]

    def in_background(self, is_preempted: Callable[[str], Awaitable[bool]] | None = None) -> ModelSlots:
        """Return these slots for work that yields to all requests; limits and counts are the same.

        `is_preempted` says of a model whether callers' requests interrupt what it computes of this work; None: it is not to
        be interrupted.
        """
        background = copy(self)
        background.is_in_background = background.is_special = True
        background.is_preempted = is_preempted
        return background

    def for_guests(self) -> ModelSlots:
        """Return these slots for a request of another region, which never waits, and takes one only while there is idle room."""
        guests = copy(self)
        guests.is_for_guests = guests.is_special = True
        return guests

    def has_idle_room(self, model: str, cost: float, *, left_s: float) -> bool:
        """Whether a request of another region may be computed now, for which this region's own would then wait. It has `left_s`."""
        limiter = self.models.get(model)
        if limiter is not None and not limiter.are_idle and limiter.answer_s(cost) > left_s:
            return False
        busy = [each for each in self.models.values() if not each.are_idle]
        return may_take_guest(
            is_strained=self.room.requests > 0 or any(each.is_strained for each in busy),
            ahead_s=sum(each.left_s for each in busy),
            fullness=max((each.fullness for each in busy), default=0.0),
        )

    def priority_of(self, tenant: Tenant) -> int:
        """Return the priority of a tenant's requests here."""
        return tenant.priority - (_BACKGROUND if self.is_in_background else 0)

    def overloaded(self, tenant: str, reason: ShedReason, model: str, retry_after_s: float) -> Overloaded:
        """Count a request that is shed by a busy model, and return the error for its caller."""
        self._sheds[tenant, reason] += 1
        return Overloaded(_WHY[reason].format(model=model), retry_after_s=retry_after_s)
