"""What every test gets: Hypothesis without a per-example deadline, since the machines that run this are shared."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")
