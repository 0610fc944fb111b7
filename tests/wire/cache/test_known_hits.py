"""Hits of the response cache that came before over both frontends: known by the bytes of their message, until something changes."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from tritonclient.grpc import service_pb2

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import Outcome
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.grpc import GrpcAnswer, frame_message, message_answer
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.http2.headers import encode_fields
from control_plane.triton.ports import GrpcCall
from tests.aio import run
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.fakes.cache import keeping
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.wire.cache.response_cache_bench import as_triton_over_grpc, body, status_of
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.h2_calls import RAW_HEAD, Field, WholeCaller

FORWARDING = HeaderForwarding.of("^x-tenant$")


class Counting:
    """A model that never gives the same answer twice, cached until it is loaded anew.

    Without a request log, so that the verbatim cache is used.
    """

    def __init__(self, *, routes: tuple[Route, ...] = (), keys: tuple[ApiKey, ...] = ()) -> None:
        tenants = tuple(Tenant(name) for name in {key.tenant for key in keys})
        known = known_state(keys=keys, tenants=tenants, routes=routes)
        self.governed = governance(known, authentication=bool(keys), meter=FakeMeter(has_log=False))
        self.fingerprints = Fingerprints()
        self.load(b"1")
        self.cached = CachedInference(ResponseCache(self.fingerprints, EvictingCache(1 << 24)))
        self.computed = 0

    def load(self, digest: bytes) -> None:
        self.fingerprints.change({"m": Fingerprint(digest * 32, is_cacheable=True)})

    def http(self, request: HttpRequest) -> HttpAnswer:
        self.computed += 1
        given = {"id": asked["id"]} if (asked := json.loads(request.body)).get("id") else {}
        return make_answer(200, json.dumps({**given, "model_name": "m", "outputs": [self.computed]}, separators=(",", ":")).encode())

    def grpc(self, call: GrpcCall) -> GrpcAnswer:
        self.computed += 1
        asked = service_pb2.ModelInferRequest.FromString(bytes(call.frame[5:]))
        answer = service_pb2.ModelInferResponse(model_name="m", id=asked.id, raw_output_contents=[b"%d" % self.computed])
        return message_answer(answer.SerializeToString())

    def run_http(self, test: Callable[[HttpAsk], Awaitable[None]]) -> None:
        """`test` sends a body and lines of the head; it gets the cache status, id and number of the
        answer."""

        async def main() -> None:
            upstream = FakeUpstream(http=FakeHttp(answer=self.http))
            async with gateway(upstream, cached=self.cached, governed=self.governed, forwarding=FORWARDING) as running:
                client = await running.connect()

                async def ask(sent: bytes, headers: bytes = b"") -> Seen:
                    answer = await client.ask(infer_request(sent, headers=headers))
                    told = json.loads(answer.body)
                    return status_of(answer), told.get("id", ""), told["outputs"][0]

                await test(ask)
                running.inference.verbatim.flush_counts()
                assert 0.0 in [each.duration_s for each in running.recorder.records], "none was answered unread, which alone takes no time"
                assert len(running.recorder.records) == sum(self.cached.cache.counts.values())

        run(main())

    def run_grpc(self, test: Callable[[GrpcAsk], Awaitable[None]]) -> None:
        """As over HTTP, by a request's id and further fields of its head; each call is sent in one piece."""

        async def main() -> None:
            async with frontend(FakeGrpc(answer=self.grpc), cached=self.cached, governed=self.governed, forwarding=FORWARDING) as bench:
                caller = InferCaller(await bench.connect())
                await test(caller.ask)
                bench.inference.verbatim.flush_counts()
                assert 0.0 in [each.duration_s for each in bench.recorder.records], "none was answered unread, which alone takes no time"
                assert len(bench.recorder.records) == sum(self.cached.cache.counts.values())

        run(main())


Seen = tuple[str, str, int]
"""Cache status, id and number of an answer."""
HttpAsk = Callable[..., Awaitable[Seen]]
GrpcAsk = Callable[..., Awaitable[Seen]]


class InferCaller(WholeCaller):
    """Client that asks one model the same over and over."""

    async def ask(self, request_id: str = "", *fields: Field) -> Seen:
        request = service_pb2.ModelInferRequest(model_name="m", id=request_id, raw_input_contents=[b"abcd"])
        request.inputs.add(name="X", datatype="FP32", shape=[1])
        trailers, message = await self.infer(request.SerializeToString(), *fields)
        answer = service_pb2.ModelInferResponse.FromString(message)
        return trailers[b"tidegate-cache"].decode(), answer.id, int(answer.raw_output_contents[0])

    async def infer(self, message: bytes, *fields: Field) -> tuple[dict[bytes, bytes], bytes]:
        """Make a call; returns the trailers and the message of its answer."""
        seen = await self.call(encode_fields((*RAW_HEAD, *fields)), bytes(frame_message(message)))
        heads = [each for each in seen if isinstance(each, list)]
        return dict(heads[-1]), b"".join(each for each in seen if isinstance(each, bytes))[5:]


def test_http_hits_that_come_again_are_known_until_the_model_is_loaded_anew() -> None:
    model = Counting()

    async def test(ask: HttpAsk) -> None:
        for number in (1, 2):
            seen = [await ask(body(id="a")) for _ in range(4)]
            assert seen == [("miss", "a", number)] + [("hit", "a", number)] * 3
            model.load(b"2")
        model.load(b"1")  # as it was at first: what was kept then is right again
        assert [await ask(body(id="a")) for _ in range(3)] == [("hit", "a", 1)] * 3

    model.run_http(test)


