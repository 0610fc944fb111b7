"""When work in the background may begin beside callers' requests, and requests of other regions; pure, called by
`admission/background` and `admission/model_slots`."""

from __future__ import annotations

PATIENCE_S = 0.25
"""Time after which work in the background begins without a moment of idleness: a busy server still gets four pieces of
it a second."""
PREEMPTED_AT_ONCE = 2
"""Pieces of preempted work that a server has at a time: one is computed while the next is on its way."""
GUESTS_AHEAD_S = 0.05
"""Longest time that a request of this region waits behind those of others, unless one alone takes longer: what models compute
is not interrupted."""
_GUESTS_FULLNESS = 0.5
"""Part of a model's slots up to which requests of other regions are taken."""
_PRESENT_S = 1.0
"""For so long after the last request callers are reckoned with: the next one comes as soon."""


def is_alone(unseen_s: float) -> bool:
    """Whether work in the background has the servers for itself; the last request ended `unseen_s` ago."""
    return unseen_s >= _PRESENT_S


def may_begin_preempted(*, begun: int, servers: int, unseen_s: float) -> bool:
    """Whether another piece of work may begin that callers' requests interrupt: any moment is as good as an idle one."""
    return is_alone(unseen_s) or begun < PREEMPTED_AT_ONCE * servers


def may_begin(*, requests: int, begun: int, servers: int, unseen_s: float, waited_s: float, has_idle_server: bool | None = None) -> bool:
    """Whether another piece of work may begin that nothing interrupts.

    `requests` of callers and `begun` such pieces are under way at `servers` servers; the last request ended `unseen_s` ago,
    and the piece has waited for `waited_s`. `has_idle_server` says whether one of those that may compute it does nothing;
    None: which that are is not known.
    """
    if is_alone(unseen_s):
        return True
    is_idle = requests + begun < servers if has_idle_server is None else has_idle_server
    return begun < servers and (is_idle or waited_s >= PATIENCE_S)


def may_take_guest(*, is_strained: bool, ahead_s: float, fullness: float) -> bool:
    """Whether a request of another region may be taken: none of this region's waits or is in danger (`is_strained`), and all
    that is under way will be done within `ahead_s`, in the `fullness` (0 to 1) of the fullest model's slots."""
    return not is_strained and ahead_s <= GUESTS_AHEAD_S and fullness < _GUESTS_FULLNESS
