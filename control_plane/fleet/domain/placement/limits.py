"""Limits of placement and eviction, and the delays after which a refused load may be asked for again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class PlacementLimits:
    """Limits of placement. Durations named `_loads` are multiples of the model's load time from its tier, so
    that the same limits are right for models that load in 50 ms and in a minute."""

    min_residency_loads: float = 2.0
    """A replica is not evicted for so long after it became ready, so that no server only loads (thrashing).
    More keeps models that are used once."""

    horizon_loads: float = 200.0
    """An eviction costs as much as the model is likely to be asked for within this time. With more, requests
    wait at busier servers so that likelier models stay; with fewer, there are more loads."""

    patience_loads: float = 10.0
    """This long after it was first refused for the sake of other models, a model is loaded whatever that
    costs those (no starvation)."""

    sample_size: int = 16
    """Servers that are considered in a large fleet. They are the same ones for a model as long as the fleet
    is the same, as their disks may have its files. All servers are considered if none of these will do."""

    min_gain_loads: float = 0.05
    """A further replica must serve sooner by this much than one that is being loaded; otherwise each of two
    requests that arrive together would load a replica for itself. Replicas that are merely busy are exempt:
    there the margin loads too late (simulated: 99.1 % instead of 99.6 % within 100 ms as models drift)."""

    negative_cache_loads: float = 0.02
    """After a refusal of a further replica nobody asks again for so long: a search takes up to a few
    milliseconds, and a busy model would search with every request. With more, bursts wait for the replica
    that they need."""

    longest_unload_s: float = 55.0
    """Memory of a model that has been unloading for longer counts as taken: its requests may last for hours, and Triton (24.10)
    never ends the unload of one whose process has died. A little less than plans wait for it (`PlanLimits.release_timeout_s`)."""

    avoids_failed_s: float = 600.0
    """A model whose load has failed on a server goes there no more for so long, if there is a place elsewhere; nor does any
    other where those of several have."""

    sick_from: int = 3
    """So many models whose loads fail one after the other, and have failed nowhere else, show that the fault is the
    server's. It would take all loads otherwise: nothing is as free as a server on which nothing can be loaded."""

    stays_in_pool: bool = False
    """If the pool has no room, do not use servers of other pools either."""

    evicts: bool = True
    """If no server has free memory, evict others."""

    longest_wait_s: float = inf
    """Longest queue of loads on a server: a load that would have to wait longer is refused."""


# Retry delay where only a person's action helps (a server joins, a model is changed): as good a guess as any.
LONG_S = 30.0

# Shortest retry delay: asking again sooner gains nothing.
SOON_S = 0.01

LIMITS = PlacementLimits()
