"""The path of a cacheable request: what is computed, how often, for whom, and who is charged."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from control_plane.core.errors import ControlPlaneError, DeadlineExceeded, Overloaded, UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.infer_call import CacheStatus, Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import EVERYTHING
from control_plane.objects.domain.tenant import Tenant
from control_plane.triton.ports import Upstream
from tests.aio import settle
from tests.fakes.stores.shared_cache import FakeSharedCache
from tests.unit.inference.caching.cached_inference_bench import Bench, Request, with_bench


def test_what_was_computed_once_is_there() -> None:
    async def test(bench: Bench) -> None:
        first, again, other = bench.request(request_id="1"), bench.request(request_id="2"), bench.request("y")
        answers = [await bench.infer(request) for request in (first, again, other)]
        assert answers == ["1:answer to x", "2:answer to x", ":answer to y"]
        assert [request.status for request in (first, again, other)] == [CacheStatus.MISS, CacheStatus.HIT, CacheStatus.MISS]
        assert bench.model.calls == ["x", "y"]

    with_bench(test)


def test_a_hit_costs_no_units_and_is_counted_as_one() -> None:
    async def test(bench: Bench) -> None:
        await bench.infer(bench.request())
        await bench.infer(bench.request())
        computed, hit = bench.meter.events
        assert (computed.compute_units, computed.cache_hit, computed.rows, computed.model) == (3.0, False, 3, "m")
        assert (hit.compute_units, hit.cache_hit, hit.rows, hit.elements, hit.model) == (0.0, True, 3, 6, "m")
        assert bench.recorder.outcomes == [Outcome.ANSWERED] * 2

    with_bench(test)


def test_a_thousand_at_once_are_one_inference() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        requests = [bench.request(request_id=str(number)) for number in range(1000)]
        answers = await asyncio.gather(*map(bench.infer, requests))
        assert answers == [f"{number}:answer to x" for number in range(1000)]
        assert bench.model.calls == ["x"]
        assert [request.status for request in requests] == [CacheStatus.MISS] + [CacheStatus.JOINED] * 999
        assert sum(event.compute_units for event in bench.meter.events) == 3.0

    with_bench(test)


@pytest.mark.parametrize("leaves_after_s", [0.0, 0.5], ids=["before its turn", "computing"])
def test_the_first_callers_leaving_ends_nothing_and_it_pays(leaves_after_s: float) -> None:
    async def test(bench: Bench) -> None:
        await bench.infer(bench.request("known"))
        bench.meter.events.clear()
        bench.model.calls.clear()
        bench.model.takes_s = 1.0
        loop = asyncio.get_running_loop()
        first, second = (loop.create_task(bench.infer(bench.request())) for _ in range(2))
        await asyncio.sleep(leaves_after_s)
        first.cancel()
        await settle()
        assert not bench.admission.slots.of("m").are_idle, "the computation holds its slot"
        assert bench.meter.events == [], "nor is it at an end for its first caller's tenant"
        assert await second == ":answer to x"
        assert bench.model.calls == ["x"]
        ended = {event.outcome: event.compute_units for event in bench.meter.events}
        assert ended == {Outcome.ABANDONED: 3.0, Outcome.ANSWERED: 0.0}

    with_bench(test)


def test_a_caller_joins_no_work_in_the_background() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        job = asyncio.get_running_loop().create_task(bench.background.infer(bench.request()))
        await settle()
        caller, other = await bench.start(bench.request()), await bench.start(bench.request())
        assert bench.model.calls == ["x", "x"]
        assert await asyncio.gather(job, caller, other) == [":answer to x"] * 3

    with_bench(test)


def test_all_callers_leaving_ends_it() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        waiting = [await bench.start(bench.request()) for _ in range(3)]
        for task in waiting:
            task.cancel()
        await settle()
        assert bench.slots_are_free
        bench.model.takes_s = 0.0
        assert await bench.infer(bench.request()) == ":answer to x"
        assert bench.model.calls == ["x", "x"]

    with_bench(test)


@pytest.mark.parametrize("error", [DeadlineExceeded("late"), Overloaded("busy", retry_after_s=1.0)], ids=["deadline", "overload"])
def test_what_only_the_first_callers_limits_did_is_not_the_others_lot(error: ControlPlaneError) -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        bench.model.errors = [error]
        first, *others = [await bench.start(bench.request()) for _ in range(4)]
        with pytest.raises(type(error)):
            await first
        assert [await task for task in others] == [":answer to x"] * 3
        assert bench.model.calls == ["x", "x"], "one of them computed it for all"

    with_bench(test)


def test_no_server_is_told_to_everybody_at_once() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        bench.model.errors = [UpstreamUnavailable("none")]
        results = await asyncio.gather(*[bench.infer(bench.request()) for _ in range(5)], return_exceptions=True)
        assert {str(result) for result in results} == {"none"}
        assert bench.model.calls == ["x"]

    with_bench(test)


def test_a_models_error_is_given_to_those_who_joined_and_not_kept() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s, bench.model.fails_with_an_answer = 1.0, True
        assert await asyncio.gather(*[bench.infer(bench.request()) for _ in range(5)]) == [":error"] * 5
        assert bench.model.calls == ["x"]
        bench.model.fails_with_an_answer = False
        assert await bench.infer(bench.request()) == ":answer to x"

    with_bench(test)


def test_an_error_that_may_tell_an_id_is_its_owners() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s, bench.model.fails_with_an_answer = 1.0, True
        requests = [bench.request(request_id=each) for each in ("1", "2", "1")]
        assert await asyncio.gather(*map(bench.infer, requests)) == ["1:error", "2:error", "1:error"]
        assert len(bench.model.calls) == 2

    with_bench(test)


def test_one_who_joins_waits_no_longer_than_its_own_deadline() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 10.0
        first = await bench.start(bench.request())
        with pytest.raises(DeadlineExceeded):
            await bench.infer(bench.request(timeout_s=1.0))
        assert await first == ":answer to x"

    with_bench(test)


def test_a_short_deadline_of_the_first_is_not_the_others() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 10.0
        first = await bench.start(bench.request(timeout_s=1.0))
        second = await bench.start(bench.request())
        with pytest.raises(DeadlineExceeded):
            await first
        assert await second == ":answer to x"

    with_bench(test)


def test_a_deadline_that_is_told_as_an_answer_is_not_the_others_lot_either() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        bench.model.tells_deadlines = True
        first, *others = [await bench.start(bench.request()) for _ in range(4)]
        assert await first == ":late"
        bench.model.tells_deadlines = False
        assert [await task for task in others] == [":answer to x"] * 3
        assert bench.model.calls == ["x", "x"]

    with_bench(test)


def test_who_comes_in_the_turn_in_which_a_deadline_is_told_as_an_answer_computes_it_himself() -> None:
    """The flight is at an end by then, and still known: who tried to join it again and again would do so for ever."""

    class Looking(Request):
        def outcome(self, answer: str) -> Outcome:
            self.looks = getattr(self, "looks", 0) + 1
            assert self.looks < 10, "it joins the same flight again and again"
            return super().outcome(answer)

    async def test(bench: Bench) -> None:
        others: list[asyncio.Task[str]] = []

        class First(Request):
            async def send(self, server: Upstream, *, timeout_s: float) -> str:
                await super().send(server, timeout_s=timeout_s)
                others.append(asyncio.get_running_loop().create_task(bench.infer(Looking(bench.model))))
                return ":late"

        assert await bench.infer(First(bench.model)) == ":late"
        assert await others[0] == ":answer to x"

    with_bench(test)


@pytest.mark.parametrize(("takes_s", "first", "others"), [(1.5, ":error", ":answer to x"), (0.5, ":error", ":error")])
def test_an_error_that_comes_after_the_deadline_of_the_first_is_its_own(takes_s: float, first: str, others: str) -> None:
    """A model that was told of the deadline says so itself, and not in the words of a protocol."""

    class Untimed(Request):
        async def send(self, server: Upstream, *, timeout_s: float) -> str:
            return await super().send(server, timeout_s=30.0)

    async def test(bench: Bench) -> None:
        bench.model.takes_s, bench.model.fails_with_an_answer = takes_s, True
        leader = await bench.start(Untimed(bench.model, timeout_s=1.0))
        followers = [await bench.start(bench.request(timeout_s=9.0)) for _ in range(3)]
        assert await leader == first
        bench.model.fails_with_an_answer = False
        assert [await task for task in followers] == [others] * 3
        assert bench.model.calls == ["x"] * len({first, others})

    with_bench(test)


def test_after_a_reload_and_back_nobody_joins_what_was_asked_before() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        before = await bench.start(bench.request())
        bench.fingerprints.change({"m": None})
        bench.model.prefix = "another answer to"  # by what was loaded in between
        bench.load()
        after = await bench.start(bench.request())
        assert len(bench.model.calls) == 2
        bench.model.prefix = "answer to"
        await asyncio.gather(before, after)

    with_bench(test)


def test_what_has_no_key_is_computed_and_says_so() -> None:
    async def test(bench: Bench) -> None:
        for _ in range(2):
            request = bench.request()
            request.is_keyed = False
            assert await bench.infer(request) == ":answer to x"
            assert request.status is CacheStatus.BYPASS
        assert len(bench.model.calls) == 2

    with_bench(test)


@pytest.mark.parametrize("beyond_it", [{"uses_shared_memory": True}, {"sequence_id": "7"}], ids=["shared memory", "a sequence"])
def test_what_depends_on_more_than_the_request_is_computed(beyond_it: dict[str, Any]) -> None:
    async def test(bench: Bench) -> None:
        for _ in range(2):
            request = bench.request()
            request.beyond_it = beyond_it
            assert await bench.infer(request) == ":answer to x"
            assert request.status is CacheStatus.BYPASS
        assert len(bench.model.calls) == 2

    with_bench(test)


def test_a_reload_is_seen_at_once() -> None:
    async def test(bench: Bench) -> None:
        await bench.infer(bench.request())
        bench.fingerprints.change({"m": None})
        during = bench.request()
        await bench.infer(during)
        assert during.status is None, "of what is not known nothing is said"
        bench.model.prefix = "new answer to"
        bench.fingerprints.change({"m": Fingerprint(b"e" * 32, is_cacheable=True)})
        assert [await bench.infer(bench.request()) for _ in range(2)] == [":new answer to x"] * 2
        assert len(bench.model.calls) == 3

    with_bench(test)


def test_what_was_under_way_during_a_reload_is_neither_kept_nor_joined_afterwards() -> None:
    async def test(bench: Bench) -> None:
        bench.model.takes_s = 1.0
        old = await bench.start(bench.request())
        bench.fingerprints.change({"m": None})
        bench.fingerprints.change({"m": Fingerprint(b"e" * 32, is_cacheable=True)})
        new = await bench.start(bench.request())
        assert await asyncio.gather(old, new) == [":answer to x"] * 2
        assert len(bench.model.calls) == 2
        bench.load()  # the first content again: its answers may be the old ones, the one that was under way is not among them
        await bench.infer(bench.request())
        assert len(bench.model.calls) == 3

    with_bench(test)


def test_tenants_share_unless_their_limits_say_no() -> None:
    async def test(bench: Bench) -> None:
        other = Principal("other", "k2", EVERYTHING)
        await bench.infer(bench.request())
        assert await bench.infer(bench.request(by=other)) == ":answer to x"
        with pytest.raises(ControlPlaneError, match="1 requests per second"):
            await bench.infer(bench.request(by=other))
        assert bench.model.calls == ["x"]

    with_bench(test, tenants=(Tenant("other", requests_per_s=1.0, burst=1),))


def test_level_two_is_asked_once_and_its_answer_is_everybodys() -> None:
    shared = FakeSharedCache(delay_s=0.001)

    async def first(bench: Bench) -> None:
        await bench.infer(bench.request())
        assert shared.counts.written == 1

    async def second(bench: Bench) -> None:
        requests = [bench.request(request_id=str(number)) for number in range(3)]
        assert await asyncio.gather(*map(bench.infer, requests)) == [f"{number}:answer to x" for number in range(3)]
        assert bench.model.calls == []
        assert [request.status for request in requests] == [CacheStatus.HIT, CacheStatus.JOINED, CacheStatus.JOINED]
        assert all(event.cache_hit and event.compute_units == 0 for event in bench.meter.events)

    with_bench(first, shared=shared)
    with_bench(second, shared=shared)
    assert (shared.counts.misses, shared.counts.hits) == (1, 1)


def test_level_two_is_asked_while_it_is_quicker_than_computing_was() -> None:
    shared = FakeSharedCache(delay_s=0.008)

    async def test(bench: Bench) -> None:
        bench.model.takes_s = 0.013
        await bench.infer(bench.request("first"))
        await bench.infer(bench.request("second"))
        assert shared.counts.misses == 2
        for number in range(9):
            bench.model.takes_s = 0.005 if number < 5 else 0.013
            await bench.infer(bench.request(f"quick {number}"))
        slow = shared.counts.slow
        assert slow > 0
        bench.model.takes_s = 0.013
        for number in range(9):
            await bench.infer(bench.request(f"slow {number}"))
        misses = shared.counts.misses
        await bench.infer(bench.request("last"))
        assert shared.counts.misses == misses + 1

    with_bench(test, shared=shared)


def test_what_level_two_took_is_taken_off_what_the_caller_has_left() -> None:
    shared = FakeSharedCache(delay_s=0.02)

    async def test(bench: Bench) -> None:
        bench.model.takes_s = 0.09
        with pytest.raises(DeadlineExceeded):
            await bench.infer(bench.request(timeout_s=0.1))
        assert shared.counts.misses == 1

    with_bench(test, shared=shared)
