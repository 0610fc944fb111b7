"""Answers of the admin API about a fleet: a server, a replica and a model."""

from __future__ import annotations

MIB = 2**20
REPLICA = {"model": "m0", "state": "READY", "bytes": 30 * MIB, "in_flight": 0, "sequences": 0, "idle_s": None, "ready_in_s": None}
SERVER = {
    "name": "triton-0",
    "is_up": True,
    "is_ejected": False,
    "is_silent": False,
    "is_draining": False,
    "pool": "",
    "labels": {},
    "budget_bytes": 50 * MIB,
    "held_bytes": 30 * MIB,
    "replicas": [REPLICA],
}
MODEL = {
    "name": "m0",
    "tier": "hot",
    "servers": ["triton-0"],
    "resident_bytes": 30 * MIB,
    "load_s": 1.25,
    "fetch_s": 0.0,
    "fetch_bytes": 0,
    "uses_per_s": 0.5,
    "min_replicas": 0,
    "max_replicas": None,
    "quarantined_for_s": 0.0,
    "why_quarantined": "",
    "is_suspended": False,
}
