"""Placement: on which servers a model has replicas, how many, and in which order they are loaded and evicted. Pure."""
