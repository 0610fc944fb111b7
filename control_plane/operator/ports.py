"""Port of the operator: the resources of kind Model of one namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class ModelResources(Protocol):
    """Resources of kind Model, followed as they change."""

    def listed(self) -> list[Mapping[str, Any]] | None:
        """Return the resources as last seen; None before the API server has said which there are."""

    def follow(self, on_change: Callable[[], None]) -> None:
        """Have `on_change` called after each change."""

    async def put_status(self, it: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
        """Write the status of a resource; False where it is not as `it` any more. Raises StoreUnavailable; InvalidRequest: this
        one is not taken, others may be."""

    async def run(self) -> None:
        """Follow the resources until cancelled, through any outage of the API server."""
