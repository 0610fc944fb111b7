"""Leader election by a lease whose holder may be paused, cut off or gone at any instant: who may load and
unload models.

`fleet/leadership/election` keeps the state and asks these functions. No clock is compared with another one.
The holder relies on its lease for `ttl_s` from when it *asked* for it. A candidate first sees the lease
unchanged for `ttl_s` and a margin by its own clock, from when an *answer* told it so, and then takes it by
compare-and-set. So the old leader has stopped before the new one begins, even when the store loses its last
writes or its clock jumps.

    | state    | what happens                                               | next                         |
    |----------|------------------------------------------------------------|------------------------------|
    | Watching | LOOK finds the same lease as before                        | Watching, since it first did |
    | Watching | LOOK finds anything else, or the last LOOK was long ago    | Watching, since now          |
    | Watching | released, or unchanged for ttl and margin; TAKE succeeds   | Owning, until asked + ttl    |
    | Watching | TAKE fails: another process was faster                     | Watching, nothing seen       |
    | Watching | had it: RESUME finds it untouched, the store's run as well | Owning, until asked + ttl    |
    | Watching | had it: RESUME finds anything else                         | Watching, nothing seen       |
    | Owning   | RENEW succeeds                                             | Owning, until asked + ttl    |
    | Owning   | RENEW fails: another process has taken the lease           | Watching, nothing seen       |
    | Owning   | the lease has expired; a later answer does not count       | Watching, had it             |

After an outage of the store its last leader need not wait: if the store still runs as it did when it answered
last, it has lost no write since, so a lease that is as it was proves that nobody has taken it. A store that has
started anew may have lost that somebody did, and is waited out.

A call to Triton may begin only while more than the margin is left. It is then in Triton's index when the next
leader first looks there, provided that it takes at most twice the margin to get there. A longer pause of the
process (or the network) between the check and the send cannot be excluded by any lease, since Triton does not
know of it (it checks no fencing token). The call need not be *answered* in time: a load may take 300 s, and a
lease as long as that would leave a fleet without a leader for five minutes after a crash. The next leader
sees the model LOADING and waits for it (`fleet/loading/load_plans`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from control_plane.fleet.domain.leadership.lease import Lease

_SOON_S = 0.001
"""Time by which the wait for a lease is exceeded, as it must have been longer and not just as long."""

NEVER_S = float("-inf")
"""A time before all others: the lease has not been looked at yet."""


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """Durations of the leader lease; all processes of a fleet should have the same."""

    ttl_s: float = 6.0
    """Survives two failed renewals of a second each. After a crash no model is loaded for this long and the
    margin."""

    margin_s: float = 1.0
    """Half of what may pass between the last check of the lease and the call's appearance in Triton's index,
    which takes milliseconds."""

    @property
    def renew_every_s(self) -> float:
        """Time between two renewals of the leader."""
        return self.ttl_s / 3

    @property
    def look_every_s(self) -> float:
        """Time between two looks of the others; a released lease lies idle for no longer."""
        return self.ttl_s / 8

    @property
    def retry_s(self) -> float:
        """Time before another try when the store could not be reached."""
        return self.ttl_s / 12


class LeaseRequest(Enum):
    """The next request to the lease store."""

    READ = "look"
    ACQUIRE = "take"
    RENEW = "renew"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Following:
    """State of a process that is not the leader: another one is, or may be."""

    seen: Lease | None = None
    """The lease as last seen; None after a look means there is none. The store may have lost it, so its
    absence is waited out as well."""
    since_s: float | None = None
    """When an answer first showed `seen`; None if no look has been answered yet."""
    looked_s: float = NEVER_S
    """When an answer last showed `seen`. After a gap the wait starts anew, as the record found then may be an
    old one that came back."""
    had: Lease | None = None
    """The lease that this process had until it expired; None after it has been asked for again."""


@dataclass(frozen=True, slots=True)
class Leading:
    """State of a process that is the leader until `until_s`, as far as it may rely on its lease."""

    lease: Lease
    until_s: float


State = Following | Leading


def at(state: State, now_s: float) -> State:
    """Return the state that `state` has become by the passing of time alone."""
    return Following(had=state.lease) if isinstance(state, Leading) and now_s >= state.until_s else state


def may_begin(state: State, now_s: float, limits: LeaseLimits) -> bool:
    """Whether a call that loads or unloads a model may be sent now, without further delay."""
    return isinstance(state, Leading) and state.until_s - now_s > limits.margin_s


def next_request(state: State, now_s: float, limits: LeaseLimits) -> LeaseRequest:
    """Return what to ask the store next; `state` must be the state `at` this time."""
    if isinstance(state, Leading):
        return LeaseRequest.RENEW
    if state.had is not None and state.had.run:
        return LeaseRequest.RESUME
    return LeaseRequest.ACQUIRE if _may_take(state, now_s, limits) else LeaseRequest.READ


def after(state: State, request: LeaseRequest, found: Lease | None, *, asked_s: float, now_s: float, limits: LeaseLimits) -> State:
    """Return the state after an answer that came at `now_s`; `found` is None if there is no record, or if the
    store refused the change."""
    if request is LeaseRequest.READ:
        return _after_look(state, found, now_s, limits)
    if found is None:
        return Following()
    # A renewal answered after expiry does not count: another process may have begun to rely on the lease's
    # end.
    was_in_time = request is not LeaseRequest.RENEW or isinstance(at(state, now_s), Leading)
    # Counted from when it was asked: the store may have written it at any time since.
    return at(Leading(found, asked_s + found.ttl_s), now_s) if was_in_time else Following(had=found)


def pause_s(state: State, now_s: float, limits: LeaseLimits) -> float:
    """Return how long to wait before the next request, after one that was answered."""
    if isinstance(state, Leading):
        return max(0.0, state.until_s - state.lease.ttl_s + limits.renew_every_s - now_s)
    if _may_take(state, now_s, limits):
        return 0.0
    waits_until_s = now_s if state.since_s is None else state.since_s + _wait_s(state, limits)
    return min(limits.look_every_s, waits_until_s - now_s + _SOON_S) if waits_until_s > now_s else limits.look_every_s


def _after_look(state: State, found: Lease | None, now_s: float, limits: LeaseLimits) -> Following:
    if isinstance(state, Following) and found == state.seen and _watches(state, now_s, limits):
        return Following(found, state.since_s, now_s)
    # Anything new restarts the wait, also a record that was there before and has come back.
    return Following(found, now_s, now_s)


def _watches(state: Following, now_s: float, limits: LeaseLimits) -> bool:
    """Whether looks have come often enough to say that the lease did not change between them."""
    return now_s - state.looked_s <= limits.renew_every_s


def _may_take(state: Following, now_s: float, limits: LeaseLimits) -> bool:
    if state.since_s is None or not _watches(state, now_s, limits):
        return False
    return (state.seen is not None and state.seen.is_released) or now_s - state.since_s > _wait_s(state, limits)


def _wait_s(state: Following, limits: LeaseLimits) -> float:
    """Return for how long the lease must have been seen unchanged before it may be taken."""
    # No record may mean that the store lost one whose holder still relies on it: wait as long as its lease
    # could last.
    return (limits.ttl_s if state.seen is None else state.seen.ttl_s) + limits.margin_s
