"""Decides whether a request is overdue: it waits at a replica that answers nobody, while other replicas of its model answer. Pure.

An input whose computation never ends blocks its replica, although the server answers all other requests; requests queued behind
it would wait until their deadlines. A model that is only slow, or has a long queue, keeps answering. So no request is overdue
if its replica has answered lately, or if no other replica answers or is idle. Called by `fleet/view/health/recalls`.
"""

from __future__ import annotations

from collections.abc import Container
from math import inf

from control_plane.fleet.domain.fleet import Fleet, Replica, Server
from control_plane.inference.domain.queries_of_death import ONE_BATCH_S

AT_LEAST_S, _FACTOR = 1.5, 3.0
"""Shortest wait, and the wait as a multiple of the longest that an answer has lately taken there: as for a replica that
hangs (`triton/copy_silence`)."""
PROBE_S = 0.3
"""Shortest wait at a replica in doubt: a request goes there now and then to find out, and should not pay for it with a long wait."""


def overdue(fleet: Fleet, server: Server, replica: Replica, *, sent_s: float, now_s: float, avoid: Container[str] = ()) -> bool:
    """Whether a request that was sent at `sent_s` had better be taken back from this replica.

    What the replica works on is not: it may be a long one. That is the oldest request of all workers there, unless callers have
    given up others before it, which Triton goes on computing. `avoid` are servers whose replicas are in doubt.
    """
    limit_s = _limit_s(replica, PROBE_S if server.name in avoid else AT_LEAST_S)
    if now_s - max(sent_s, replica.answered_s) < limit_s or sent_s <= _worked_on_s(replica):
        return False
    return any(
        each.answered_s >= now_s - limit_s or not each.in_flight
        for other, each in fleet.ready_replicas(replica.model)
        if other is not server and other.name not in avoid
    )


def is_silent(replica: Replica, *, sent_s: float, now_s: float) -> bool:
    """Whether a replica has answered nobody for much longer than answers take since a request was sent to it at `sent_s`."""
    return now_s - max(sent_s, replica.answered_s) >= _limit_s(replica)


def may_hang(replica: Replica, *, sent_s: float) -> bool:
    """Whether a request that was sent at `sent_s` may be the one in which a replica hangs that answers nobody: it was there
    at the last answer, or came with the first after it. What came later waits behind it, also where its caller has given it up."""
    return sent_s <= max(_worked_on_s(replica), replica.answered_s) + ONE_BATCH_S


def is_behind(replica: Replica, *, sent_s: float, now_s: float) -> bool:
    """Whether a replica hangs already in a request that was sent before this one, at `sent_s`. While it still answers earlier
    requests, this one's turn may come yet, even if its caller has given it up."""
    return not may_hang(replica, sent_s=sent_s) and is_silent(replica, sent_s=_worked_on_s(replica), now_s=now_s)


def _limit_s(replica: Replica, at_least_s: float = AT_LEAST_S) -> float:
    return max(at_least_s, _FACTOR * replica.longest_s)


def _worked_on_s(replica: Replica) -> float:
    """When the oldest request was sent that the replica has not answered, as far as this process is told."""
    return min(next(iter(replica.waiting.values()), inf), replica.abandoned_s, replica.worked_on_elsewhere_s)
