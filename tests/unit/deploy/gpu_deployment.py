"""A deployment whose pods have GPUs."""

from __future__ import annotations

from typing import Any


def on_gpus(strategy: dict[str, Any] | None) -> list[dict[str, Any]]:
    container = {"name": "c", "resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": "2"}}}
    spec: dict[str, Any] = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    if strategy is not None:
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": strategy}
    return [{"kind": "Deployment", "metadata": {"name": "triton"}, "spec": spec}]
