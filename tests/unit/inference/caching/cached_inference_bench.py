"""A cached model over fakes, and requests to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.keys import CacheScope
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError, DeadlineExceeded
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus, Frontend, InferCall, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.core.tensor import Tensor
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.inference.inference import InferenceService
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import Upstream
from control_plane.triton.servers import Servers
from tests.aio import run_in_virtual_time, settle
from tests.fakes import FakeHttp, FakeRecorder, FakeUpstream
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.stores.shared_cache import FakeSharedCache
from tests.fakes.triton.unparsed_request import FakeUnparsedRequest

CALLER = Principal("team", "k1", EVERYTHING)


class Model:
    """Fake upstream of all requests: counts them, and may be slow or fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.takes_s = 0.0
        self.errors: list[ControlPlaneError] = []
        self.fails_with_an_answer = False
        self.tells_deadlines = False
        self.prefix = "answer to"


class Request(FakeUnparsedRequest):
    """Fake `InferRequest` whose answers are words: an id, and what was computed."""

    frontend = Frontend.HTTP

    def __init__(
        self, model: Model, text: str = "x", *, request_id: str = "", timeout_s: float | None = None, by: Principal = CALLER
    ) -> None:
        self.principal = by
        self.timeout_s = timeout_s
        self.model = model
        self.text = text
        self.id = request_id
        self.is_keyed = True
        self.beyond_it: dict[str, Any] = {}
        self.status: CacheStatus | None = None

    def read_at_once(self) -> None: ...

    def read(self) -> Steps[InferCall]:
        yield from ()
        return InferCall("m", "", self.id, (Tensor("X", "FP32", (3, 2)),), elements=6, **self.beyond_it)

    def readdress(self, model_name: str, model_version: str) -> None: ...

    async def send(self, server: Upstream, *, timeout_s: float) -> str:
        self.model.calls.append(self.text)
        error = self.model.errors.pop(0) if self.model.errors else None
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.sleep(self.model.takes_s)
        except TimeoutError as exc:
            raise DeadlineExceeded("too late") from exc
        if error is not None:
            raise error
        if self.model.tells_deadlines:
            return f"{self.id}:late"
        return f"{self.id}:{'error' if self.model.fails_with_an_answer else f'{self.model.prefix} {self.text}'}"

    def outcome(self, answer: str) -> Outcome:
        if answer.endswith("late"):
            return Outcome.DEADLINE_EXCEEDED
        return Outcome.UPSTREAM_ERROR if answer.endswith("error") else Outcome.ANSWERED

    def key(self, scope: CacheScope, call: InferCall) -> bytes | None:
        return scope.key(self.text.encode()) if self.is_keyed else None

    def encode_answer(self, answer: str) -> bytes | None:
        return None if answer.endswith(("error", "late")) else answer.partition(":")[2].encode()

    def decode_answer(self, encoded: bytes, status: CacheStatus) -> str:
        self.status = status
        return f"{self.id}:{encoded.decode()}"

    def keep_verbatim(self, call: InferCall, key: bytes, answer: str) -> None: ...

    def mark(self, answer: str, status: CacheStatus) -> str:
        self.status = status
        return answer


class Bench:
    def __init__(self, tasks: asyncio.TaskGroup, *, shared: FakeSharedCache | None = None, tenants: tuple[Tenant, ...] = ()) -> None:
        now_s = asyncio.get_running_loop().time
        servers = self.servers = Servers()
        servers.up(FakeUpstream(http=FakeHttp(config=b"{}")))
        self.model, self.meter, self.recorder = Model(), FakeMeter(), FakeRecorder()
        self.fingerprints = Fingerprints()
        self.load()
        self.cached = CachedInference(ResponseCache(self.fingerprints, EvictingCache(1 << 20), shared, now_s=now_s), now_s=now_s)
        self.cached.begin(tasks)
        rights = governance(known_state(tenants=tenants), now_s=now_s, meter=self.meter)
        self.admission = rights.admission
        common: dict[str, Any] = {"cached": self.cached, "default_timeout_s": 30.0, "allow_shared_memory": True, "now_s": now_s}
        self.service = InferenceService(servers=servers, recorder=self.recorder, governance=rights, **common)
        below = replace(rights, admission=self.admission.in_background())
        self.background = InferenceService(servers=servers, recorder=self.recorder, governance=below, **common)

    def load(self) -> None:
        self.fingerprints.change({"m": Fingerprint(b"d" * 32, is_cacheable=True)})

    def request(self, text: str = "x", **more: Any) -> Request:
        return Request(self.model, text, **more)

    async def infer(self, request: Request) -> str:
        return await self.service.infer(request)

    async def start(self, request: Request) -> asyncio.Task[str]:
        task = asyncio.get_running_loop().create_task(self.infer(request))
        await settle()
        return task

    @property
    def slots_are_free(self) -> bool:
        return self.admission.slots.of("m").are_idle and self.service.in_flight == 0


def with_bench(test: Callable[[Bench], Coroutine[Any, Any, None]], **more: Any) -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks, **more)
            await test(bench)
            await settle()
            assert bench.slots_are_free, "what was taken is given back"

    run_in_virtual_time(main())
