"""The embeddings service over a fake Triton: calls, what they come to, and what the service shares."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.admission.admission import Admission
from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.ports import SharedCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.algorithms.steps import Steps
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus, Frontend
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.embeddings.domain.openai_request import EmbeddingsRequest
from control_plane.embeddings.embeddings import Embeddings, EmbeddingsAnswer
from control_plane.embeddings.text_models import TextModels
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.inference.inference import InferenceService
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.servers import Servers
from tests.aio import run_in_virtual_time, settle
from tests.fakes import FakeRecorder, FakeUpstream
from tests.fakes.governance import FakeMeter, governance, known_state
from tests.fakes.triton.text_model import FakeTextModel, no_parts
from tests.fakes.triton.unparsed_request import FakeUnparsedRequest

HIT, MISS, JOINED, BYPASS = CacheStatus.HIT, CacheStatus.MISS, CacheStatus.JOINED, CacheStatus.BYPASS
TENANTS = (Tenant("team"), Tenant("busy", concurrency=1))


@dataclass
class Request(FakeUnparsedRequest):
    """Fake `embeddings/embeddings.EmbeddingsCall`."""

    wanted: EmbeddingsRequest
    timeout_s: float | None = None
    accepts_cached_answers: bool = True
    principal: Principal = ANONYMOUS
    frontend: Frontend = Frontend.HTTP
    fields: Mapping[str, str] = field(default_factory=dict)

    def field(self, name: str) -> str | None:
        return self.fields.get(name)

    def read(self) -> Steps[EmbeddingsRequest]:
        yield
        return self.wanted


def texts(*those: bytes, model: str = "m", dimensions: int | None = None, **more: Any) -> Request:
    return Request(EmbeddingsRequest(model, those, False, False, dimensions), **more)


def tokens(*rows: Sequence[int]) -> Request:
    return Request(EmbeddingsRequest("m", tuple(array("q", row).tobytes() for row in rows), True, False, None))


class Shared:
    """Fake `cache/ports.SharedCache`."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.asked: list[int] = []
        self.computing_s: list[float] = []

    @property
    def answer_s(self) -> float:
        return 0.001

    async def get(self, keys: Sequence[bytes], *, computing_s: float) -> list[bytes | None]:
        self.computing_s.append(computing_s)
        self.asked.append(len(keys))
        await asyncio.sleep(0.001)
        return [self.values.get(key) for key in keys]

    def put(self, key: bytes, value: bytes, *, ttl_s: float) -> None:
        self.values[key] = value

    async def run(self) -> None: ...

    async def close(self) -> None: ...


class Bench:
    """The service with a fake Triton; a model's answers are cached unless its fingerprint forbids it."""

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        *,
        shared: SharedCache | None = None,
        routes: tuple[Route, ...] = (),
        enter: Callable[[Admission], Admission] = lambda own: own,
    ) -> None:
        now_s = asyncio.get_running_loop().time
        self.triton, self.upstream, self.servers = FakeTextModel(), FakeUpstream(), Servers()
        self.upstream.http.answer = self.triton
        self.servers.up(self.upstream)
        self.fingerprints, self.recorder, self.meter = Fingerprints(), FakeRecorder(), FakeMeter()
        self.load()
        known = known_state(routes=routes, tenants=TENANTS)
        rights = governance(known, now_s=now_s, meter=self.meter)
        rights = replace(rights, admission=enter(rights.admission))
        self.admission = rights.admission
        self.inference = InferenceService(
            servers=self.servers, recorder=self.recorder, governance=rights, default_timeout_s=30.0, now_s=now_s
        )
        self.cache = ResponseCache(self.fingerprints, EvictingCache(1 << 20), shared, now_s=now_s)
        self.service = Embeddings(
            inference=self.inference,
            models=TextModels(SingleServerDispatch(self.servers), self.fingerprints, rights.access, now_s=now_s),
            cache=self.cache,
            default_timeout_s=30.0,
            part_of=no_parts,
            now_s=now_s,
        )
        self.service.begin(tasks)

    def load(self, content: int = 0, *, is_cacheable: bool = True) -> None:
        self.fingerprints.change({"m": Fingerprint(b"%032d" % content, is_cacheable=is_cacheable)})

    async def embed(self, *those: bytes, **more: Any) -> EmbeddingsAnswer:
        return await self.service.embed(texts(*those, **more))

    async def start(self, *those: bytes, **more: Any) -> asyncio.Task[EmbeddingsAnswer]:
        task = asyncio.get_running_loop().create_task(self.embed(*those, **more))
        await settle()
        return task

    @property
    def is_idle(self) -> bool:
        return self.inference.in_flight == 0 and self.admission.slots.of("m").are_idle


def with_bench(test: Callable[[Bench], Coroutine[Any, Any, None]], **more: Any) -> None:
    """Run a test; when it ends, every permit and slot must have been released."""

    async def main() -> None:
        async with asyncio.TaskGroup() as tasks:
            bench = Bench(tasks, **more)
            await test(bench)
            await settle()
            assert bench.is_idle

    run_in_virtual_time(main())


def vectors(found: EmbeddingsAnswer) -> list[list[float]]:
    return [array("f", row.values).tolist() for row in found.rows]


def said(found: EmbeddingsAnswer) -> tuple[CacheStatus | None, int]:
    return found.status, found.hits
