"""Decisions as pure functions: a snapshot, limits and the time come in, a decision goes out. The simulator runs these too."""
