"""Codec of a Model resource's specification and status. Pure."""
