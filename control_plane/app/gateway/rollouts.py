"""Wires the rollouts of one gateway: the source of their observations, and which gateway advances them.

A gateway with a state store of its own advances its rollouts alone. Gateways that share a Redis add up their observations
there and elect a leader by a lease. That lease is not their fleets', since one Redis may serve several fleets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import uuid4

from control_plane.app.data_plane.request_services import RequestServices
from control_plane.app.upstreams.servers import Tritons
from control_plane.fleet.kept_replicas import KeptReplicas
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.inference.domain.observation import Observation
from control_plane.objects.objects import Objects
from control_plane.rollout.contracts import ContractReader
from control_plane.rollout.rollouts import Rollouts
from control_plane.rollout.shared_evidence import SharedEvidence
from control_plane.settings import Settings
from control_plane.triton.ports import Upstream

_LEASE_NAME = "#rollouts"
"""No fleet can have this name."""


class RolloutServices:
    """The rollouts of one gateway with their leader election; `run` is a task of it."""

    def __init__(
        self,
        settings: Settings,
        services: RequestServices,
        tritons: Tritons,
        *,
        observed: Callable[[], Iterable[Observation]],
        give_up: Callable[[str], None],
    ) -> None:
        """`observed` takes what the gateway's processes have seen, `give_up` tells those of them that are not this one of a
        rollout that is rolled back."""
        url = settings.state.state_url
        self._election = self._shared = None
        if url is not None:
            from control_plane.fleet.adapters.redis_lease import make_redis_lease  # here: as in `stores`
            from control_plane.rollout.adapters.redis_evidence import make_redis_evidence

            # Of this run of this process: after a restart it has counted nothing yet.
            process = uuid4().hex
            self._election = LeaderElection(make_redis_lease(url, fleet=_LEASE_NAME), holder=process, of_what="the rollouts")
            self._shared = SharedEvidence(make_redis_evidence(url), services.known, process=process)
        self._tritons = tritons
        copies = None if tritons.fleet is None else KeptReplicas(tritons.fleet.state)
        self._load_timeout_s = settings.triton.load_timeout_s
        self.rollouts = Rollouts(
            Objects(services.state),
            services.known,
            ContractReader(self._reading),
            shared=self._shared,
            copies=copies,
            fencing_token=self._token,
        )
        self.rollouts.sources.append(observed)
        self.rollouts.on_given_up = give_up

    async def run(self) -> None:
        """Judge and step until cancelled."""
        if self._election is None or self._shared is None:
            await self.rollouts.run()
            return
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._election.run(), name="rollout-lease")
                tasks.create_task(self._shared.run(), name="rollout-evidence")
                tasks.create_task(self.rollouts.run(), name="rollout-steps")
        finally:
            await self._shared.close()
            await self._election.stop()

    def _token(self) -> int | None:
        if self._election is None:
            return 0
        return self._election.token if self._election.is_leader else None

    async def _reading(self, model: str) -> Upstream:
        if self._tritons.fleet is None:
            return self._tritons.servers.pick()
        return await self._tritons.fleet.dispatch.reading(model, timeout_s=self._load_timeout_s)
