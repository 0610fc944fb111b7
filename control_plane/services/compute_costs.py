"""What each request costs in compute units: an estimate before it is sent, for fair shares, and what is charged after.

Two sources: the latency tables of the model repositories, and the times that Triton counts, polled. A table wins, since
a backend that hands requests to batches of its own shows next to no computing there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from control_plane.domain.errors import ControlPlaneError
from control_plane.domain.inference import InferCall
from control_plane.policy.compute_units import UNKNOWN, MeasuredCost, ModelCost, RequestCost, after_poll, request_costs
from control_plane.ports import ModelCosts
from control_plane.services.served_variants import served_variants
from control_plane.services.servers import Servers

_log = logging.getLogger(__name__)

POLL_S = 5.0
READ_EVERY = 12
"""Polls between two looks at the repositories: a model that was built anew has its new costs within a minute."""


class ComputeCosts:
    """Of all models, in one process."""

    def __init__(self, models: ModelCosts, servers: Servers, *, poll_s: float = POLL_S) -> None:
        self._models = models
        self._servers = servers
        self._poll_s = poll_s
        self._model_costs: Mapping[str, ModelCost] = {}
        self._measured: dict[str, MeasuredCost] = {}
        self._served: dict[str, str] = {}
        """By model the variant that a server has told last; all have the same files."""
        self._told: set[str] = set()
        """Models that have told it since the repositories were read."""
        self._costs: dict[str, RequestCost] = {}

    def of(self, call: InferCall) -> tuple[int, float | None]:
        """A request's rows (1 for a model without a batch dimension), and its compute units; None where nothing is known.

        What is not known is charged as the time it was at Triton, which is an upper bound: it includes waiting in Triton's
        queue and for the others of a batch.
        """
        cost = self._costs.get(call.model_name, UNKNOWN)
        rows = cost.rows(call)
        return rows, cost.units(call, rows)

    async def run(self) -> None:
        """Read and poll until cancelled."""
        while True:
            await self.read_models()
            self._told.clear()
            for _ in range(READ_EVERY):
                await self._poll()
                await asyncio.sleep(self._poll_s)

    async def read_models(self) -> None:
        """Look at the repositories now; a start awaits it, so that the first requests are charged by tables."""
        self._model_costs = await asyncio.to_thread(self._models.read)
        self._work_out()

    async def _poll(self) -> None:
        try:
            upstream = self._servers.pick()
            counted = await upstream.control.compute_times()
        except ControlPlaneError as exc:
            _log.debug("Triton's statistics were not read: %s", exc)  # it is down, which others say aloud
            return
        if any(cost.by_variant and model not in self._told for model, cost in self._model_costs.items()):
            found = await served_variants(upstream)
            self._served |= {model: variant.name for model, variant in found.items()}
            self._told |= found.keys()
        self._measured = {model: after_poll(self._measured.get(model, MeasuredCost()), time) for model, time in counted.items()}
        self._work_out()

    def _work_out(self) -> None:
        mean_ms = {model: measured.mean_ms for model, measured in self._measured.items() if measured.mean_ms is not None}
        self._costs = request_costs(self._model_costs, mean_ms, self._served)
