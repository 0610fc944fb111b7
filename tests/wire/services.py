"""What the HTTP and the gRPC frontend of these tests have behind them: the real services, before a fake Triton."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import InitVar, dataclass, field

from control_plane.frontends.common.body_budget import BodyBudget
from control_plane.frontends.common.status import client_status_of
from control_plane.frontends.kserve.services import KServeServices
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.governance import Governance
from control_plane.inference.inference import InferenceService
from control_plane.protocols.header_forwarding import NO_FORWARDING, HeaderForwarding
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.telemetry.tracing import Tracer
from control_plane.triton.servers import Servers
from tests.aio import settle
from tests.fakes import FakeModels, FakeRecorder, FakeUpstream
from tests.fakes.governance import governance

INFER_TIMEOUT_S, READ_TIMEOUT_S = 30.0, 20.0


@dataclass(kw_only=True)
class Services:
    """The services of one data plane, as `app/data_plane/data_plane` wires them, before a fake Triton that is up."""

    upstream: FakeUpstream = field(default_factory=FakeUpstream)
    governed: Governance = field(default_factory=governance)
    cached: CachedInference | None = None
    models: FakeModels = field(default_factory=FakeModels)
    forwarding: HeaderForwarding = NO_FORWARDING
    body_limits: BodyLimits
    allow_shared_memory: bool = False
    tracer: Tracer | None = None
    max_buffered_bytes: InitVar[int]
    servers: Servers = field(init=False, default_factory=Servers)
    recorder: FakeRecorder = field(init=False, default_factory=FakeRecorder)
    budget: BodyBudget = field(init=False)
    inference: InferenceService = field(init=False)

    def __post_init__(self, max_buffered_bytes: int) -> None:
        self.servers.up(self.upstream)
        self.budget = BodyBudget(max_buffered_bytes)
        self.inference = InferenceService(
            servers=self.servers,
            recorder=self.recorder,
            governance=self.governed,
            cached=self.cached,
            client_status_of=client_status_of,
            default_timeout_s=INFER_TIMEOUT_S,
            allow_shared_memory=self.allow_shared_memory,
            tracer=self.tracer,
        )

    @property
    def kserve(self) -> KServeServices:
        return KServeServices(
            inference=self.inference,
            access=self.governed.access,
            servers=self.servers,
            models=self.models,
            budget=self.budget,
            forwarding=self.forwarding,
            limits=self.body_limits,
            read_timeout_s=READ_TIMEOUT_S,
            allow_shared_memory=self.allow_shared_memory,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.TaskGroup]:
        """The tasks of these services and of what serves them; when they have ended, nothing may be left."""
        async with asyncio.TaskGroup() as tasks:
            if self.cached is not None:
                self.cached.begin(tasks)
            yield tasks
        await settle()
        assert (self.budget.held_bytes, self.inference.in_flight) == (0, 0), "bytes of bodies and calls that were left"
