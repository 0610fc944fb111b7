"""Claim policy: which of the waiting jobs a runner that has room takes next.

Fair shares over tenants come first: the tenant that has least running for its weight, among equals the one that
has waited longest for a claim. Of that tenant's jobs those go first that may not be passed over any longer, in
order of their due time; then those whose model is loaded, so that models are not loaded in turns. Jobs of the
economy class wait while there is a standard one, until their own time has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace

from control_plane.jobs.domain.job import PriceClass

HEADS = 8
"""Jobs of each tenant that are looked at first."""
MORE_HEADS = 512
"""Jobs of each that are looked at where those have several models, and not all are loaded: of 800 jobs for 16 models, of
which four fit, 367 to 485 led to a load by the first 8 alone, and 19 to 23 by these."""
MOST_HEADS = 8 * MORE_HEADS
"""Jobs of all tenants together that are looked at then: of the 100,000 that may wait each claim would take a second."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A queued job that may be claimed now."""

    id: str
    model: str
    due_s: float
    price_class: PriceClass


@dataclass(frozen=True, slots=True)
class TenantQueue:
    """The first waiting jobs of a tenant in order of their due time, and what it has running."""

    tenant: str
    running: int
    last_claimed_s: float
    waiting: tuple[WaitingJob, ...]


@dataclass(order=True, slots=True)
class _Place:
    """A tenant's place in the heap of `rank`."""

    load: float
    last_claimed_s: float
    tenant: str
    weight: float = field(compare=False)
    ids: list[str] = field(compare=False)
    """Ids of its jobs, the next one last."""


def rank(queues: Iterable[TenantQueue], *, now_s: float, is_hot: Callable[[str], bool], weight_of: Callable[[str], float]) -> list[str]:
    """Return the ids of the jobs in the order in which they are to be claimed, best first.

    `is_hot` says whether a model is loaded, `weight_of` a tenant's share.
    """
    known = list(queues)
    first = _in_turns(known, lambda job: _is_first(job, now_s), now_s=now_s, is_hot=is_hot, weight_of=weight_of)
    rest = _in_turns(known, lambda job: not _is_first(job, now_s), now_s=now_s, is_hot=is_hot, weight_of=weight_of)
    return first + rest


def are_too_few(queues: Iterable[TenantQueue], *, heads: int, is_hot: Callable[[str], bool]) -> bool:
    """Return whether to look at more jobs than the first `heads` of each tenant: others may need no load."""
    for queue in queues:
        models = {job.model for job in queue.waiting}
        if len(queue.waiting) >= heads and len(models) > 1 and not all(map(is_hot, models)):
            return True
    return False


def more_heads(tenants: int) -> int:
    """Return how many jobs of each of so many tenants are looked at where the first `HEADS` are too few."""
    return max(HEADS, min(MORE_HEADS, MOST_HEADS // tenants))


def _is_first(job: WaitingJob, now_s: float) -> bool:
    return job.price_class is PriceClass.STANDARD or job.due_s <= now_s


def _in_turns(
    queues: Sequence[TenantQueue],
    takes: Callable[[WaitingJob], bool],
    *,
    now_s: float,
    is_hot: Callable[[str], bool],
    weight_of: Callable[[str], float],
) -> list[str]:
    heap: list[_Place] = []
    for queue in queues:
        jobs = sorted(filter(takes, queue.waiting), key=lambda job: _urgency(job, now_s, is_hot), reverse=True)
        if jobs:
            weight = max(weight_of(queue.tenant), 1e-6)
            ids = [job.id for job in jobs]
            heap.append(_Place(queue.running / weight, queue.last_claimed_s, queue.tenant, weight, ids))
    heapify(heap)
    ranked: list[str] = []
    while heap:
        place = heap[0]
        ranked.append(place.ids.pop())
        if not place.ids:
            heappop(heap)
            continue
        place.load, place.last_claimed_s = place.load + 1 / place.weight, now_s + len(ranked)
        heapreplace(heap, place)
    return ranked


def _urgency(job: WaitingJob, now_s: float, is_hot: Callable[[str], bool]) -> tuple[int, float, str]:
    is_overdue = job.due_s <= now_s
    return (0 if is_overdue else 1 if is_hot(job.model) else 2), job.due_s, job.id
