"""Codecs of the wire protocols: pure functions and state machines over bytes, with no sockets and no clock.

Used by `frontends` (to clients) and `triton/adapters` (to Triton).
"""
