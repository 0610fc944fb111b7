"""A model on two Tritons at once: sequences keep to their server, one is loaded on both by demand or by wish, pools part the work."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e.fleets import events, loaded, shown
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.processes import is_triton_of, triton_of
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, parent_of, run_cli, wait_for

BUDGET = ("--memory-budget", "500MiB")
SEQUENCES = range(1, 25)
"""So many that all of them going to one server by chance is out of the question."""
LONG_ROWS = 400
"""At a millisecond each far more than what is long for models of which nothing is known (64 rows, 50 compute units)."""

_SUM = """
import os

import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        return [self._add(request) for request in requests]

    def _add(self, request):
        starts, key, value = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("START", "CORRID", "IN"))
        self.sums[key.item()] = value + (0 if starts.any() else self.sums[key.item()])
        where = numpy.full((1, 1), os.getpid(), numpy.int32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("SUM", self.sums[key.item()]), pb_utils.Tensor("WHERE", where)])
"""
_SUM_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "SUM" data_type: TYPE_INT32 dims: [ 1 ] }, { name: "WHERE" data_type: TYPE_INT32 dims: [ 1 ] } ]
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 32 }
  control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "24MiB" } }
parameters { key: "tidegate_min_replicas" value { string_value: "2" } }
"""

_WORK = """
import os
import time

import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self._work(request) for request in requests]

    def _work(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        time.sleep(float(rows.sum()) / 1e3)
        return pb_utils.InferenceResponse([pb_utils.Tensor("WHERE", numpy.full(rows.shape, os.getpid(), numpy.int32))])
"""
_WORK_CONFIG = """
backend: "python"
max_batch_size: 512
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "WHERE" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "tidegate_resident_bytes" value { string_value: "24MiB" } }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sum` adds up what a sequence brings; `work` takes as many milliseconds as the sum of its rows. Both say where they ran."""
    root = tmp_path_factory.mktemp("models")
    for name, code, config in (("sum", _SUM, _SUM_CONFIG), ("work", _WORK, _WORK_CONFIG)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(code)
        (root / name / "config.pbtxt").write_text(config)
    return root


@pytest.fixture(scope="module")
def fleet(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    with fleet_on(EMBEDDED, tmp_path_factory.mktemp("fleet"), *BUDGET, repository=repository, sources=(COMPLETE,)) as (running, _):
        yield running


@pytest.fixture(scope="module")
def pooled(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    flags = (*BUDGET, "--pools", "short,long")
    with fleet_on(EMBEDDED, tmp_path_factory.mktemp("pooled"), *flags, repository=repository, sources=(COMPLETE,)) as (running, _):
        yield running


class Told(NamedTuple):
    """What a model of this file answers."""

    server: str
    sum: int | None


def server_of(fleet: Tidegate, stub: int) -> str:
    """The server whose Triton runs this process of a model."""
    names: list[str] = [server["name"] for server in shown(fleet)["servers"] if server["is_up"]]
    triton = parent_of(stub)
    return next(name for name in names if is_triton_of(fleet, name, triton))


def told(fleet: Tidegate, raw: bytes) -> Told:
    assert status(raw) == 200, raw
    outputs = {each["name"]: each["data"][0] for each in json.loads(raw.partition(b"\r\n\r\n")[2])["outputs"]}
    return Told(server_of(fleet, outputs["WHERE"]), outputs.get("SUM"))


def ask(fleet: Tidegate, name: str, rows: list[int], **parameters: Any) -> bytes:
    tensor = {"name": "IN", "shape": [len(rows), 1], "datatype": "INT32", "data": rows}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    return exchange(fleet.port("http"), "POST", f"/v2/models/{name}/infer", body, timeout_s=LONG_S)


def ask_over_grpc(fleet: Tidegate, client: tritonclient.grpc.InferenceServerClient, sequence: int, value: int, *, start: bool) -> Told:
    tensor = tritonclient.grpc.InferInput("IN", [1, 1], "INT32").set_data_from_numpy(np.full((1, 1), value, np.int32))
    answer = client.infer("sum", [tensor], sequence_id=sequence, sequence_start=start)
    return Told(server_of(fleet, answer.as_numpy("WHERE").item()), answer.as_numpy("SUM").item())


class TestSequences:
    def begin(self, fleet: Tidegate) -> dict[int, str]:
        """Start all of them; where each is."""
        wait_for(lambda: all("sum" in models for models in loaded(fleet).values()), what="a replica on each server")
        return {key: told(fleet, ask(fleet, "sum", [key], sequence_id=key, sequence_start=True)).server for key in SEQUENCES}

    def test_each_keeps_to_its_server_over_both_frontends_and_both_servers_have_some(self, fleet: Tidegate) -> None:
        where = self.begin(fleet)
        assert set(where.values()) == set(loaded(fleet))
        with tritonclient.grpc.InferenceServerClient(fleet.address("grpc")) as client:
            for turn in range(2, 5):
                for key in SEQUENCES:
                    if key % 2:
                        assert ask_over_grpc(fleet, client, key, key, start=False) == (where[key], turn * key)
                    else:
                        assert told(fleet, ask(fleet, "sum", [key], sequence_id=key)) == (where[key], turn * key)
        assert sequences(fleet) == len(SEQUENCES)
        for key in SEQUENCES:
            assert told(fleet, ask(fleet, "sum", [0], sequence_id=key, sequence_end=True)) == (where[key], 4 * key)
        assert sequences(fleet) == 0

    def test_those_of_a_server_that_is_killed_are_told_so_and_the_others_go_on(self, fleet: Tidegate) -> None:
        where, before = self.begin(fleet), len(events(fleet, "down"))
        killed = where[SEQUENCES[0]]
        os.kill(triton_of(fleet, killed), signal.SIGKILL)
        wait_for(lambda: len(events(fleet, "down")) > before, what="its end being noticed")
        for key in SEQUENCES:
            raw = ask(fleet, "sum", [key], sequence_id=key)
            if where[key] == killed:
                assert status(raw) == 503, raw
                assert b"is gone, and the state with it; start it anew" in raw
            else:
                assert told(fleet, raw) == (where[key], 2 * key)
        for key in SEQUENCES:
            assert told(fleet, ask(fleet, "sum", [key], sequence_id=key, sequence_start=True, sequence_end=True)).sum == key


def sequences(fleet: Tidegate) -> int:
    return sum(replica["sequences"] for server in shown(fleet)["servers"] for replica in server["replicas"])


def test_a_model_that_is_never_idle_gets_a_replica_on_the_idle_server(fleet: Tidegate) -> None:
    """So many callers as keep one replica busy all the time; that a request takes 50 ms nobody has told the fleet."""
    has_grown = Event()

    def keep_asking() -> None:
        while not has_grown.is_set():
            # On a busy machine one replica cannot answer all of them in time: who is refused asks again.
            assert status(ask(fleet, "work", [50])) in (200, 503)

    with ThreadPoolExecutor(64) as callers:
        asking = [callers.submit(keep_asking) for _ in range(64)]
        try:
            wait_for(lambda: all("work" in models for models in loaded(fleet).values()), what="a second replica")
        finally:
            has_grown.set()
        for caller in asking:
            caller.result()
    assert status(ask(fleet, "work", [50])) == 200


def test_loaded_everywhere_it_is_on_each_server_also_on_one_that_comes_back(fleet: Tidegate) -> None:
    assert status(ask(fleet, "work", [1])) == 200
    run_cli("models", "unload", "work", "--state-dir", str(fleet.state_dir))
    wait_for(lambda: not any("work" in models for models in loaded(fleet).values()), what="its end on both")
    done = run_cli("models", "load", "work", "--everywhere", "--state-dir", str(fleet.state_dir))
    assert done.returncode == 0, done.stderr
    assert all("work" in models for models in loaded(fleet).values()), "it returns when it is there"
    killed, before = next(iter(loaded(fleet))), len(events(fleet, "up"))
    os.kill(triton_of(fleet, killed), signal.SIGKILL)
    wait_for(lambda: len(events(fleet, "up")) > before, what="its return")
    wait_for(lambda: "work" in loaded(fleet)[killed], what="the model being there again")
    assert "(all)" in run_cli("fleet", "--state-dir", str(fleet.state_dir)).stdout


class TestPools:
    def test_short_and_long_requests_are_kept_apart(self, pooled: Tidegate) -> None:
        short, long = ([1], [1] * LONG_ROWS)
        # The first of each kind may be served by the other pool, while its own loads the model.
        for rows, pool in ((short, "short"), (long, "long")):
            wait_for(lambda rows=rows, pool=pool: pool_of(pooled, ask(pooled, "work", rows)) == pool, what=f"a replica in the pool {pool}")

        def are_apart() -> bool:
            return all(
                pool_of(pooled, ask(pooled, "work", rows)) == pool for _ in range(5) for rows, pool in ((long, "long"), (short, "short"))
            )

        # All of one go: where a pool stood still for seconds, the other helps it out.
        wait_for(are_apart, what="five of each in their pools", timeout_s=30.0)

    def test_a_route_chooses_the_pool_whatever_the_request(self, pooled: Tidegate) -> None:
        for pool in ("short", "long"):
            done = run_cli("routes", "set", f"to-{pool}", "--model", "work", "--pool", pool, "--state-dir", str(pooled.state_dir))
            assert done.returncode == 0, done.stderr
            wait_for(lambda pool=pool: status(ask(pooled, f"to-{pool}", [1])) == 200, what="the route")
            wait_for(lambda pool=pool: pool_of(pooled, ask(pooled, f"to-{pool}", [1])) == pool, what=f"a replica in the pool {pool}")
            for rows in ([1], [1] * LONG_ROWS):
                assert pool_of(pooled, ask(pooled, f"to-{pool}", rows)) == pool


def pool_of(fleet: Tidegate, raw: bytes) -> str:
    name = told(fleet, raw).server
    found: str = next(server["pool"] for server in shown(fleet)["servers"] if server["name"] == name)
    return found
