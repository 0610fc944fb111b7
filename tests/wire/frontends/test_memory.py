"""Memory of the data plane: what is alive of it does not grow with the requests that there were.

Counted in its own objects, since the process's size says less: the allocator gives little back, and tables of names grow
once. What callers vary in their heads fills tables of a megabyte each (`core/algorithms/bounded_cache`), and is not varied here.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import grpc.aio
import pytest

from control_plane.objects.domain.tenant import Tenant
from tests.aio import settle
from tests.fakes.governance import FakeMeter, api_key, governance, key_text, known_state
from tests.wire.gateway import Client, Gateway, infer_request
from tests.wire.grpc_frontend import INFER, Bench, infer_message
from tests.wire.inference.overload_bench import Triton, both_frontends

BEFORE, MORE = 100, 300
"""Requests of each protocol until all is there that stays, and after that."""
FEW = 30


class Ask(NamedTuple):
    """The requests of one protocol, each by its number."""

    http: Callable[[int], bytes]
    grpc: Callable[[int], tuple[bytes, tuple[tuple[str, str], ...]]]


KEY = key_text(1)


def _http(body_number: int = 0) -> bytes:
    body = b'{"id":"%d","inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[%d]}]}' % (body_number, body_number)
    return infer_request(body, headers=f"x-api-key: {KEY}\r\n".encode())


def _content(number: int) -> bytes:
    return infer_message(content=number.to_bytes(4, "little"))


ASKS = {
    "equal requests": Ask(lambda number: _http(), lambda number: (infer_message(), (("x-api-key", KEY),))),
    "other bodies": Ask(_http, lambda number: (_content(number), (("x-api-key", KEY),))),
}


@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
async def test_what_is_alive_does_not_grow_with_the_requests_that_there_were(asks: Ask) -> None:
    triton = Triton()
    triton.may_end.set()
    meter = FakeMeter()
    known = known_state(keys=(api_key(1, "infer:*"),), tenants=(Tenant("team"),))
    rights = governance(known, authentication=True, meter=meter)
    async with both_frontends(triton, rights) as (http, over_grpc):
        client = await http.connect()
        ask = _asking(asks, client, over_grpc)
        for number in range(BEFORE):
            await ask(number)
        before = await _alive(http, over_grpc, meter)
        for number in range(BEFORE, BEFORE + MORE):
            await ask(number)
        more = await _alive(http, over_grpc, meter) - before
    assert more.total() < FEW, more


def _asking(asks: Ask, client: Client, over_grpc: Bench) -> Callable[[int], Awaitable[None]]:
    async def ask(number: int) -> None:
        await client.ask(asks.http(number))
        message, metadata = asks.grpc(number)
        with suppress(grpc.aio.AioRpcError):
            await over_grpc.call(INFER, message, metadata=metadata)

    return ask


async def _alive(http: Gateway, over_grpc: Bench, meter: FakeMeter) -> Counter[str]:
    """The data plane's objects by class, without what the fakes of this test remember."""
    await settle()
    for remembered in (http.recorder.records, over_grpc.recorder.records, meter.events):
        remembered.clear()
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if str(type(each).__module__).startswith("control_plane"))
