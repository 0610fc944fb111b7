"""Decisions and codecs of the response cache: eviction, the worth of a lookup, the form of a stored response. Pure;
`eviction` is level one with its eviction policy.
"""
