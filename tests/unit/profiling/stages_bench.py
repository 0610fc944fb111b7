"""Statistics of a model as Triton answers them."""

from __future__ import annotations

from typing import Any


def statistics(requests: int, success_ms: float, **phases_ms: float) -> dict[str, Any]:
    """Triton's statistics of a model with two versions, of which only one has been asked."""

    def of(count: int, share: float) -> dict[str, Any]:
        phases = {name: {"count": count, "ns": round(ms * share * 1e6)} for name, ms in phases_ms.items()}
        return {"inference_stats": {"success": {"count": count, "ns": round(success_ms * share * 1e6)}, **phases}}

    return {"model_stats": [of(requests, 1.0), of(0, 0.0)]}
