"""Decisions about other regions, without I/O."""