def test_grpc_hits_that_come_again_are_known_until_the_model_is_loaded_anew() -> None:
    model = Counting()

    async def test(ask: GrpcAsk) -> None:
        for number in (1, 2):
            seen = [await ask("a") for _ in range(4)]
            assert seen == [("miss", "a", number)] + [("hit", "a", number)] * 3
            model.load(b"2")
        model.load(b"1")
        assert [await ask("a") for _ in range(3)] == [("hit", "a", 1)] * 3

    model.run_grpc(test)


def test_known_http_hits_have_their_callers_id_and_heed_their_heads() -> None:
    async def test(ask: HttpAsk) -> None:
        await ask(body(id="a"))
        for _ in range(4):
            assert [await ask(body(id=each)) for each in ("a", "b", "c")] == [("hit", each, 1) for each in ("a", "b", "c")]
        assert (await ask(body(id="a"), b"Cache-Control: no-cache\r\n"))[0] == "bypass"
        assert await ask(body(id="a")) == ("hit", "a", 1)

    Counting().run_http(test)


def test_known_grpc_hits_have_their_callers_id_and_heed_their_heads() -> None:
    async def test(ask: GrpcAsk) -> None:
        await ask("a")
        for _ in range(4):
            assert [await ask(each) for each in ("a", "b", "c")] == [("hit", each, 1) for each in ("a", "b", "c")]
        assert (await ask("a", (b"cache-control", b"no-cache")))[0] == "bypass"
        assert await ask("a") == ("hit", "a", 1)

    Counting().run_grpc(test)


def test_answers_are_kept_apart_by_what_is_forwarded() -> None:
    async def test(ask: HttpAsk) -> None:
        heads = (b"", b"X-Tenant: a\r\n", b"X-Tenant: b\r\n", b"X-Tenant: a\r\nX-Tenant: b\r\n", b"X-Tenant: \r\n")
        assert [await ask(body(), head) for head in heads] == [("miss", "", number) for number in (1, 2, 3, 4, 5)]
        for number, head in enumerate((*heads, *heads)):
            assert [await ask(body(), head) for _ in range(4)] == [("hit", "", number % 5 + 1)] * 4
        assert await ask(body(), b"X-Other: c\r\nX-Tenant: a\r\n") == ("hit", "", 2), "what goes nowhere makes no difference"
        assert await ask(body(), b"Authorization: Bearer x\r\n") == ("hit", "", 1)

    Counting().run_http(test)


def test_over_grpc_too() -> None:
    async def test(ask: GrpcAsk) -> None:
        heads: tuple[tuple[tuple[bytes, bytes], ...], ...] = ((), ((b"x-tenant", b"a"),), ((b"x-tenant", b"b"),))
        assert [await ask("i", *head) for head in heads] == [("miss", "i", number) for number in (1, 2, 3)]
        for _ in range(4):
            assert [await ask("i", *head) for head in heads] == [("hit", "i", number) for number in (1, 2, 3)]
        assert await ask("i", (b"x-other", b"c"), (b"x-tenant", b"a")) == ("hit", "i", 2)

    Counting().run_grpc(test)


OF_TWO_TENANTS = {
    "routes": (Route("m", "m", cache=CachePolicy(is_private=True)),),
    "keys": (api_key(1, "infer:m"), api_key(2, "infer:m", tenant="others"), api_key(3, "infer:m")),
}
"""A private route, and three keys; the first and the third are of one tenant."""


def test_known_http_hits_of_a_private_route_stay_their_tenants() -> None:
    async def test(ask: HttpAsk) -> None:
        keys = [b"x-api-key: %b\r\n" % key_text(number).encode() for number in (1, 2, 3)]
        assert [await ask(body(), key) for key in keys] == [("miss", "", 1), ("miss", "", 2), ("hit", "", 1)]
        for number, key in zip((1, 2, 1), keys, strict=True):
            assert [await ask(body(), key) for _ in range(4)] == [("hit", "", number)] * 4
        assert [await ask(body(), key) for key in keys] == [("hit", "", 1), ("hit", "", 2), ("hit", "", 1)]

    Counting(**OF_TWO_TENANTS).run_http(test)  # type: ignore[arg-type]


def test_known_grpc_hits_of_a_private_route_stay_their_tenants() -> None:
    async def test(ask: GrpcAsk) -> None:
        keys = [(b"x-api-key", key_text(number).encode()) for number in (1, 2, 3)]
        assert [await ask("", key) for key in keys] == [("miss", "", 1), ("miss", "", 2), ("hit", "", 1)]
        for _ in range(4):
            assert [await ask("", key) for key in keys] == [("hit", "", 1), ("hit", "", 2), ("hit", "", 1)]

    Counting(**OF_TWO_TENANTS).run_grpc(test)  # type: ignore[arg-type]


async def test_over_grpc_a_known_hit_beyond_its_tenants_rate_is_refused() -> None:
    known = known_state(keys=(api_key(1, "infer:m"),), tenants=(Tenant("team", requests_per_s=0.001, burst=4),))
    governed = governance(known, authentication=True, meter=FakeMeter(has_log=False))
    async with frontend(FakeGrpc(answer=as_triton_over_grpc), cached=keeping("m"), governed=governed) as bench:
        caller = InferCaller(await bench.connect())
        key = (b"x-api-key", key_text(1).encode())
        statuses = [(await caller.infer(infer_message(), key))[0][b"grpc-status"] for _ in range(6)]
        assert statuses == [b"0"] * 4 + [b"8"] * 2
        bench.inference.verbatim.flush_counts()
        assert sorted(bench.recorder.outcomes) == sorted([Outcome.ANSWERED] * 4 + [Outcome.REFUSED] * 2)
