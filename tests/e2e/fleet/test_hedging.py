"""A model on two Tritons that straggles when it is told to: another server answers, and the straggler is cancelled.

The Tritons are on nodes; `perf.hedging`, of which tests/e2e/perf/test_perf_fleet.py carries out a little, has embedded ones.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from tests.e2e.fleets import loaded
from tests.e2e.nodes import NODES, fleet_on
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, run_cli, wait_for

_LEARNT, _STRAGGLERS = 300, 3
"""Requests, and those of them that straggle: few enough that they and those of the tests are late, which is 2 % at most."""
_STRAGGLES_S, _HANGS_S = 1.5, 40.0

_MODEL = """
import os
import time
from pathlib import Path

import triton_python_backend_utils as pb_utils

KNOBS = Path(PLACE)

class TritonPythonModel:
    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        until_s = time.monotonic() + self._straggles_s()
        while time.monotonic() < until_s:
            if request.is_cancelled():
                (KNOBS / "cancelled").touch()
                break
            time.sleep(0.02)
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", pb_utils.get_input_tensor_by_name(request, "IN").as_numpy())])

    def _straggles_s(self):
        # Whoever takes the knob away straggles, and nobody else.
        try:
            (KNOBS / "straggle").rename(KNOBS / "taken")
            return float((KNOBS / "taken").read_text())
        except FileNotFoundError:
            return 0.0
"""
_CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_min_replicas" value { string_value: "2" } }
parameters { key: "tidegate_repeatable" value { string_value: "true" } }
"""


class Late:
    """The fleet, and the knob of its model."""

    def __init__(self, fleet: Tidegate, knobs: Path) -> None:
        self.fleet = fleet
        self._clients = {
            "http": tritonclient.http.InferenceServerClient(fleet.address("http"), network_timeout=LONG_S),
            "grpc": tritonclient.grpc.InferenceServerClient(fleet.address("grpc")),
        }
        self.cancelled = knobs / "cancelled"
        self._knob = knobs / "straggle"

    def straggle(self, for_s: float) -> None:
        """Have the next request that a server computes take so long."""
        new = self._knob.with_name("new")
        new.write_text(str(for_s))
        new.rename(self._knob)

    def ask(self, frontend: str, number: int, name: str = "late") -> float:
        """The seconds until the answer, which is checked."""
        library = {"http": tritonclient.http, "grpc": tritonclient.grpc}[frontend]
        tensor = library.InferInput("IN", [1], "INT32")
        tensor.set_data_from_numpy(np.array([number], np.int32))
        began_s = time.monotonic()
        answer = self._clients[frontend].infer(name, [tensor])
        assert answer.as_numpy("OUT").tolist() == [number]
        return time.monotonic() - began_s

    def knows(self, name: str) -> bool:
        """Whether the gateway has heard of a route."""
        try:
            self.ask("grpc", 0, name)
        except InferenceServerException:
            return False
        return True

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def hedges(self, result: str) -> float:
        with urllib.request.urlopen(self.fleet.endpoints["metrics"], timeout=LONG_S) as page:
            return float(re.findall(rf'^tidegate_fleet_hedges_total{{result="{result}"}} (\S+)$', page.read().decode(), re.MULTILINE)[0])


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    root, knobs = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("knobs")
    (root / "late/1").mkdir(parents=True)
    (root / "late/1/model.py").write_text(_MODEL.replace("PLACE", json.dumps(str(knobs))))
    (root / "late/config.pbtxt").write_text(_CONFIG)
    flags = ("--hedging", "--load", "late")
    with fleet_on(NODES, tmp_path_factory.mktemp("fleet"), *flags, repository=root, sources=(COMPLETE,)) as (fleet, _):
        made = Late(fleet, knobs)
        wait_for(lambda: all("late" in models for models in loaded(fleet).values()), what="a replica on each server")
        for number in range(_LEARNT):
            if number % (_LEARNT // _STRAGGLERS) == 0:
                made.straggle(_STRAGGLES_S)
            made.ask("grpc", number)
        yield made
        made.close()


@pytest.mark.parametrize("frontend", ["grpc", "http"])
def test_another_server_answers_and_over_grpc_the_straggler_is_cancelled(late: Late, frontend: str) -> None:
    won, below = late.hedges("won"), late.fleet.below()

    def another_server_was_first() -> bool:
        """Not at once on a busy machine, where a request may be late by itself, and it is the other server's that straggles."""
        late.straggle(_HANGS_S if frontend == "grpc" else _STRAGGLES_S * 3)
        assert late.ask(frontend, 7) < _STRAGGLES_S * 2
        return late.hedges("won") > won

    wait_for(another_server_was_first, what="an answer by another server")
    if frontend == "grpc":
        wait_for(late.cancelled.exists, what="the cancellation")
    for number in range(4):
        late.ask(frontend, number)
    assert late.fleet.below() == below, "the same processes as before"


def test_a_route_may_switch_it_off_or_ask_for_two_servers_at_once(late: Late) -> None:
    for name, options in {"never": ("--hedging", "off"), "twice": ("--twice-from-ms", "1")}.items():
        done = run_cli("routes", "set", name, "--model", "late", *options, "--state-dir", str(late.fleet.state_dir))
        assert done.returncode == 0, done.stderr
        wait_for(lambda name=name: late.knows(name), what="the route")
    before = late.hedges("won") + late.hedges("lost")
    late.straggle(_STRAGGLES_S)
    assert late.ask("grpc", 1, "never") >= _STRAGGLES_S
    assert late.hedges("won") + late.hedges("lost") == before
    late.straggle(_HANGS_S)  # at either server
    assert late.ask("grpc", 2, "twice") < _HANGS_S
    wait_for(lambda: late.hedges("won") + late.hedges("lost") == before + 1, what="the count")
