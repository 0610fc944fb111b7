"""One gateway sends a request on to another: what goes with it, what is kept from it, and what its caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc.aio
import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import UpstreamUnavailable
from control_plane.inference.dispatch.region_failover import MAX_BODY_BYTES, RegionFailover
from control_plane.inference.governance import Governance
from control_plane.objects.domain.tenant import LOCAL, Tenant
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.regions.adapters.region_client import RegionClient
from control_plane.regions.domain.region import Region
from control_plane.regions.domain.verdict import RegionVerdict
from control_plane.regions.regions import Regions
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.wire.gateway import INFER, LIMITS, Answer, Gateway, gateway
from tests.wire.grpc_frontend import Bench, frontend, infer_message
from tests.wire.services import Services

TENANTS = (Tenant("team"), Tenant("resident", regions=LOCAL))
KEYS = (api_key(1, "infer:*"), api_key(2, "infer:*", tenant="resident"))
NOBODY = TcpAddress("127.0.0.1", 1)


def guarded(*, keys: int = 2, meter: FakeMeter | None = None) -> Governance:
    return governance(known_state(keys=KEYS[:keys], tenants=TENANTS), authentication=True, meter=meter)


@asynccontextmanager
async def knowing(services: Services, name: str, *, http: int | None = None, grpc: int | None = None) -> AsyncIterator[Regions]:
    """Let a gateway of the region `name` know another one, `there`, that is well."""
    over_http, over_grpc = (NOBODY if port is None else TcpAddress("127.0.0.1", port) for port in (http, grpc))
    region = Region("there", over_http, over_grpc)
    client = RegionClient(name, region, forwards="^x-seen$", max_answer_bytes=2**20)
    regions = Regions([] if http is None and grpc is None else [(region, client)])
    for standing in regions.standings:
        standing.heard(0.001)
    services.inference.region_failover = RegionFailover(regions, services.servers, services.inference.dispatch)
    try:
        yield regions
    finally:
        await client.close()


@asynccontextmanager
async def two_gateways(here: Governance, there: Governance) -> AsyncIterator[tuple[Gateway, Gateway, Regions]]:
    async with (
        gateway(governed=there) as other,
        gateway(governed=here) as own,
        knowing(other, "there"),
        knowing(own, "here", http=other.port) as regions,
    ):
        yield own, other, regions


async def ask(gateway: Gateway, *fields: str, body: bytes = INFER, model: str = "m") -> Answer:
    client = await gateway.connect()
    head = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *fields]
    return await client.ask("\r\n".join(head).encode() + b"\r\n\r\n" + body)


def key(number: int) -> str:
    return f"x-api-key: {key_text(number)}"


async def test_its_callers_key_goes_with_it_and_no_further() -> None:
    meter = FakeMeter()
    async with two_gateways(guarded(meter=meter), guarded()) as (here, there, regions):
        here.servers.down("Triton is gone")
        answer = await ask(here, key(1), "x-seen: yes", "x-other: no", "tidegate-timeout-ms: 5000", "x-forwarded-for: 1.2.3.4")
        assert (answer.status, answer.body) == (200, INFER)
        assert b"\r\ntidegate-region: there\r\n" in answer.head
        assert regions.totals == {("there", RegionVerdict.ANSWERED): 1}
        (got,) = there.upstream.http.requests
        names = {name.lower() for name, _ in got.headers}
        assert {b"tidegate-hop", b"x-seen", b"x-api-key", b"tidegate-timeout-ms"} <= names
        assert not names & {b"x-other", b"x-forwarded-for"}, "what models do not see, and what only proxies may say, stays"
        assert 4000 < int(dict(got.headers)[b"tidegate-timeout-ms"]) < 5000, "the rest of its time"
        assert there.inference.region_failover is not None
        assert there.inference.region_failover.guests == 1
        assert not meter.added, "its usage is counted there"
        assert [event.server for event in meter.events] == ["region:there"]


@pytest.mark.parametrize(
    ("fields", "keys_there", "asked"),
    [
        pytest.param((key(2),), 2, 0, id="its tenant's requests stay"),
        pytest.param((key(1),), 0, 1, id="its key is not known there"),
        pytest.param((key(1), "tidegate-hop: elsewhere"), 2, 0, id="it came from another region, or says so"),
    ],
)
async def test_what_may_not_leave_is_told_what_this_region_says(fields: Sequence[str], keys_there: int, asked: int) -> None:
    async with two_gateways(guarded(), guarded(keys=keys_there)) as (here, there, regions):
        here.servers.down("Triton is gone")
        answer = await ask(here, *fields)
        assert (answer.status, b"Triton is gone" in answer.body) == (503, True)
        assert b"tidegate-region" not in answer.head
        assert sum(regions.totals.values()) == asked
        assert not there.upstream.http.requests


@pytest.mark.parametrize(
    ("status", "told"),
    [(400, b"Triton is gone"), (404, b"Triton is gone"), (503, b"Triton is gone"), (500, b"which it may have computed")],
)
async def test_only_a_success_is_an_answer(status: int, told: bytes) -> None:
    async with two_gateways(guarded(), guarded()) as (here, there, _):
        here.servers.down("Triton is gone")
        there.upstream.http.answer = lambda request: make_answer(status, b"{}")
        answer = await ask(here, key(1))
        assert (answer.status, told in answer.body) == (503, True)


async def test_what_was_lost_at_its_triton_is_not_said_to_be_refused() -> None:
    def ends(request: HttpRequest) -> HttpAnswer:
        raise UpstreamUnavailable("Triton closed the connection before it answered")

    async with two_gateways(guarded(), guarded()) as (here, there, regions):
        here.servers.down("Triton is gone")
        there.upstream.http.answer = ends
        answer = await ask(here, key(1))
        assert (answer.status, b"region there has failed the request, which it may have computed" in answer.body) == (503, True)
        assert regions.totals == {("there", RegionVerdict.FAILED): 1}


async def test_a_model_that_only_the_other_region_has_is_computed_there() -> None:
    async with two_gateways(guarded(), guarded()) as (here, _, _):
        here.upstream.http.answer = lambda request: make_answer(404, b'{"error":"unknown model"}')
        assert b"tidegate-region: there" in (await ask(here, key(1))).head


async def test_what_the_model_itself_says_stays_its_answer() -> None:
    async with two_gateways(guarded(), guarded()) as (here, there, _):
        here.upstream.http.answer = lambda request: make_answer(400, b'{"error":"wrong shape"}')
        assert (await ask(here, key(1))).body == b'{"error":"wrong shape"}'
        assert not there.upstream.http.requests


async def test_a_large_request_stays() -> None:
    count = MAX_BODY_BYTES // 4
    json = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[%d],"parameters":{"binary_data_size":%d}}]}' % (count, 4 * count)
    limits = replace(LIMITS, max_body_bytes=8 << 20)
    async with gateway(limits=limits) as there, gateway(limits=limits) as here, knowing(here, "here", http=there.port):
        here.servers.down("Triton is gone")
        answer = await ask(here, f"inference-header-content-length: {len(json)}", body=json + bytes(4 * count))
        assert (answer.status, b"Triton is gone" in answer.body) == (503, True)
        assert not there.upstream.http.requests


async def test_one_of_another_region_is_computed_only_while_there_is_idle_room() -> None:
    async with gateway(governed=governance(max_in_flight_per_model=4)) as there, knowing(there, "there"):
        there.upstream.http.calls.hold()
        async with asyncio.TaskGroup() as tasks:
            own = [tasks.create_task(ask(there)) for _ in range(2)]
            while len(there.upstream.http.requests) < 2:
                await asyncio.sleep(0)
            refused = await ask(there, "tidegate-hop: here")
            assert (refused.status, b"other regions" in refused.body) == (503, True)
            assert len(there.upstream.http.requests) == 2
            there.upstream.http.calls.may_answer.set()
        assert [each.result().status for each in own] == [200, 200]
        assert (await ask(there, "tidegate-hop: here")).status == 200


async def test_over_grpc_its_callers_key_goes_with_it_too() -> None:
    async with (
        frontend(governed=guarded()) as there,
        frontend(governed=guarded()) as here,
        knowing(there, "there"),
        knowing(here, "here", grpc=there.port) as regions,
    ):
        here.servers.down("Triton is gone")
        metadata = (("authorization", f"Bearer {key_text(1)}"), ("x-seen", "yes"), ("x-other", "no"))
        call = here.call(message=infer_message(), metadata=metadata, timeout=5.0)
        assert await call
        assert dict(await call.trailing_metadata())["tidegate-region"] == "there"
        (got,) = there.upstream.grpc.requests
        names = {name for name, _ in got.head.metadata}
        assert b"x-seen" in names
        assert b"x-other" not in names
        assert got.head.timeout_s is not None
        assert 4.0 < got.head.timeout_s < 5.1  # gRPC's own client rounds it up, to 5.01 s
        assert regions.totals == {("there", RegionVerdict.ANSWERED): 1}
        there.upstream.grpc.requests.clear()
        await here.failure(message=infer_message(), metadata=(*metadata, ("tidegate-hop", "elsewhere")))
        assert not there.upstream.grpc.requests


async def test_over_grpc_an_unknown_key_there_is_a_refusal_here() -> None:
    async with (
        frontend(governed=guarded(keys=0)) as there,
        frontend(governed=guarded()) as here,
        knowing(here, "here", grpc=there.port) as regions,
    ):
        here.servers.down("Triton is gone")
        error = await here.failure(message=infer_message(), metadata=(("x-api-key", key_text(1)),))
        assert (error.code(), "Triton is gone" in (error.details() or "")) == (grpc.StatusCode.UNAVAILABLE, True)
        assert regions.totals == {("there", RegionVerdict.UNAUTHENTICATED): 1}


async def test_nobody_there_to_talk_to_is_a_refusal_here() -> None:
    for made in (gateway(), frontend()):
        async with made as here, knowing(here, "here", http=1, grpc=1) as regions:
            here.servers.down("Triton is gone")
            if isinstance(here, Bench):
                assert "Triton is gone" in ((await here.failure(message=infer_message())).details() or "")
            else:
                assert b"Triton is gone" in (await ask(here)).body
            assert regions.totals == {("there", RegionVerdict.UNREACHABLE): 1}


async def test_one_that_was_lost_there_is_not_said_to_be_refused() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.close()

    async with (
        await asyncio.start_server(hang_up, "127.0.0.1", 0) as listening,
        gateway() as here,
        knowing(here, "here", http=listening.sockets[0].getsockname()[1]),
    ):
        here.servers.down("Triton is gone")
        answer = await ask(here)
        assert (answer.status, b"region there was lost" in answer.body) == (503, True)
