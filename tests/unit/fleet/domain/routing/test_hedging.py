from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Fleet, ModelFacts, Replica, Server
from control_plane.fleet.domain.routing.hedging import (
    HedgeDelays,
    hedge_after_s,
    idle_server,
    lingers_s,
    looks_again_after_s,
    may_be_hedged,
    size_class,
)
from control_plane.fleet.domain.routing.latency import LatencyDistribution
from control_plane.models.domain.description import ModelSpec

CALL = InferCall("m", "", "", ())

Draw = Callable[[random.Random], float]


def usual(seed: random.Random) -> float:
    """5 ms, give or take."""
    return seed.gauss(0.005, 0.0003)


def with_stragglers(part: float, more_s: float = 0.2) -> Draw:
    return lambda seed: usual(seed) + (more_s if seed.random() < part else 0.0)


def exponential(seed: random.Random) -> float:
    """As long as a queue may be, on average 5 ms."""
    return 0.005 + seed.expovariate(1 / 0.005)


def bimodal(seed: random.Random) -> float:
    return 0.5 if seed.random() < 0.5 else 0.05


def hedged(draw: Draw, *, requests: int = 20_000) -> tuple[float, float]:
    """Requests one after the other, hedged on an idle server from when that is known to pay: the delay at the end, and
    the part of the second half that was hedged."""
    seed, delays, hedges = random.Random(3), HedgeDelays(), 0
    for number in range(requests):
        first_s, after_s = draw(seed), delays.delay_s("m", 1)
        if first_s <= after_s:
            delays.note_answer("m", 1, first_s)
            continue
        hedges += number >= requests / 2
        if (answered_s := after_s + draw(seed)) < first_s:
            delays.note_censored("m", 1, answered_s)
        else:
            delays.note_answer("m", 1, first_s)
    return delays.delay_s("m", 1), hedges / (requests / 2)


@pytest.mark.parametrize(
    ("draw", "delay_s", "part"),
    [
        pytest.param(usual, (0.005, inf), (0.0, 0.002), id="no stragglers"),
        pytest.param(with_stragglers(0.01), (0.005, 0.0075), (0.009, 0.021), id="one in a hundred straggles"),
        pytest.param(with_stragglers(0.001), (0.005, 0.0085), (0.0005, 0.004), id="one in a thousand"),
        pytest.param(with_stragglers(0.1), (0.1, inf), (0.0, 0.02), id="one in ten: nothing is late"),
        pytest.param(with_stragglers(0.01, 0.002), (0.005, inf), (0.0, 0.002), id="stragglers that are shorter than a new request"),
        pytest.param(lambda seed: 0.01, (0.01, inf), (0.0, 0.0), id="all alike"),
        pytest.param(exponential, (0.02, inf), (0.0, 0.02), id="a queue"),
        pytest.param(bimodal, (0.5, inf), (0.0, 0.0), id="two kinds of work"),
    ],
)
def test_what_is_hedged_in_the_long_run(draw: Draw, delay_s: tuple[float, float], part: tuple[float, float]) -> None:
    """Also with its own hedges' losers censored: it neither forgets the tail nor eats into what is not late."""
    at_end_s, was_hedged = hedged(draw)
    assert delay_s[0] <= at_end_s <= delay_s[1]
    assert part[0] <= was_hedged <= part[1]


@given(latencies=st.lists(st.floats(1e-4, 10.0), min_size=1, max_size=300))
def test_only_who_is_later_than_nearly_all_is_hedged(latencies: list[float]) -> None:
    seen = LatencyDistribution()
    for took_s in latencies:
        seen.note_answer(took_s)
    after_s = hedge_after_s(seen.survival())
    assert sum(each > after_s for each in latencies) <= 0.02 * len(latencies) + 1e-9


@given(latencies=st.lists(st.floats(1e-2, 1.0), min_size=1, max_size=300), factor=st.sampled_from([1.1**10, 1.1**20]))
def test_what_is_slower_by_a_factor_is_hedged_later_by_that_factor(latencies: list[float], factor: float) -> None:
    once, again = LatencyDistribution(), LatencyDistribution()
    for took_s in latencies:
        once.note_answer(took_s)
        again.note_answer(took_s * factor)
    before_s, after_s = hedge_after_s(once.survival()), hedge_after_s(again.survival())
    assert after_s == before_s or before_s / 1.2 <= after_s / factor <= before_s * 1.2


def test_nothing_is_hedged_before_the_model_is_known() -> None:
    delays = HedgeDelays()
    for number in range(199):
        delays.note_answer("m", 1, 0.2 if number % 100 == 0 else 0.005)
    assert delays.delay_s("m", 1) == inf
    for number in range(100):
        delays.note_answer("m", 1, 0.2 if number % 100 == 0 else 0.005)
    assert delays.delay_s("m", 1) < 0.01
    assert delays.expected_s("m", 1) == pytest.approx(0.99 * 0.005 + 0.01 * 0.2, rel=0.1)
    assert delays.expected_s("m", 2) == inf
    assert delays.delay_s("m", 2) == delays.delay_s("n", 1) == inf


