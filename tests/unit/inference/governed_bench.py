"""An inference service with tenants, routes and a meter, and the requests that are put to it."""

from __future__ import annotations

import asyncio
from typing import Any

from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, InvalidRequest, Overloaded
from control_plane.core.infer_call import Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.core.tensor import Tensor
from control_plane.frontends.common.status import client_status_of
from control_plane.inference.inference import InferenceService
from control_plane.inference.retries.queries_of_death import QueriesOfDeath
from control_plane.inference.retries.retry_budget import RetryBudget
from control_plane.metering.domain.usage import UsageEvent
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from tests.fakes import FakeRecorder, FakeUpstream
from tests.fakes.governance import FakeCosts, FakeMeter, governance, known_state
from tests.fakes.triton.unparsed_request import FakeUnparsedRequest

TEAM = Principal("team", "k1", Scopes((parse_scope("infer:*"),)))
NOT_MINE = Principal("team", "k2", Scopes((parse_scope("infer:other"),)))
TODAY_S = 1_700_000_000.0


class Request(FakeUnparsedRequest):
    """Fake `InferRequest` and `GenerateRequest` for model `m`, with a batch of three rows of two numbers."""

    sends_whole = False
    frontend = Frontend.HTTP

    def __init__(self, principal: Principal = TEAM, *, timeout_s: float | None = None) -> None:
        self.principal = principal
        self.timeout_s = timeout_s
        self.answered = Outcome.ANSWERED
        self.error: Exception | None = None
        self.with_model: tuple[str, str] | None = None
        self.timeouts_s: list[float] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.answer: Any = "answer"
        self.id, self.name, self.is_open_ended = "id-1", "m", False

    def read_at_once(self) -> None: ...

    def read(self) -> Steps[InferCall]:
        if isinstance(self.error, InvalidRequest):
            raise self.error
        yield from ()
        return InferCall(self.name, "", self.id, (Tensor("X", "FP32", (3, 2)),), elements=6, is_open_ended=self.is_open_ended)

    def keep_refusal(self, call: InferCall, error: Overloaded) -> None:
        """It is refused anew each time."""

    def readdress(self, model_name: str, model_version: str) -> None:
        self.with_model = (model_name, model_version)

    async def send(self, server: Upstream, *, timeout_s: float) -> Any:
        self.timeouts_s.append(timeout_s)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return self.answer

    stream = send

    def ready_in_s(self, model: str) -> float:
        return 0.0

    def outcome(self, answer: object) -> Outcome:
        return self.answered


def now_s() -> float:
    """Virtual clock of the loop: time passes only where something sleeps."""
    return asyncio.get_running_loop().time()


class Dispatch:
    """Fake `inference/dispatch/dispatch.Dispatch` that records its calls."""

    catalogue = None

    def __init__(self) -> None:
        self.retries = RetryBudget()
        self.deaths = QueriesOfDeath()
        self.told: list[tuple[str, str, float | None, int]] = []

    def ready_in_s(self, model: str) -> float:
        return 0.0

    async def send(self, request: Any, call: InferCall, *, timeout_s: float, running: Any = None) -> Any:
        running.sent("triton")
        self.told.append((call.model_name, running.pool, running.units, running.priority))
        return await request.send(None, timeout_s=timeout_s)

    stream = send


class Bench:
    def __init__(self, *tenants: Tenant, routes: tuple[Route, ...] = (), max_in_flight_per_model: int = 1000, dispatch: Any = None) -> None:
        servers = Servers()
        servers.up(FakeUpstream())
        self.meter, self.recorder, self.costs = FakeMeter(), FakeRecorder(), FakeCosts()
        known = known_state(tenants=tenants or (Tenant("team"),), routes=routes)
        rights = governance(
            known,
            authentication=True,
            meter=self.meter,
            costs=self.costs,
            now_s=now_s,
            max_in_flight_per_model=max_in_flight_per_model,
        )
        self.service = InferenceService(
            servers=servers,
            recorder=self.recorder,
            governance=rights,
            default_timeout_s=30.0,
            dispatch=dispatch,
            client_status_of=client_status_of,
            now_s=now_s,
            today_s=lambda: TODAY_S,
        )

    @property
    def event(self) -> UsageEvent:
        (event,) = self.meter.events
        return event


async def ended(bench: Bench, request: Request) -> None:
    try:
        await bench.service.infer(request)
    except ControlPlaneError:
        return
