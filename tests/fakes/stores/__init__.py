"""Fakes of what processes share: state, logs, boards, leases and the shared cache."""
