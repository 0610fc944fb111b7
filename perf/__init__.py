"""Scenarios that measure; see perf/README.md for what was measured, how, and on what."""