def test_what_is_expected_stays_though_two_servers_answer_sooner() -> None:
    """Else dual execution would switch itself off as soon as it works: the faster of two takes 162 ms on average."""
    seed, delays = random.Random(3), HedgeDelays()
    for _ in range(5_000):
        first_s, second_s = bimodal(seed), seed.uniform(0.99, 1.01) * bimodal(seed)
        if first_s <= second_s:
            delays.note_answer("m", 1, first_s)
        else:
            delays.note_censored("m", 1, second_s)
    assert 0.275 <= delays.expected_s("m", 1) <= 1.3 * 0.275


def test_a_model_that_is_gone_is_forgotten() -> None:
    delays = HedgeDelays()
    for model in ("m", "n", "o"):
        for number in range(300):
            delays.note_answer(model, 1, 0.2 if number % 100 == 0 else 0.005)
    delays.retain_only({"m", "n"})
    assert [delays.delay_s(model, 1) < inf for model in "mno"] == [True, True, False]


@pytest.mark.parametrize(
    ("call", "is_repeatable", "has_sequences", "may"),
    [
        pytest.param(CALL, True, False, True, id="repeatable"),
        pytest.param(CALL, False, False, False, id="not marked"),
        pytest.param(CALL, True, True, False, id="a model with sequences"),
        pytest.param(replace(CALL, sequence_id="7"), True, False, False, id="in a sequence"),
        pytest.param(replace(CALL, uses_shared_memory=True), True, False, False, id="in shared memory"),
    ],
)
def test_who_may_be_hedged(call: InferCall, is_repeatable: bool, has_sequences: bool, may: bool) -> None:
    assert may_be_hedged(call, is_repeatable=is_repeatable, has_sequences=has_sequences) is may


def test_size_classes_are_powers_of_two() -> None:
    assert [size_class(replace(CALL, elements=each)) for each in (0, 1, 2, 3, 4, 1023, 1024)] == [0, 1, 2, 2, 3, 10, 11]
    assert size_class(replace(CALL, elements=1, text_bytes=99)) == 7


def fleet(*, instances: int = 1, **in_flight: int) -> Fleet:
    """Servers with so many requests for the model."""
    made = Fleet(models={"m": ModelFacts(ModelSpec("m", instances=instances), 0, 1.0, 0.01)})
    for name, count in in_flight.items():
        server = Server(name, 0, work_s=0.01 * count)
        server.replicas["m"] = Replica("m", ModelState.READY, 0, 0.0, in_flight=count)
        made.add_server(server)
    return made


def chosen(made: Fleet, pool: str | None = None) -> str | None:
    server = idle_server(made, "m", avoid={"a"}, pool=pool)
    return None if server is None else server.name


def test_a_hedge_goes_to_another_server_that_is_idle_for_the_model() -> None:
    assert chosen(fleet(a=1)) is None
    assert chosen(fleet(a=0, b=1)) is None
    assert chosen(fleet(a=1, b=1, c=0)) == "c"
    made = fleet(a=1, b=0, c=0)
    made.servers["b"].work_s = 0.5
    assert chosen(made) == "c"
    made.servers["c"].work_s, made.servers["c"].replicas["m"].last_used_s = 0.5, 7.0
    assert chosen(made) == "b"


def test_a_server_with_an_idle_instance_gets_a_hedge_if_no_server_is_wholly_idle() -> None:
    assert chosen(fleet(instances=2, a=1, b=2, c=1)) == "c"
    assert chosen(fleet(instances=2, a=1, b=2, c=2)) is None
    made = fleet(instances=2, a=1, b=0, c=1)
    made.servers["b"].work_s = 0.5
    assert chosen(made) == "b"


def test_who_finds_no_idle_server_looks_again_ever_less_often() -> None:
    pauses_s = [looks_again_after_s(looks) for looks in range(1, 9)]
    assert pauses_s == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128])


def test_a_server_is_busy_with_what_was_cancelled_for_as_long_again_but_not_for_ever() -> None:
    assert [lingers_s(took_s) for took_s in (0.06, 0.9, 60.0)] == [0.06, 0.9, 1.0]


def test_a_hedge_goes_to_no_server_that_gets_no_requests_or_is_not_for_its_pool() -> None:
    made = fleet(a=1, b=0)
    made.servers["b"].pool = "batch"
    assert chosen(made, "batch") == chosen(made) == "b"
    assert chosen(made, "interactive") is None
    for spoil in ("is_ejected", "is_draining"):
        made = fleet(a=1, b=0)
        setattr(made.servers["b"], spoil, True)
        assert chosen(made) is None
    made = fleet(a=1, b=0)
    made.servers["b"].replicas["m"].state = ModelState.LOADING
    assert chosen(made) is None
