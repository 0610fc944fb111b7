"""Cost of requests in compute units: an estimate before a request is sent, for fair queuing, and the charge
after it.

There are two sources: the latency tables of the model repositories, by which a request is charged when it
ends, and Triton's statistics, polled every few seconds (`metering/compute_charges`). A table has precedence,
since a backend that batches by itself shows next to no compute time in the statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import suppress
from functools import partial
from math import inf

from control_plane.core.errors import ControlPlaneError, UpstreamUnavailable
from control_plane.core.fingerprint import LoadedConfig
from control_plane.core.infer_call import InferCall
from control_plane.metering.compute_charges import ComputeCharges, StatisticsPoll
from control_plane.metering.compute_counts import StatisticsPoller
from control_plane.metering.domain.compute_units import UNKNOWN, ModelCost, RequestCost, request_costs
from control_plane.metering.domain.learned_cost import LearnedCost, learn
from control_plane.metering.ports import ModelCosts
from control_plane.models.served_variants import served_variants
from control_plane.triton.compute_time import NOTHING
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers

POLL_EVERY_S = 5.0
CHARGE_EVERY_S = 0.25
"""Time between polls while charges are open. The shorter, the fewer requests share one poll, and the better
expensive requests are told from cheap ones."""
_IDLE_TIMES = 20
"""After a poll wait at least this many times as long as it took: with thousands of models a poll takes
long."""
READ_EVERY_S = 60.0
"""Time between reads of the repositories: a rebuilt model has its new costs within a minute."""
_UNLISTED_AT_ONCE = 20
"""Models whose configuration is asked of Triton in one poll; the others follow in the next."""
_LAST_POLL_S = 0.5
"""Time that a stop waits for Triton's last statistics."""


