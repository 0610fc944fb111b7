"""Composition root: constructs every part, connects them, and starts and stops them in order.

`gateway` is `tidegate serve`, `worker` one of its worker processes; both have a `data_plane`. `upstreams` wires the
Tritons, also for a `node`. `stopping` has the order of a stop.
"""
