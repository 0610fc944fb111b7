"""Placement: where replicas of models are, how many, and in which order they are loaded and evicted. Pure."""
