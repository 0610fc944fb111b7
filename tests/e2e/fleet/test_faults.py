"""Three real Tritons with a copy each of models that fail in their own ways: what goes to another copy, how often, and what
is sent to none.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from tests.e2e.fleets import counted, loaded
from tests.e2e.nodes import EMBEDDED, fleet_on
from tests.e2e.processes import stubs_of, triton_of
from tests.e2e.raw_http import exchange, read_answer, status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, living, wait_for

pytestmark = pytest.mark.timeout(300)


EMBEDS = "embeds"
MODELS = ("mortal", "narrow", "outage", EMBEDS)
POISON = -1.0
NUMBERS = itertools.count(1)

_CONFIG = """
backend: "python"
max_batch_size: 1
input [ { name: "INPUT0" data_type: %s dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { default_queue_policy { max_queue_size: %d } }
response_cache { enable: true }
parameters { key: "tidegate_min_replicas" value { string_value: "3" } }
parameters { key: "tidegate_resident_bytes" value { string_value: "1MiB" } }
"""
_CODE = """
import os, time
import numpy
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()) for request in requests]

    def answer(self, found):
        %s
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", found)])
"""
_MORTAL = "os._exit(3) if found[0, 0] < 0 else time.sleep(0.01)"
_EMBEDS = """
        if found[0, 0] == b"poison":
            os._exit(3)
        time.sleep(0.02)
        found = numpy.array([[len(found[0, 0])]], dtype="float32")"""
_NARROW = "time.sleep(float(found[0, 0]) % 10.0)"
_OUTAGE = """
        with open({log!r}, "a") as log:
            log.write("x")
        error = pb_utils.TritonError("version 1 is not at ready state", pb_utils.TritonError.UNAVAILABLE)
        return pb_utils.InferenceResponse([], error)"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte for each request that a server computed for the model `outage`."""
    found = tmp_path_factory.mktemp("seen") / "outage"
    found.touch()
    return found


@pytest.fixture(scope="module")
def fleet(seen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    root = tmp_path_factory.mktemp("models")
    for name, code, queue in zip(MODELS, (_MORTAL, _NARROW, _OUTAGE.format(log=str(seen)), _EMBEDS), (0, 1, 0, 0), strict=True):
        (root / name / "1").mkdir(parents=True)
        (root / name / "1/model.py").write_text(_CODE % code)
        (root / name / "config.pbtxt").write_text(_CONFIG % ("TYPE_STRING" if name == EMBEDS else "TYPE_FP32", queue))
    flags = ("--memory-budget", "50MiB", "--load", "*")
    with fleet_on(EMBEDDED, tmp_path_factory.mktemp("fleet"), *flags, repository=root, sources=(COMPLETE,), count=3) as (running, _):
        wait_for(lambda: all_are_ready(running), timeout_s=LONG_S, what="a copy of each model on each server")
        yield running


def all_are_ready(fleet: Tidegate) -> bool:
    return all(models >= set(MODELS) for models in loaded(fleet).values())


def all_live(fleet: Tidegate) -> bool:
    return all_are_ready(fleet) and len(stubs_of(fleet, "mortal")) == 3


def body_of(value: float) -> bytes:
    return json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [value]}]}).encode()


def ask(port: int, model: str, value: float) -> bytes:
    return exchange(port, "POST", f"/v2/models/{model}/infer", body_of(value), timeout_s=LONG_S)


def resends(fleet: Tidegate, result: str) -> float:
    return counted(fleet, "tidegate_retries_total", kind="resend", result=result)


def test_a_full_queue_is_left_for_a_copy_that_could_begin_at_once(fleet: Tidegate) -> None:
    before = resends(fleet, "sent")
    with ThreadPoolExecutor(8) as others:
        for server in loaded(fleet):
            told = list[Future[bytes]]()
            while not any(each.done() and b"Exceeds maximum queue size" in each.result() for each in told):
                told.append(others.submit(ask_past_the_gateway, fleet, server, 0.8))
                time.sleep(0.1)
            answer = ask(fleet.port("http"), "narrow", 10.0 * next(NUMBERS))
            assert status(answer) == 200, answer
            wait(told)
    assert resends(fleet, "sent") > before, "requests alike go to one of the three while it is as good as others"


def ask_past_the_gateway(fleet: Tidegate, server: str, value: float) -> bytes:
    """Ask one of its Tritons for the model `narrow`, over the Triton's own socket."""
    folder = Path(f"/proc/{triton_of(fleet, server)}")
    line = (folder / "cmdline").read_bytes().decode().split("\0")
    address = next(each.partition("=unix:")[2] for each in line if each.startswith("--http-address="))
    body = body_of(value)
    head = f"POST /v2/models/narrow/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LONG_S)
        connection.connect(str(folder / "cwd" / address))
        connection.sendall(head.encode() + body)
        return read_answer(connection)


