"""Floods of both frontends, and what they cost a caller who does no harm: `python -m perf.floods`. The tests run each of them as well."""
