"""Variants of a model: what was built, how fast each is on this machine, and which one is served."""
