"""Fields of objects as the admin API takes them: all, the least that may be given, and their defaults."""

from __future__ import annotations

LEAST: dict[str, dict[str, object]] = {"tenants": {}, "routes": {"model": "m"}, "prices": {"from_s": 0, "per_unit": 0.5, "currency": "EUR"}}
"""The fields without which no such object can be made."""
DEFAULTS: dict[str, dict[str, object]] = {
    "tenants": {
        "requests_per_s": None,
        "burst": None,
        "concurrency": None,
        "daily_compute_units": None,
        "weight": 1.0,
        "priority": 0,
        "regions": "any",
    },
    "routes": {
        "version": "",
        "deadline_s": None,
        "tenants": None,
        "cache": {"is_on": None, "ttl_s": None, "is_private": False, "min_cost_units": 0.0},
        "pool": "",
        "hedging": {"is_on": None, "twice_from_s": None},
        "targets": [],
        "sticky": "",
        "salt": "",
        "is_repeatable": False,
        "faster": [],
        "latency_budget_s": None,
        "cost_budget_units": None,
        "mirror": None,
    },
    "prices": {"models": "*", "tenant": "", "per_input_token": 0, "per_output_token": 0},
}
ALL: dict[str, dict[str, object]] = {
    "tenants": {
        "requests_per_s": 0.5,
        "burst": 2,
        "concurrency": 3,
        "daily_compute_units": 0,
        "weight": 2.5,
        "priority": -100,
        "regions": "local",
    },
    "routes": {
        "model": "m",
        "version": "3",
        "deadline_s": 1.5,
        "tenants": ["acme", "b"],
        "cache": {"is_on": True, "ttl_s": 60, "is_private": True, "min_cost_units": 2.5},
        "pool": "long-urgent",
        "hedging": {"is_on": False, "twice_from_s": 0.2},
        "targets": [{"model": "n", "weight": 500, "version": "7"}],
        "sticky": "tenant",
        "salt": "spring",
        "is_repeatable": True,
        "faster": [{"model": "s", "version": "2"}],
        "latency_budget_s": 0.05,
        "cost_budget_units": 2.5,
        "mirror": {"model": "t", "version": "2", "weight": 250},
    },
    "prices": {
        "from_s": 1e9,
        "per_unit": 1e-6,
        "currency": "USD",
        "models": "text_*",
        "tenant": "acme",
        "per_input_token": 1e-7,
        "per_output_token": 1e-6,
    },
}