def test_while_all_servers_fail_they_see_a_tenth_more_than_was_asked_for(fleet: Tidegate, seen: Path) -> None:
    before_s, refused, seen_before = time.monotonic(), resends(fleet, "refused"), len(seen.read_bytes())
    offered = 400
    with ThreadPoolExecutor(8) as callers:
        told = list(callers.map(lambda value: ask(fleet.port("http"), "outage", value), itertools.islice(NUMBERS, offered)))
    assert {status(each) for each in told} == {503}
    took_s = time.monotonic() - before_s
    assert len(seen.read_bytes()) - seen_before <= 1.1 * offered + took_s + 2.0, "and one request a second"
    assert resends(fleet, "refused") > refused


def test_a_stub_that_dies_costs_nothing_that_is_repeatable(fleet: Tidegate) -> None:
    wait_for(lambda: len(stubs_of(fleet, "mortal")) == 3, timeout_s=LONG_S, what="three processes")
    os.kill(stubs_of(fleet, "mortal")[0], signal.SIGKILL)
    with ThreadPoolExecutor(6) as callers:
        values = list(itertools.islice(NUMBERS, 30))
        told = Counter(status(each) for each in callers.map(lambda value: ask(fleet.port("http"), "mortal", value), values))
    assert told == {200: 30}


def test_under_a_query_of_death_one_copy_lives_and_innocents_go_on(fleet: Tidegate) -> None:
    done, told = threading.Event(), Counter[int]()

    def innocent() -> None:
        while not done.is_set():
            told[status(ask(fleet.port("http"), "mortal", next(NUMBERS)))] += 1

    with ThreadPoolExecutor(8) as callers:
        innocents = [callers.submit(innocent) for _ in range(6)]
        try:
            wait_for(lambda: told[200] >= 50 and all_live(fleet), timeout_s=LONG_S, what="innocents, and three processes")
            before, stubs = Counter(told), set(stubs_of(fleet, "mortal"))
            poisoned = [ask(fleet.port("http"), "mortal", POISON) for _ in range(8)]
            at_the_end = told.total()
            wait_for(lambda: told.total() >= at_the_end + 100, timeout_s=LONG_S, what="innocents after it")
        finally:
            done.set()
        for each in innocents:
            each.result()
    assert {status(each) for each in poisoned} == {422}
    assert all(b"2 processes died under it" in each for each in poisoned)
    assert len(living(stubs)) == 1, "two have died"
    told.subtract(before)
    # A part of all in a longer drill; here those count that were in flight beside it.
    assert told.total() - told[200] <= 0.01 * told.total() + 4, told
    assert counted(fleet, "tidegate_queries_of_death_total") == 1
    assert counted(fleet, "tidegate_queries_of_death_refused_total") == 8
    assert "model mortal: a request is refused for 60 s" in fleet.said()


def embed(fleet: Tidegate, *texts: str) -> bytes:
    return exchange(fleet.port("http"), "POST", "/v1/embeddings", json.dumps({"model": EMBEDS, "input": texts}).encode(), timeout_s=LONG_S)


def test_embeddings_are_computed_by_another_replica_where_a_stub_or_a_triton_dies_under_them(fleet: Tidegate) -> None:
    done, told = threading.Event(), Counter[int]()

    def innocent() -> None:
        while not done.is_set():
            number = next(NUMBERS)
            told[status(embed(fleet, f"{number}", f"a text of number {number}"))] += 1

    def await_more() -> None:
        enough = told.total() + 60
        wait_for(lambda: told.total() >= enough, timeout_s=LONG_S, what="innocents")

    wait_for(lambda: all_are_ready(fleet) and len(stubs_of(fleet, EMBEDS)) == 3, timeout_s=LONG_S, what="three processes")
    with ThreadPoolExecutor(6) as callers:
        innocents = [callers.submit(innocent) for _ in range(6)]
        try:
            await_more()
            os.kill(stubs_of(fleet, EMBEDS)[0], signal.SIGKILL)
            await_more()
            wait_for(lambda: len(stubs_of(fleet, EMBEDS)) == 3, timeout_s=LONG_S, what="another process")
            os.kill(triton_of(fleet, next(iter(loaded(fleet)))), signal.SIGKILL)
            await_more()
        finally:
            done.set()
        for each in innocents:
            each.result()
    assert told.keys() == {200}, told


def test_a_text_that_is_poison_is_refused_after_two_processes_and_the_others_of_its_model_are_not(fleet: Tidegate) -> None:
    wait_for(lambda: all_are_ready(fleet) and len(stubs_of(fleet, EMBEDS)) == 3, timeout_s=LONG_S, what="three processes")
    poisoned = [embed(fleet, "poison") for _ in range(3)]
    assert {status(each) for each in poisoned} == {422}, poisoned
    assert status(embed(fleet, "no poison")) == 200
