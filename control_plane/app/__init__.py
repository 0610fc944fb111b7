"""Composition root: makes everything else, hands each what it needs, and starts and stops it in order.

`application` is `tidegate serve`, `worker` one of its worker processes; both have a `data_plane`. `stopping`
has the order of a stop.
"""
