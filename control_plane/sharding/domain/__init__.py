"""Decisions of model sharding: the plan of an ensemble's steps, and the check of a request against its configuration. Pure."""