class ComputeCosts:
    """Cost estimator of one process: it learns models' costs from tables and statistics, and settles open
    charges.
    """

    def __init__(
        self,
        models: ModelCosts,
        servers: Servers,
        charges: ComputeCharges,
        *,
        settles: bool = True,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`settles` is False in a worker, whose parent settles the `charges`."""
        self.charges = charges
        self.charge = charges.add
        self._models = models
        self._servers = servers
        self._settles = settles
        self._charge_every_s = CHARGE_EVERY_S if settles else POLL_EVERY_S
        self._now_s = now_s
        self._polled_s = now_s()
        self._model_costs: Mapping[str, ModelCost] = {}
        self._counts = StatisticsPoller(servers)
        self._unlisted: dict[str, ModelCost] = {}
        """Costs of models in no repository here, which an attached Triton serves."""
        self._learned: dict[str, LearnedCost] = {}
        self._served: dict[str, str] = {}
        """Model -> variant that a server last reported; all servers have the same files."""
        self._reported: set[str] = set()
        """Models whose variant was reported since the repositories were read."""
        self._asked_s = -inf
        self._read_s = -inf
        self._costs: dict[str, RequestCost] = {}
        self._ensembles: Set[str] = frozenset()

    def estimate(self, call: InferCall) -> tuple[int, float, float | None, tuple[str, ...]]:
        """Return a request's rows, its units by tables, the expected units of the rest, and the models of the
        rest.

        Rows are 1 for a model without a batch dimension. The rest are the steps without a table, which are
        charged by Triton's statistics; their expected units are None where nothing is known of them.
        """
        cost = self._costs.get(call.model_name)
        if cost is None:
            return UNKNOWN.rows(call), 0.0, None, (call.model_name,)
        rows = cost.rows(call)
        return rows, cost.table_units(call, rows), cost.counted_units(rows), cost.counted

    async def run(self) -> None:
        """Poll until cancelled: Triton's statistics often while charges are open, the repositories once a
        minute.
        """
        while True:
            if self._now_s() - self._read_s >= READ_EVERY_S:
                self._read_s = self._now_s()
                await self.read_models()
                self._reported.clear()
            took_s = await self._poll()
            await asyncio.sleep(max(self._charge_every_s, _IDLE_TIMES * took_s))
            if self._settles:
                await self._wait_for_charges()

    async def _wait_for_charges(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_EVERY_S):
                await self.charges.wait_until_open()

    async def read_models(self) -> None:
        """Read the repositories; the start awaits it, so that the first requests are charged by tables."""
        self._model_costs = await self._models.read()
        self._ensembles = {model for model, cost in self._model_costs.items() if cost.steps}
        self._recompute_costs()

    def read_soon(self) -> None:
        """Have the repositories read at the next poll, since they are known to have changed."""
        self._read_s = -inf

    async def settle(self) -> None:
        """Charge everything that is left when all requests have ended; without Triton by estimates."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_POLL_S):
                await self._poll()
        self.charges.settle(StatisticsPoll({}, self._mean_ms(), exists=()), is_last=True)

    async def _poll(self) -> float:
        """Poll Triton's statistics, learn costs and settle charges by them; return the seconds that Triton
        took.
        """
        began_s = self._now_s()
        elapsed_s, self._polled_s = began_s - self._polled_s, began_s
        new = await self._counts.poll()
        took_s = self._now_s() - began_s
        computed = new.computed
        for model in computed:
            after_load, steady = new.after_loads.get(model, NOTHING), new.steady.get(model, NOTHING)
            known = self._learned.get(model, LearnedCost())
            self._learned[model] = learn(known, after_load=after_load, steady=steady, elapsed_s=elapsed_s)
        await self._read_unlisted_configs(computed.keys() - self._model_costs.keys() - self._unlisted.keys())
        changed = await self._poll_served_variants(began_s)
        self._recompute_costs(computed.keys() | changed)
        # Workers' charges are collected after the poll: all that Triton has counted by then has ended, or
        # ends in a moment.
        if self._settles and new.servers:
            await self.charges.collect()
            self.charges.settle(StatisticsPoll(computed, self._mean_ms(), exists=self._counts.models, old=new.old))
        return took_s

    async def _poll_served_variants(self, now_s: float) -> Set[str]:
        """Ask a server which variants it serves, if a model's is not known yet; seldom, since an unloaded
        model never has one. Return the models for which it reports another one than before.
        """
        is_any_unknown = any(cost.by_variant and model not in self._reported for model, cost in self._model_costs.items())
        server = next(iter(self._servers.answering.values()), None)
        if not is_any_unknown or server is None or now_s - self._asked_s < POLL_EVERY_S:
            return frozenset()
        self._asked_s = now_s
        try:
            found = await server.ask(served_variants)
        except UpstreamUnavailable:  # it has fallen silent
            return frozenset()
        changed = {model for model, variant in found.items() if self._served.get(model) != variant.name}
        self._served |= {model: variant.name for model, variant in found.items()}
        self._reported |= found.keys()
        return changed

    async def _read_unlisted_configs(self, models: Iterable[str]) -> None:
        """Ask Triton whether these models' inputs have a batch dimension, so that rows are counted the way
        Triton does.
        """
        for model in sorted(models)[:_UNLISTED_AT_ONCE]:
            with suppress(ControlPlaneError):
                config = await self._counts.server_of(model).ask(partial(_loaded_config, model=model))
                self._unlisted[model] = ModelCost(is_batched=config.is_batched)

    def _mean_ms(self) -> dict[str, float]:
        return {model: learned.mean_ms for model, learned in self._learned.items() if learned.mean_ms is not None}

    def _recompute_costs(self, changed: Set[str] | None = None) -> None:
        """Compute the costs of all models; or of those of which something has changed, and of the ensembles, whose steps they
        may be: all of 10,000 take 40 ms, and while charges are open a poll comes four times a second."""
        costs = {**self._unlisted, **self._model_costs}
        if changed is None:
            self._costs = request_costs(costs, self._mean_ms(), self._served)
        elif changed:
            self._costs |= request_costs(costs, self._mean_ms(), self._served, of=changed | self._ensembles)


async def _loaded_config(upstream: Upstream, *, model: str) -> LoadedConfig:
    return await upstream.control.loaded_config(model)
