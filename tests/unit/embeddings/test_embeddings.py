"""Embeddings of a call's texts: each looked up in the cache, the rest computed together, once for all equal
calls."""

from __future__ import annotations

import asyncio
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.core.errors import (
    ControlPlaneError,
    InvalidRequest,
    LimitExceeded,
    ModelNotFound,
    Overloaded,
    PermissionDenied,
    UpstreamFailed,
    UpstreamUnavailable,
)
from control_plane.core.infer_call import Outcome
from control_plane.core.principal import Principal
from control_plane.core.scope import Scopes, parse_scope
from control_plane.objects.domain.route import CachePolicy, Route
from control_plane.protocols.http1 import HttpAnswer, make_answer
from tests.aio import settle
from tests.fakes.triton.text_model import embedding_of
from tests.unit.embeddings.embeddings_bench import (
    BYPASS,
    HIT,
    MISS,
    Bench,
    said,
    tokens,
    vectors,
    with_bench,
)


def test_texts_are_answered_in_their_order_with_their_tokens() -> None:
    async def test(bench: Bench) -> None:
        asked = [b"one", b"three", b"a", b"one", b"four"]
        found = await bench.embed(*asked)

        assert vectors(found) == [embedding_of(text) for text in asked]
        assert [row.tokens for row in found.rows] == [3, 5, 1, 3, 4]
        assert sorted(bench.triton.computed) == sorted(set(asked))
        assert (found.model, said(found)) == ("m", (MISS, 0))

    with_bench(test)


def test_what_is_kept_is_not_computed_again_and_the_rest_is() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a", b"b")
        found = await bench.embed(b"c", b"b", b"c", b"a", b"b")

        assert vectors(found) == [embedding_of(text) for text in (b"c", b"b", b"c", b"a", b"b")]
        assert said(found) == (MISS, 3)
        assert said(await bench.embed(b"c", b"a")) == (HIT, 2)
        assert bench.triton.batches == [[b"a", b"b"], [b"c"]]
        assert bench.cache.counts == {("m", MISS): 4, ("m", HIT): 5}
        assert bench.recorder.computed == ["m", "m"], "a call is one request, which is computed if one of its texts is"

    with_bench(test)


def test_a_model_that_is_loaded_anew_computes_anew() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a")
        bench.load(1)

        assert said(await bench.embed(b"a")) == (MISS, 0)
        assert bench.triton.batches == [[b"a"], [b"a"]]

    with_bench(test)


SOME_TEXTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), min_size=1, max_size=8)


@settings(deadline=None)
@given(steps=st.lists(st.one_of(st.just("load"), st.lists(SOME_TEXTS, min_size=1, max_size=4)), max_size=10))
def test_whatever_came_before_an_answer_is_what_the_loaded_model_says(steps: list[str | list[list[bytes]]]) -> None:
    async def test(bench: Bench) -> None:
        for step in steps:
            if isinstance(step, str):
                bench.triton.loads += 1
                bench.load(bench.triton.loads)
                continue
            found = await asyncio.gather(*(bench.embed(*some) for some in step))
            for some, each in zip(step, found, strict=True):
                assert vectors(each) == [embedding_of(text, bench.triton.loads) for text in some]
        assert all(len(set(batch)) == len(batch) for batch in bench.triton.batches)

    with_bench(test)


def test_what_is_computed_while_the_model_is_loaded_is_not_kept() -> None:
    async def test(bench: Bench) -> None:
        bench.upstream.http.calls.hold()
        bench.upstream.http.calls.may_answer.set()
        await bench.embed(b"first")
        bench.upstream.http.calls.hold()
        task = await bench.start(b"a")
        bench.load()
        bench.upstream.http.calls.may_answer.set()

        assert said(await task) == (MISS, 0)
        assert said(await bench.embed(b"a")) == (MISS, 0)

    with_bench(test)


def test_a_model_whose_answers_are_not_kept_says_nothing_of_a_cache() -> None:
    async def test(bench: Bench) -> None:
        bench.load(is_cacheable=False)
        for _ in range(2):
            assert said(await bench.embed(b"a", b"a")) == (None, 0)
        assert bench.triton.batches == [[b"a"], [b"a"]]

    with_bench(test)


def test_a_caller_may_want_it_computed() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a")

        assert said(await bench.embed(b"a", accepts_cached_answers=False)) == (BYPASS, 0)
        assert len(bench.triton.batches) == 2

    with_bench(test)


