"""Simulated fleets: production's decisions on a trace, in no time and without a Triton.

`engine.simulate` runs a `workload` against servers (`site`) that keep a `fleet/domain/fleet.Fleet` as a `router` reads it; `ours` is the
router made of production's policies. `capacity` finds how many servers a trace needs. No I/O and no clock but its own. For
`tidegate simulate` and `perf/simulate`.
"""
