from __future__ import annotations

import pytest

from control_plane.core.infer_call import InferCall
from control_plane.core.model import ModelState
from control_plane.fleet.domain.fleet import Replica
from control_plane.fleet.view.sequences import Sequences


class Bench:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.sequences = Sequences(lambda: self.now_s)
        self.replica = Replica("m", ModelState.READY, 1, 0.0)

    def held_at(self, call: InferCall) -> tuple[str, Replica] | None:
        return self.sequences.holder_of(call)

    def hold(self, call: InferCall) -> None:
        self.sequences.bind(call, "s0", self.replica)


def call(sequence: str = "7", *, model: str = "m", starts: bool = False, ends: bool = False) -> InferCall:
    return InferCall(model, "", "", (), sequence_id=sequence, starts_sequence=starts, ends_sequence=ends)


def test_its_requests_go_where_the_first_went_until_it_ends() -> None:
    bench = Bench()
    assert bench.held_at(call(starts=True)) is None
    bench.hold(call(starts=True))
    assert bench.held_at(call()) == ("s0", bench.replica)
    assert bench.replica.sequences == 1
    bench.hold(call())
    bench.sequences.done(call())
    assert bench.replica.sequences == 1
    bench.sequences.done(call(ends=True))
    assert bench.held_at(call()) is None
    assert bench.replica.sequences == 0


def test_of_each_model_and_id_there_is_one() -> None:
    bench = Bench()
    bench.hold(call("7"))
    assert bench.held_at(call("8")) is None
    assert bench.held_at(call("7", model="other")) is None
    bench.hold(call("8"))
    assert bench.replica.sequences == 2


def test_one_that_starts_anew_may_go_elsewhere() -> None:
    bench = Bench()
    bench.hold(call())
    assert bench.held_at(call(starts=True)) is None
    assert bench.replica.sequences == 0


def test_one_that_is_lost_is_told_and_forgotten() -> None:
    bench = Bench()
    bench.hold(call())
    error = bench.sequences.lost(call())
    assert "sequence '7' of model 'm' is gone" in str(error)
    assert "start it anew" in str(error)
    assert bench.held_at(call()) is None
    assert bench.replica.sequences == 0


@pytest.mark.parametrize(("idle_s", "is_held"), [(59.0, True), (62.0, False)])
def test_one_that_lies_idle_is_over(idle_s: float, is_held: bool) -> None:
    bench = Bench()
    bench.hold(call())
    bench.now_s += 30.0
    bench.hold(call())
    bench.now_s += idle_s
    assert (bench.held_at(call()) is not None) is is_held
    assert bench.replica.sequences == int(is_held)


def test_those_that_lie_idle_are_swept_though_nobody_asks_the_longest_idle_first() -> None:
    bench = Bench()
    for number in range(1500):
        bench.hold(call(str(number)))
    bench.now_s += 30.0
    bench.hold(call("0"))
    bench.now_s += 31.0
    left = []
    for _ in range(2):
        bench.sequences.sweep()
        left.append(bench.replica.sequences)
    assert left == [500, 1]
    assert bench.held_at(call("0")) is not None