def test_private_routes_keep_tenants_apart_and_others_do_not() -> None:
    everything = Scopes((parse_scope("infer:*"),))
    one, other = (Principal(name, "key", everything) for name in ("team", "busy"))

    async def test(bench: Bench) -> None:
        assert said(await bench.embed(b"a", model="own", principal=one)) == (MISS, 0)
        assert said(await bench.embed(b"a", model="own", principal=other)) == (MISS, 0)
        assert said(await bench.embed(b"a", model="own", principal=one)) == (HIT, 1)
        assert said(await bench.embed(b"a", model="everybodys", principal=one)) == (MISS, 0)
        assert said(await bench.embed(b"a", model="everybodys", principal=other)) == (HIT, 1)
        assert said(await bench.embed(b"a", model="never", principal=other)) == (None, 0)

    never = Route("never", "m", cache=CachePolicy(is_on=False))
    with_bench(test, routes=(Route("own", "m", cache=CachePolicy(is_private=True)), Route("everybodys", "m"), never))


def test_a_route_says_which_version_of_which_model() -> None:
    async def test(bench: Bench) -> None:
        found = await bench.embed(b"a", model="r")

        assert found.model == "m"
        assert bench.triton.targets == [b"/v2/models/m/versions/3/config", b"/v2/models/m/versions/3/infer"]
        assert said(await bench.embed(b"a")) == (MISS, 0)

    with_bench(test, routes=(Route("r", "m", version="3"),))


@pytest.mark.parametrize(
    ("answer", "error", "outcome"),
    [
        pytest.param(make_answer(404, b'{"error":"gone"}'), ModelNotFound, Outcome.MODEL_NOT_FOUND, id="unloaded"),
        pytest.param(make_answer(503, b'{"error":"busy"}'), UpstreamUnavailable, Outcome.UNAVAILABLE, id="busy"),
        pytest.param(make_answer(400, b'{"error":"no"}'), InvalidRequest, Outcome.REFUSED, id="refused"),
        pytest.param(make_answer(200, b"{}"), UpstreamFailed, Outcome.UPSTREAM_ERROR, id="nonsense"),
    ],
)
def test_errors_of_tritons_are_told_recorded_and_not_kept(answer: HttpAnswer, error: type[ControlPlaneError], outcome: Outcome) -> None:
    async def test(bench: Bench) -> None:
        bench.triton.failure = lambda request: answer
        with pytest.raises(error):
            await bench.embed(b"a")
        bench.triton.failure = lambda request: None
        assert said(await bench.embed(b"a")) == (MISS, 0)
        assert bench.recorder.outcomes == [outcome, Outcome.ANSWERED]

    with_bench(test)


@pytest.mark.parametrize(
    ("failure", "is_death"),
    [
        pytest.param(make_answer(503, b'{"error":"[request id: 7] Exceeds maximum queue size"}'), False, id="a full queue"),
        pytest.param(make_answer(503, b'{"error":"[request id: 7] Request timeout expired"}'), False, id="expired"),
        pytest.param(UpstreamUnavailable("Triton closed the connection before it answered"), True, id="a lost connection"),
    ],
)
def test_only_after_a_lost_connection_a_process_may_have_died_under_a_call(failure: object, is_death: bool) -> None:
    def fail(request: object) -> HttpAnswer:
        if isinstance(failure, HttpAnswer):
            return failure
        assert isinstance(failure, Exception)
        raise failure

    async def test(bench: Bench) -> None:
        bench.triton.failure = fail
        with pytest.raises(UpstreamUnavailable):
            await bench.embed(b"a")
        assert bench.inference.dispatch.deaths.watches("m") is is_death

    with_bench(test)


def test_who_may_not_or_comes_too_often_is_refused_and_nothing_is_asked() -> None:
    stranger = Principal("team", "key", Scopes((parse_scope("infer:other"),)))
    busy = Principal("busy", "key", Scopes((parse_scope("infer:*"),)))

    async def test(bench: Bench) -> None:
        with pytest.raises(PermissionDenied, match="'m' needs a scope"):
            await bench.embed(b"a", principal=stranger)
        assert bench.triton.targets == []
        await bench.embed(b"a")
        bench.upstream.http.calls.hold()
        first = await bench.start(b"b", principal=busy)
        with pytest.raises(LimitExceeded):
            await bench.embed(b"a", principal=busy)
        bench.upstream.http.calls.may_answer.set()
        await first

    with_bench(test)


