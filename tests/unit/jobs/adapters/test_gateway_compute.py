from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.jobs.adapters.gateway_compute import GatewayCompute
from control_plane.jobs.attempts import decode_attempt, encode_outcome
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpAnswer, HttpRequest, make_answer
from control_plane.triton.ports import HttpStream, Slot
from tests.fakes.jobs import job

DONE = make_answer(200, encode_outcome(Computed(make_answer(200, b"done"), "m", Usage(requests=1))))
GONE = UpstreamUnavailable("refused", is_not_sent=True)


@dataclass
class FakeGateway:
    """A gateway that gives one answer, or fails."""

    answer: HttpAnswer | Exception = field(default_factory=lambda: DONE)
    asked: list[HttpRequest] = field(default_factory=list)

    async def send(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer:
        self.asked.append(request)
        await asyncio.sleep(0)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def stream(self, request: HttpRequest, *, timeout_s: float, slot: Slot | None = None) -> HttpAnswer | HttpStream:
        raise NotImplementedError

    async def close(self) -> None: ...


async def test_gateways_compute_in_turn_what_they_are_handed() -> None:
    one, other = FakeGateway(), FakeGateway()
    compute = GatewayCompute([one, other])
    for number in range(4):
        async with compute.room_for(4):
            computed = await compute.compute(job(number), b"body")
        assert (computed.answer.body, computed.usage) == (b"done", Usage(requests=1))
    assert [len(each.asked) for each in (one, other)] == [2, 2]
    assert one.asked[0].target == f"/v2/jobs/{job(0).id}/compute".encode()
    found, body = decode_attempt(one.asked[0].body)
    assert (found.id, body) == (job(0).id, b"body")


@pytest.mark.parametrize("away", [GONE, make_answer(503), make_answer(404), make_answer(429), make_answer(400)])
async def test_a_gateway_that_computes_nothing_now_is_passed_over(away: HttpAnswer | Exception) -> None:
    one, other = FakeGateway(away), FakeGateway()
    compute = GatewayCompute([one, other])
    for _ in range(2):
        assert (await compute.compute(job(), b"")).answer.body == b"done"
    assert len(other.asked) == 2


@pytest.mark.parametrize(
    ("answer", "was_computed"),
    [
        pytest.param(GONE, False, id="not-there"),
        pytest.param(make_answer(403, b"needs the scope admin"), False, id="not-allowed"),
        pytest.param(UpstreamUnavailable("broke"), True, id="died-under-it"),
        pytest.param(DeadlineExceeded("late"), True, id="silent"),
        pytest.param(make_answer(413), True, id="too-large"),
        pytest.param(make_answer(500), True, id="failed-at-it"),
        pytest.param(make_answer(200, encode_outcome(TryAgain("busy", was_computed=True))), True, id="said-so"),
    ],
)
async def test_what_may_have_been_computed_counts_as_an_attempt(answer: HttpAnswer | Exception, was_computed: bool) -> None:
    with pytest.raises(TryAgain) as again:
        await GatewayCompute([FakeGateway(answer)]).compute(job(), b"")
    assert again.value.was_computed is was_computed
