"""Locations of callers' files, restricted to those that administrators allow. Pure."""
