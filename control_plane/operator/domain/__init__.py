"""Specification and status of a Model resource, read and written. Pure."""
