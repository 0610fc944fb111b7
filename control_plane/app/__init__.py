"""Composition root: makes everything else, hands each what it needs, and starts and stops it in order.

`gateway` is `tidegate serve`, `worker` one of its worker processes; both have a `data_plane`. `upstreams` wires the
Tritons, also for a `node`. `stopping` has the order of a stop.
"""
