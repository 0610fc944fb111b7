"""Discrete-event simulation of fleets: production's own policies decide about a trace, in simulated time and
without a Triton.

`engine.simulate` runs a `workload` against servers (`simulated_server`) that keep a `fleet/domain/fleet.Fleet`, which a
`router` reads; `production_router` is the router made of production's policies, and `capacity` finds how many servers a
trace needs. It does no I/O and has no clock but its own. `tidegate simulate` and `perf/simulate` call it.
"""
