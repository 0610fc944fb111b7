"""What departures show of replicas of every kind, by a small simulation of Triton."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import accumulate, count
from random import Random
from statistics import fmean

import pytest

from control_plane.fleet.domain.service_time import DepartureMeter, ServiceClock

SERVICE_S = 0.05


class Triton:
    """Replicas of several models on a server, each of which serves so many requests together at so many
    instances; what the meters show is noted by model."""

    def __init__(self, **replicas: tuple[float, int, int]) -> None:
        """Model -> how long an execution takes, instances, and requests of one execution (a batch)."""
        self.clock = ServiceClock()
        self.replicas = replicas
        self.meters = {name: DepartureMeter() for name in replicas}
        self.shown: dict[str, list[tuple[float, int]]] = {name: [] for name in replicas}
        self.queued: dict[str, list[float]] = {name: [] for name in replicas}
        self.idle = {name: instances for name, (_, instances, _) in replicas.items()}
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self.answered: Callable[[str, float], None] = lambda name, now_s: None
        self.unanswered: Callable[[], bool] = lambda: False

    def at(self, when_s: float, do: Callable[[float], None]) -> None:
        heappush(self.events, (when_s, next(self._order), do))

    def send(self, name: str, now_s: float) -> None:
        self.meters[name].arrived(self.clock, now_s)
        self.queued[name].append(now_s)
        # A batch is made of what has come by the end of this moment.
        self.at(now_s, lambda now_s: self._execute(name, now_s))

    def _execute(self, name: str, now_s: float) -> None:
        takes_s, _, most = self.replicas[name]
        while self.idle[name] and (batch := self.queued[name][:most]):
            self.idle[name] -= 1
            del self.queued[name][:most]
            self.at(now_s + takes_s, partial(self._executed, name, len(batch)))

    def _executed(self, name: str, size: int, now_s: float) -> None:
        self.idle[name] += 1
        for number in range(size):
            # Answers of a batch are not read at the very same moment.
            self.at(now_s + number * 1e-5, lambda now_s: self._end(name, now_s))
        self._execute(name, now_s)

    def _end(self, name: str, now_s: float) -> None:
        shown = self.meters[name].departed(self.clock, now_s, answered=not self.unanswered())
        if shown is not None:
            self.shown[name].append(shown)
        self.answered(name, now_s)

    def run(self, until_s: float = 30.0) -> None:
        while self.events and self.events[0][0] < until_s:
            now_s, _, do = heappop(self.events)
            do(now_s)

    def keep_asking(self, name: str, callers: int) -> None:
        """Have so many callers ask for a model all the time."""
        before = self.answered

        def ask_again(ended: str, now_s: float) -> None:
            before(ended, now_s)
            if ended == name:
                self.send(name, now_s)

        self.answered = ask_again
        for number in range(callers):
            self.at(number * 1e-4, lambda now_s: self.send(name, now_s))

    def learned_s(self, name: str) -> list[float]:
        """The estimates one after the other, as `Reservation` smooths them, from a guess of 10 ms on."""
        return list(accumulate(self.shown[name], lambda mean_s, each: mean_s + (1 - 0.8 ** each[1]) * (each[0] - mean_s), initial=0.01))


@pytest.mark.parametrize("callers", [1, 2, 3, 8, 64])
@pytest.mark.parametrize(
    ("instances", "batch"),
    [pytest.param(1, 1, id="one instance"), pytest.param(4, 1, id="four instances"), pytest.param(1, 16, id="batches")],
)
def test_under_constant_load_it_is_the_time_for_which_one_request_keeps_the_replica_busy(callers: int, instances: int, batch: int) -> None:
    triton = Triton(m=(SERVICE_S, instances, batch))
    triton.keep_asking("m", callers)
    triton.run(60.0)
    pace_s = 60.0 / sum(count for _, count in triton.shown["m"])
    learned = triton.learned_s("m")[-200:]
    assert fmean(learned) == pytest.approx(pace_s, rel=0.15)
    if batch == 1:
        assert max(learned) == pytest.approx(min(learned), rel=0.1)


@pytest.mark.parametrize("busy", [0.1, 0.5, 0.9])
def test_at_random_times_it_is_that_of_an_instance_however_long_the_queue(busy: float) -> None:
    triton, random, now_s = Triton(m=(SERVICE_S, 1, 1)), Random(1), 0.0
    while now_s < 100.0:
        now_s += random.expovariate(busy / SERVICE_S)
        triton.at(now_s, lambda now_s: triton.send("m", now_s))
    triton.run(200.0)
    assert triton.learned_s("m")[-1] == pytest.approx(SERVICE_S)
    assert all(mean_s == pytest.approx(SERVICE_S) for mean_s, _ in triton.shown["m"])


def test_ten_answers_of_a_queue_are_enough() -> None:
    triton = Triton(m=(SERVICE_S, 1, 1))
    triton.keep_asking("m", 64)
    triton.run(11.5 * SERVICE_S)
    assert triton.learned_s("m")[-1] > 0.85 * SERVICE_S


def test_models_that_are_busy_together_have_half_the_time_each() -> None:
    """So the work of both together is what the server can do in that time."""
    triton = Triton(a=(2 * SERVICE_S, 1, 1), b=(SERVICE_S, 1, 1))
    triton.keep_asking("a", 8)
    triton.keep_asking("b", 8)
    triton.run()
    assert triton.learned_s("a")[-1] == pytest.approx(SERVICE_S)
    assert triton.learned_s("b")[-1] == pytest.approx(SERVICE_S / 2)
    work_s = 8 * sum(triton.learned_s(name)[-1] for name in "ab")
    assert work_s == pytest.approx((16 * SERVICE_S + 8 * SERVICE_S) / 2), "eight of each are done by then on average"


@pytest.mark.parametrize("part", [0.05, 0.5])
def test_of_requests_without_an_answer_nothing_is_learned(part: float) -> None:
    """Nor does their time count for those that come next."""
    triton, random = Triton(m=(SERVICE_S, 1, 1)), Random(1)
    triton.unanswered = lambda: random.random() < part
    triton.keep_asking("m", 8)
    triton.run()
    assert {round(mean_s, 6) for mean_s, _ in triton.shown["m"]} == {SERVICE_S}


def test_an_idle_model_ceases_to_share_the_time() -> None:
    triton = Triton(a=(SERVICE_S, 1, 1), b=(SERVICE_S, 1, 1))
    triton.at(0.0, lambda now_s: triton.send("a", now_s))
    triton.at(1.0, lambda now_s: triton.send("b", now_s))
    triton.run()
    assert triton.shown == {"a": [(pytest.approx(SERVICE_S), 1)], "b": [(pytest.approx(SERVICE_S), 1)]}
