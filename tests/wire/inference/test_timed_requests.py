"""Times that answers tell to callers who ask for them, over both protocols."""

from __future__ import annotations

import asyncio
import gzip
import re

import pytest

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.core.fingerprint import Fingerprint
from control_plane.inference.caching.cached_inference import CachedInference
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.http1 import make_answer
from control_plane.protocols.server_timing import read_timing
from tests.fakes import FakeUpstream
from tests.fakes.governance import governance
from tests.fakes.spans import Spans
from tests.wire.gateway import INFER as BODY
from tests.wire.gateway import Answer, gateway, in_its_slot, infer_request
from tests.wire.grpc_frontend import INFER, frontend, infer_message

ASKS = b"Tidegate-Timing: 1\r\n"
METADATA = (("tidegate-timing", "1"),)
WAIT_S = 0.05


def told(answer: Answer) -> str:
    found = re.search(rb"\r\nserver-timing: (.*)\r\n", answer.head)
    return "" if found is None else found[1].decode()


class TestHttp:
    async def test_who_asks_is_told_and_nobody_else(self) -> None:
        async with gateway() as it:
            client = await it.connect()
            plain = [await client.ask(infer_request(headers=each)) for each in (b"", b"Tidegate-Timing: 0\r\n")]
            answer = await client.ask(infer_request(headers=ASKS))
        times = read_timing(told(answer))
        assert set(times) == {"total", "wait", "server"}
        assert 0 < times["server"] <= times["total"]
        assert [told(each) for each in plain] == ["", ""]
        assert answer.body == plain[0].body

    async def test_triton_gets_the_request_as_it_came(self) -> None:
        async with gateway() as it:
            await (await it.connect()).ask(infer_request(headers=ASKS))
            (request,) = it.upstream.http.requests
        assert request.header(b"traceparent") is None
        assert bytes(request.body) == BODY

    async def test_a_compressed_body_is_timed_too(self) -> None:
        async with gateway() as it:
            packed = infer_request(gzip.compress(BODY), headers=ASKS + b"Content-Encoding: gzip\r\n")
            assert told(await (await it.connect()).ask(packed)).startswith("total;dur=")

    async def test_the_wait_for_a_slot_is_told(self) -> None:
        async with gateway(governed=governance(max_in_flight_per_model=1)) as it:
            second = await it.connect()
            async with in_its_slot(it):
                await second.send(infer_request(headers=ASKS))
                while it.inference.in_flight < 2:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(WAIT_S)
            times = read_timing(told(await second.answer()))
        assert WAIT_S * 1e3 * 0.9 < times["wait"] < times["total"]

    async def test_what_the_cache_did_is_told(self) -> None:
        fingerprints = Fingerprints()
        fingerprints.change({"m": Fingerprint(bytes(32), is_cacheable=True)})
        async with gateway(FakeUpstream(), cached=CachedInference(ResponseCache(fingerprints, EvictingCache(1 << 20)))) as it:
            it.upstream.http.answer = lambda _: make_answer(200, b'{"outputs":[]}')
            client = await it.connect()
            miss, hit, again = [told(await client.ask(infer_request(headers=ASKS))) for _ in range(3)]
        assert miss.endswith("cache;desc=miss")
        assert [each.endswith("cache;desc=hit") for each in (hit, again)] == [True, True]
        assert "server" not in hit

    @pytest.mark.parametrize("path", [b"generate", b"generate_stream"])
    async def test_an_answer_that_may_be_streamed_tells_the_times_to_its_head(self, path: bytes) -> None:
        head = b'POST /v2/models/m/%b HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: 7\r\n\r\n{"X":1}'
        async with gateway() as it:
            client = await it.connect()
            answers = [await client.ask(head % (path, asks)) for asks in (b"", ASKS)]
        assert told(answers[0]) == ""
        assert set(read_timing(told(answers[1]))) == {"total", "wait", "server"}
        assert answers[1].status == 200

    async def test_a_sampled_request_has_its_spans_all_the_same(self) -> None:
        spans = Spans()
        async with gateway() as it:
            it.inference.tracer = spans.tracer
            answer = await (await it.connect()).ask(infer_request(headers=ASKS))
        assert read_timing(told(answer))["server"] > 0
        server, attempts, _ = spans.by_name()
        assert (server.name, len(attempts)) == ("infer m", 1)


class TestGrpc:
    async def test_who_asks_is_told_and_nobody_else(self) -> None:
        async with frontend() as it:
            plain, asked = it.call(INFER, infer_message()), it.call(INFER, infer_message(), metadata=METADATA)
            assert await plain == await asked == infer_message()
            found = [dict((await each.trailing_metadata()) or ()).get("server-timing") for each in (plain, asked)]
        assert found[0] is None
        assert set(read_timing(str(found[1]))) == {"total", "wait", "server"}
