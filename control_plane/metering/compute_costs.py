"""What each request costs in compute units: an estimate before it is sent, for fair shares, and what is charged after.

Two sources: the latency tables of the model repositories, by which a request is charged when it ends, and what Triton counts,
looked at every few seconds (`metering/compute_charges`). A table wins, since a backend that hands requests to batches of its own
shows next to no computing there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf

from control_plane.core.errors import ControlPlaneError
from control_plane.core.infer_call import InferCall
from control_plane.metering.compute_charges import ComputeCharges, Look
from control_plane.metering.compute_counts import ComputeCounts
from control_plane.metering.domain.compute_units import UNKNOWN, ModelCost, RequestCost, request_costs
from control_plane.metering.domain.learned_cost import LearnedCost, learn
from control_plane.metering.ports import ModelCosts
from control_plane.models.served_variants import served_variants
from control_plane.triton.compute_time import NOTHING
from control_plane.triton.servers import Servers

LOOK_EVERY_S = 5.0
CHARGE_EVERY_S = 0.25
"""The shorter, the fewer requests end between two looks, and the better are those that cost much told from those that cost little."""
_IDLE_TIMES = 20
"""What a look takes, and so many times that it is waited before the next: with thousands of models it takes long."""
READ_EVERY_S = 60.0
"""A model that was built anew has its new costs within a minute."""
_UNLISTED_AT_ONCE = 20
"""Models that Triton is asked about at a look; the others follow."""
_LAST_LOOK_S = 1.0
"""That a stop waits for Triton's counts."""


class ComputeCosts:
    """Estimates and charges the compute units of all models, in one process."""

    def __init__(
        self,
        models: ModelCosts,
        servers: Servers,
        charges: ComputeCharges,
        *,
        settles: bool = True,
        every_s: tuple[float, float] = (CHARGE_EVERY_S, LOOK_EVERY_S),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settles` is False where another process does, which is handed the `charges`.

        `every_s` it looks at Triton's counts, with something to charge and without.
        """
        self.charges = charges
        self.charge = charges.add
        self._models = models
        self._servers = servers
        self._settles = settles
        self._charge_every_s, self._look_every_s = every_s if settles else (every_s[1],) * 2
        self._now_s = now_s
        self._looked_s = now_s()
        self._model_costs: Mapping[str, ModelCost] = {}
        self._counts = ComputeCounts(servers)
        self._unlisted: dict[str, ModelCost] = {}
        """Of models that are in no repository here: of a Triton that others run."""
        self._learned: dict[str, LearnedCost] = {}
        self._served: dict[str, str] = {}
        """By model the variant that a server has told last; all have the same files."""
        self._told: set[str] = set()
        """Models that have told it since the repositories were read."""
        self._asked_s = -inf
        self._costs: dict[str, RequestCost] = {}

    def of(self, call: InferCall) -> tuple[int, float, float | None, tuple[str, ...]]:
        """Of a request: its rows (1 for a model without a batch dimension) and its units by tables.

        And those expected of the rest, None where nothing is known of it, and the models whose computing the rest is.
        """
        cost = self._costs.get(call.model_name)
        if cost is None:
            return UNKNOWN.rows(call), 0.0, None, (call.model_name,)
        rows = cost.rows(call)
        return rows, cost.table_units(call, rows), cost.counted_units(rows), cost.counted

    async def run(self) -> None:
        """Look until cancelled: at the counts often while there is something to charge, at the repositories once a minute."""
        read_s = -inf
        while True:
            if self._now_s() - read_s >= READ_EVERY_S:
                read_s = self._now_s()
                await self.read_models()
                self._told.clear()
            took_s = await self._look()
            await asyncio.sleep(max(self._charge_every_s, _IDLE_TIMES * took_s))
            if self._settles:
                await self._wait_for_charges()

    async def _wait_for_charges(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._look_every_s):
                await self.charges.wait_until_open()

    async def read_models(self) -> None:
        """Look at the repositories now; a start awaits it, so that the first requests are charged by tables."""
        self._model_costs = await self._models.read()
        self._work_out()

    async def settle(self) -> None:
        """At the end of all requests: charge all that is left, also without Triton."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LOOK_S):
                await self._look()
        self.charges.settle(Look({}, self._mean_ms(), exists=()), is_last=True)

    async def _look(self) -> float:
        """At what Triton has counted since the last look: the seconds that it took to be told."""
        began_s = self._now_s()
        elapsed_s, self._looked_s = began_s - self._looked_s, began_s
        new = await self._counts.look()
        took_s = self._now_s() - began_s
        computed = new.computed
        for model in computed:
            after_load, steady = new.after_loads.get(model, NOTHING), new.steady.get(model, NOTHING)
            known = self._learned.get(model, LearnedCost())
            self._learned[model] = learn(known, after_load=after_load, steady=steady, elapsed_s=elapsed_s)
        await self._read_unlisted(computed.keys() - self._model_costs.keys() - self._unlisted.keys())
        await self._ask_for_variants(began_s)
        self._work_out()
        if self._settles and new.servers:
            await self.charges.collect()
            self.charges.settle(Look(computed, self._mean_ms(), exists=self._counts.models, old=new.old))
        return took_s

    async def _ask_for_variants(self, now_s: float) -> None:
        """Which variants are served, of models that have not told it: any server tells; rarely, since one not loaded never does."""
        untold = any(cost.by_variant and model not in self._told for model, cost in self._model_costs.items())
        upstream = next(iter(self._servers.live.values()), None)
        if not untold or upstream is None or now_s - self._asked_s < self._look_every_s:
            return
        self._asked_s = now_s
        found = await served_variants(upstream)
        self._served |= {model: variant.name for model, variant in found.items()}
        self._told |= found.keys()

    async def _read_unlisted(self, models: Iterable[str]) -> None:
        """Whether their inputs have a batch dimension, by Triton's word: a row of theirs is what it counts as one."""
        for model in sorted(models)[:_UNLISTED_AT_ONCE]:
            with suppress(ControlPlaneError):
                config = await self._servers.of(self._counts.server_of(model)).control.loaded_config(model)
                self._unlisted[model] = ModelCost(is_batched=config.is_batched)

    def _mean_ms(self) -> dict[str, float]:
        return {model: learned.mean_ms for model, learned in self._learned.items() if learned.mean_ms is not None}

    def _work_out(self) -> None:
        self._costs = request_costs({**self._unlisted, **self._model_costs}, self._mean_ms(), self._served)
