from __future__ import annotations

import asyncio

import orjson
import pytest

from control_plane.core.errors import DeadlineExceeded, UpstreamUnavailable
from control_plane.jobs.adapters.gateway_compute import GatewayCompute
from control_plane.jobs.attempts import decode_attempt, encode_outcome
from control_plane.jobs.ports import Computed, TryAgain
from control_plane.metering.domain.usage import Usage
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.aio import settle
from tests.fakes.jobs import job
from tests.unit.jobs.adapters.fake_gateway import FakeGateway

GONE = UpstreamUnavailable("refused", is_not_sent=True)


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
        pytest.param(make_answer(502), True, id="died-behind-a-proxy"),
        pytest.param(make_answer(504), True, id="silent-behind-a-proxy"),
        pytest.param(make_answer(200, encode_outcome(TryAgain("busy", was_computed=True))), True, id="said-so"),
    ],
)
async def test_what_may_have_been_computed_counts_as_an_attempt(answer: HttpAnswer | Exception, was_computed: bool) -> None:
    with pytest.raises(TryAgain) as again:
        await GatewayCompute([FakeGateway(answer)]).compute(job(), b"")
    assert again.value.was_computed is was_computed


async def test_a_frozen_gateway_loses_its_attempts_and_gets_none_until_it_answers_again() -> None:
    frozen, other = FakeGateway(is_frozen=True), FakeGateway()
    compute = GatewayCompute([frozen, other], asked_every_s=0.001)
    frozen.goes_on.clear()
    with pytest.raises(TryAgain, match="says nothing any more") as again:
        await asyncio.wait_for(compute.compute(job(0), b""), 60.0)
    assert again.value.was_computed
    for number in range(1, 5):
        assert (await compute.compute(job(number), b"")).answer.body == b"done"
    assert (len(frozen.asked), len(other.asked)) == (1, 4)
    frozen.is_frozen = False
    frozen.goes_on.set()
    for number in range(5, 7):
        await compute.compute(job(number), b"")
    assert (len(frozen.asked), len(other.asked)) == (2, 5)


async def test_where_every_gateway_is_frozen_jobs_wait_and_no_attempt_is_counted() -> None:
    frozen = FakeGateway(is_frozen=True)
    compute = GatewayCompute([frozen], asked_every_s=0.001)
    frozen.goes_on.clear()
    with pytest.raises(TryAgain):
        await asyncio.wait_for(compute.compute(job(0), b""), 60.0)
    with pytest.raises(TryAgain, match="the gateway says nothing") as again:
        await compute.compute(job(1), b"")
    assert (again.value.was_computed, again.value.is_crowded, len(frozen.asked)) == (False, True, 1)


async def test_a_gateway_that_lives_may_compute_for_as_long_as_it_takes() -> None:
    gateway = FakeGateway()
    compute = GatewayCompute([gateway], asked_every_s=0.001)
    gateway.goes_on.clear()
    async with asyncio.TaskGroup() as tasks:
        computing = [tasks.create_task(compute.compute(job(number), b"")) for number in range(2)]
        while gateway.times_live < 20:
            await asyncio.sleep(0.001)
        assert not any(each.done() for each in computing)
        gateway.goes_on.set()
    assert [each.result().answer.body for each in computing] == [b"done", b"done"]
    asked = gateway.times_live
    await asyncio.sleep(0.02)
    assert gateway.times_live == asked, "nobody asks while nothing is under way"


def index(*models: str) -> HttpAnswer:
    return make_answer(200, orjson.dumps([{"name": model, "version": "1", "state": "READY"} for model in models]))


@pytest.mark.parametrize(
    ("answers", "hot"),
    [
        pytest.param((index("a"), index("b")), {"a", "b", "a-by-route"}, id="of-any-gateway"),
        pytest.param((index("c"), GONE), {"c"}, id="of-those-that-say"),
        pytest.param((index(), index()), set(), id="none"),
        pytest.param((GONE, make_answer(403)), {"a", "b", "c", "a-by-route"}, id="nobody-says"),
        pytest.param((make_answer(200, b"[1"), make_answer(200, b'{"a":1}')), {"a", "b", "c", "a-by-route"}, id="nonsense"),
    ],
)
async def test_what_the_gateways_have_loaded_is_hot(answers: tuple[HttpAnswer | Exception, ...], hot: set[str]) -> None:
    gateways = [FakeGateway(index=answer) for answer in answers]
    compute = GatewayCompute(gateways, model_of=lambda name: name.removesuffix("-by-route"))
    await compute.look()
    assert {name for name in ("a", "b", "c", "a-by-route") if compute.is_hot(name)} == hot


async def test_a_model_that_was_computed_is_hot_at_once_also_if_a_look_began_before() -> None:
    gateway = FakeGateway(index=index())
    compute = GatewayCompute([gateway])
    await compute.look()
    assert not compute.is_hot("m")
    await compute.compute(job(), b"")
    assert compute.is_hot("m")
    await compute.look()
    assert not compute.is_hot("m"), "it was unloaded since"
    for answer in (False, True):
        gateway.answers_index.clear()
        await compute.compute(job(), b"")
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(compute.look())
            await settle()
            assert compute.is_hot("m"), "while the gateway is asked"
            if answer:
                await compute.compute(job(), b"")
            gateway.answers_index.set()
            await looking
        assert compute.is_hot("m") is answer


async def test_what_was_known_holds_while_no_gateway_says_what_is_loaded() -> None:
    gateway = FakeGateway(index=index("a"))
    compute = GatewayCompute([gateway])
    await compute.look()
    await compute.compute(job(), b"")
    gateway.index = DeadlineExceeded("Triton loads")
    for _ in range(2):
        await compute.look()
        assert [compute.is_hot(name) for name in ("a", "m", "b")] == [True, True, False]
    gateway.index = index("b")
    await compute.look()
    assert [compute.is_hot(name) for name in ("a", "m", "b")] == [False, False, True]


async def test_an_answer_from_a_cache_or_a_refusal_says_nothing_of_what_is_loaded() -> None:
    for usage in (Usage(requests=2, cache_hits=2), Usage(refused=1), None):
        answer = make_answer(200, encode_outcome(Computed(make_answer(200), "m", usage)))
        compute = GatewayCompute([FakeGateway(answer, index=index())])
        await compute.look()
        await compute.compute(job(), b"")
        assert not compute.is_hot("m")


@pytest.mark.virtual_time
async def test_gateways_are_asked_what_is_loaded_while_jobs_are_claimed() -> None:
    gateway = FakeGateway(index=index("a"))
    compute = GatewayCompute([gateway])
    async with asyncio.TaskGroup() as tasks:
        following = tasks.create_task(compute.run())
        await asyncio.sleep(60.0)
        assert gateway.times_indexed == 0
        for _ in range(100):
            compute.is_hot("a")
            await asyncio.sleep(0.1)
        assert 15 <= gateway.times_indexed <= 21
        assert (compute.is_hot("a"), compute.is_hot("b")) == (True, False)
        following.cancel()
