"""Who may load and unload, by a lease whose holder may be paused, cut off or gone at any instant; asked by `fleet/ownership/ownership`.

No clock is compared with another. The holder believes in its lease for `ttl_s` from when it *asked* for it. Whoever would
take it first sees it unchanged for `ttl_s` and a margin by its own clock, from when an *answer* told it so, and takes it only as it
was seen. So the one has stopped before the other begins, also when the store loses its last writes or its clock jumps.

    | state    | what happens                                                         | next                          |
    |----------|----------------------------------------------------------------------|-------------------------------|
    | Watching | LOOK finds what it found before                                      | Watching, since it first did  |
    | Watching | LOOK finds anything else, or the look before was long ago            | Watching, since now           |
    | Watching | released, or unchanged for ttl and margin; then TAKE succeeds        | Owning, until asked + ttl     |
    | Watching | TAKE fails: somebody was faster                                      | Watching, nothing seen        |
    | Owning   | RENEW succeeds                                                       | Owning, until asked + ttl     |
    | Owning   | RENEW fails: somebody has taken it                                   | Watching, nothing seen        |
    | Owning   | its time is over; a renewal that is answered later does not count    | Watching, nothing seen        |

A call to Triton may begin while more than the margin is left, so it is surely over the wire and in Triton's index when the next
owner first looks there if that takes it at most twice the margin: a longer pause of the process (or the network) between the check and
the send is what no lease can exclude where the server itself does not know of it. It need not be *answered* by then: a load may
take 300 s, a lease as long as that would leave a fleet without an owner for five minutes after a crash, and the next one sees it LOADING
and waits for it (`fleet/loading/load_plans`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from control_plane.fleet.domain.lease import Lease

NEVER_S = float("-inf")


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    """All processes of a fleet should have the same."""

    ttl_s: float = 6.0
    """Survives two renewals that come to nothing, at a second each; after a crash loads stand still for this and the margin."""

    margin_s: float = 1.0
    """Half of what may pass between the last check and Triton's index showing the call, which takes milliseconds."""

    @property
    def renew_every_s(self) -> float:
        return self.ttl_s / 3

    @property
    def look_every_s(self) -> float:
        """While another is the owner; also the longest that a released lease lies idle."""
        return self.ttl_s / 8

    @property
    def retry_s(self) -> float:
        """After the store could not be reached."""
        return self.ttl_s / 12


class Request(Enum):
    """What the store is asked next."""

    LOOK = "look"
    TAKE = "take"
    RENEW = "renew"


@dataclass(frozen=True, slots=True)
class Watching:
    """Another process is the owner, or may be."""

    seen: Lease | None = None
    """None, once it has looked: there is none. It may have been lost, so that is waited out like any other."""
    since_s: float | None = None
    """When an answer first told so; None: it has not looked yet."""
    looked_s: float = NEVER_S
    """When one told so last. After a gap it watches anew: what it finds may be an old record that has come back."""


@dataclass(frozen=True, slots=True)
class Owning:
    """This process is the owner, as far as it may believe it."""

    lease: Lease
    until_s: float


State = Watching | Owning


def at(state: State, now_s: float) -> State:
    """What it has become with time alone."""
    return Watching() if isinstance(state, Owning) and now_s >= state.until_s else state


def may_begin(state: State, now_s: float, limits: LeaseLimits) -> bool:
    """Whether a call that loads or unloads may be sent now, at once."""
    return isinstance(state, Owning) and state.until_s - now_s > limits.margin_s


def next_request(state: State, now_s: float, limits: LeaseLimits) -> Request:
    """Of a state as it is `at` now."""
    if isinstance(state, Owning):
        return Request.RENEW
    return Request.TAKE if _may_take(state, now_s, limits) else Request.LOOK


def after(state: State, request: Request, found: Lease | None, *, asked_s: float, now_s: float, limits: LeaseLimits) -> State:
    """What it becomes by an answer that came `now_s`; `found` is None where there is no record, or the store refused."""
    if request is Request.LOOK:
        return _after_look(state, found, now_s, limits)
    if found is None:
        return Watching()
    was_in_time = request is Request.TAKE or isinstance(at(state, now_s), Owning)
    return at(Owning(found, asked_s + found.ttl_s), now_s) if was_in_time else Watching()


def pause_s(state: State, now_s: float, limits: LeaseLimits) -> float:
    """How long until the next request, after one that was answered."""
    if isinstance(state, Owning):
        return max(0.0, state.until_s - state.lease.ttl_s + limits.renew_every_s - now_s)
    return 0.0 if _may_take(state, now_s, limits) else limits.look_every_s


def _after_look(state: State, found: Lease | None, now_s: float, limits: LeaseLimits) -> Watching:
    if isinstance(state, Watching) and found == state.seen and _watches(state, now_s, limits):
        return Watching(found, state.since_s, now_s)
    return Watching(found, now_s, now_s)


def _watches(state: Watching, now_s: float, limits: LeaseLimits) -> bool:
    return now_s - state.looked_s <= limits.renew_every_s


def _may_take(state: Watching, now_s: float, limits: LeaseLimits) -> bool:
    if state.since_s is None or not _watches(state, now_s, limits):
        return False
    if state.seen is None:
        return now_s - state.since_s > limits.ttl_s + limits.margin_s
    return state.seen.is_released or now_s - state.since_s > state.seen.ttl_s + limits.margin_s
