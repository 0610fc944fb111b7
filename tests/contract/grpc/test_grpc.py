"""gRPC: unary calls and streams as raw messages, straight at Triton and through the gateway."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.contract.conftest import BothWays
from tests.contract.grpc.grpc_calls import ADMINISTERING, CALLS
from tests.contract.grpc.grpc_streams import STREAMS
from tests.contract.grpc.grpc_wire import Call, Outcome, Stream, call, channel, summary, talk
from tests.contract.ledger import compare

Both = tuple[grpc.Channel, grpc.Channel]


@pytest.fixture
def both(frontends: BothWays) -> Iterator[Both]:
    with channel(frontends.straight_grpc) as straight, channel(frontends.gateway_grpc) as gateway:
        yield straight, gateway


@pytest.mark.parametrize("what", [pytest.param(each, id=each.name) for each in CALLS])
def test_a_call_ends_the_same(both: Both, what: Call) -> None:
    compare(what.name, *(call(over, what) for over in both), summary)


@pytest.mark.parametrize("name", ADMINISTERING)
def test_calls_that_administer_end_the_same(both: Both, name: str) -> None:
    outcomes = [tuple(call(over, each) for each in ADMINISTERING[name]) for over in both]
    compare(f"grpc administering: {name}", *outcomes, summaries)


@pytest.mark.parametrize("what", [pytest.param(each, id=each.name) for each in STREAMS])
def test_a_stream_goes_the_same(both: Both, what: Stream) -> None:
    compare(what.name, *(talk(over, what) for over in both), summary)


def summaries(outcomes: tuple[Outcome, ...]) -> str:
    return ", ".join(map(summary, outcomes))
