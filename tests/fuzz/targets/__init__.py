"""Targets, one for each parser: `harness` runs one, `tests/fuzz/test_fuzz.py` each."""
