"""Fields of declared objects: the least that each kind takes."""

from __future__ import annotations

from typing import Any

from tests.unit.admin.paths.object_fields import LEAST

STEPS = [{"weight": 500, "samples": 20, "min_s": 1.5, "name": "few"}, {"weight": 5000, "samples": 1, "min_s": 0.0, "name": ""}]
LEAST_OF: dict[str, dict[str, Any]] = {
    "Tenant": LEAST["tenants"],
    "Route": LEAST["routes"],
    "Price": LEAST["prices"],
    "RolloutPolicy": {"steps": STEPS},
}