def test_a_busy_model_turns_away_what_must_be_computed_and_not_what_is_kept() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a")
        permits = [bench.admission.admit("") for _ in range(1000)]
        for permit in permits:
            await permit.acquire_slot("m", cost_units=1.0, deadline_s=1e6)

        assert said(await bench.embed(b"a")) == (HIT, 1)
        with pytest.raises(Overloaded):
            await bench.embed(b"b", timeout_s=1.0)
        bench.inference.dispatch.ready_in_s = lambda model: 700.0  # type: ignore[method-assign]
        with pytest.raises(Overloaded) as told:
            await bench.embed(b"b", timeout_s=1.0)
        assert told.value.retry_after_s == 700.0, "until its model is loaded"
        for permit in permits:
            permit.release()

    with_bench(test)


def test_who_leaves_half_way_is_charged_for_what_was_sent() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"so that the model is known")
        bench.upstream.http.calls.hold()
        asking = await bench.start(*(b"text %d" % number for number in range(40)))
        batches = bench.upstream.http.calls.in_progress
        assert 0 < batches * bench.triton.max_batch_size < 40
        asking.cancel()
        await settle()
        _, event = bench.meter.events
        assert (event.outcome, event.compute_units) == (Outcome.ABANDONED, pytest.approx(batches * bench.triton.max_batch_size))

    with_bench(test)


def test_usage_is_charged_for_what_was_computed_and_counts_all_rows() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a", b"b")
        await bench.embed(b"a", b"c", b"a")
        await bench.embed(b"a", b"b")

        rows = [(event.model, event.rows, event.elements, event.compute_units, event.cache_hit) for event in bench.meter.events]
        assert rows == [("m", 2, 2, 2.0, False), ("m", 3, 3, 1.0, False), ("m", 2, 2, 0.0, True)]

    with_bench(test)


@pytest.mark.parametrize("dimensions", [None, 3])
def test_dimensions_are_the_models(dimensions: int | None) -> None:
    async def test(bench: Bench) -> None:
        assert vectors(await bench.embed(b"a", dimensions=dimensions)) == [embedding_of(b"a")]
        with pytest.raises(InvalidRequest, match="dimensions must be 3, which is what model 'm' has, or be left out"):
            await bench.embed(b"a", dimensions=2)

    with_bench(test)


def test_tokens_go_to_models_that_take_them_and_are_kept_apart_from_texts() -> None:
    async def test(bench: Bench) -> None:
        with pytest.raises(InvalidRequest, match="takes texts, not tokens"):
            await bench.service.embed(tokens([65]))
        bench.triton.takes_tokens = True
        bench.load()
        row = array("q", [65]).tobytes()
        await bench.embed(row)

        found = await bench.service.embed(tokens([65], [66, 67, 68]))

        assert vectors(found) == [embedding_of(b"A"), embedding_of(b"BCD")]
        assert ([each.tokens for each in found.rows], said(found)) == ([1, 3], (MISS, 0))
        assert bench.triton.batches[1:] == [[b"A", b"BCD"]]

    with_bench(test)


def test_where_the_model_does_not_count_tokens_are_estimated() -> None:
    async def test(bench: Bench) -> None:
        bench.triton.counts_tokens = False
        for _ in range(2):
            assert [row.tokens for row in (await bench.embed(b"a" * 45)).rows] == [12]

    with_bench(test)


def test_a_model_without_a_batch_is_asked_text_by_text() -> None:
    async def test(bench: Bench) -> None:
        bench.triton.max_batch_size = 0
        bench.load(is_cacheable=False)
        assert vectors(await bench.embed(b"a", b"bc")) == [embedding_of(b"a"), embedding_of(b"bc")]
        assert bench.triton.batches == [[b"a"], [b"bc"]]

    with_bench(test)


def test_without_triton_it_is_unavailable() -> None:
    async def test(bench: Bench) -> None:
        await bench.embed(b"a")
        bench.servers.down("Triton is being restarted")
        with pytest.raises(UpstreamUnavailable, match="being restarted"):
            await bench.embed(b"b")
        assert said(await bench.embed(b"a")) == (HIT, 1)

    with_bench(test)
