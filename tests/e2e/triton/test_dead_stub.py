"""A Python stub that has died while Triton still says that its model is ready is noticed, and its model is loaded anew."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from control_plane.admin.client import AdminClient
from tests.e2e.conftest import Start
from tests.e2e.fleets import answer_of, ask, body, loaded, shown, write_models
from tests.e2e.loads import bad_models
from tests.e2e.nodes import NODES, fleet_on
from tests.e2e.processes import stubs_of
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, living, run_cli, wait_for

_SOON_S = 5.0
"""A model is back within this time on a machine that has nothing else to do."""
_CALLERS, _DEADLINE_MS = 4, 300
_PAUSE_S = 0.1
"""Seconds that a caller pauses after each answer: it is the revival that is tested, not the load."""

_SLEEPER = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        found = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        time.sleep(max(0.0, *(float(each.max()) - 1.0 for each in found), 0.0))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in found]
"""
"""A model that sleeps for a second less than it is sent; an hour is as good as for ever."""


_STREAMER = """
import os
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, count = request.get_response_sender(), pb_utils.get_input_tensor_by_name(request, "COUNT")
            if (wanted := int(count.as_numpy()[0])) < 0:
                os._exit(1) if wanted < -1 else time.sleep(3600)
            for number in range(wanted):
                time.sleep(0.2 if number else 0.0)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", count.as_numpy())]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_STREAMER_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
"""A model that sends as many pieces, five a second, as it is asked for; of -1 it hangs, and of -2 its process ends."""


@dataclass
class Calls:
    """What callers with short deadlines saw: when, and whether it was an answer."""

    seen: list[tuple[float, bool, bytes]] = field(default_factory=list)

    def lost_for_s(self, since_s: float) -> float:
        """From then until the last request that failed."""
        return max((at_s - since_s for at_s, is_answered, _ in self.seen if not is_answered), default=0.0)

    def summary(self, since_s: float) -> str:
        after = [is_answered for at_s, is_answered, _ in self.seen if at_s >= since_s]
        return f"{after.count(False)} of {len(after)} lost, the last one after {self.lost_for_s(since_s):.1f} s"


@contextmanager
def callers(running: Tidegate, model: str, ask: Callable[[], bytes] | None = None) -> Iterator[Calls]:
    """Several ask again and again within the block."""
    calls, done = Calls(), threading.Event()
    headers = [("tidegate-timeout-ms", str(_DEADLINE_MS))]

    def infer() -> bytes:
        return exchange(running.port("http"), "POST", f"/v2/models/{model}/infer", body(), headers, timeout_s=LONG_S)

    def call() -> None:
        while not done.wait(_PAUSE_S):
            raw = (ask or infer)()
            calls.seen.append((time.monotonic(), status(raw) == 200, raw))

    threads = [threading.Thread(target=call) for _ in range(_CALLERS)]
    for thread in threads:
        thread.start()
    try:
        yield calls
    finally:
        done.set()
        for thread in threads:
            thread.join()


def kill_one(running: Tidegate, model: str) -> float:
    os.kill(next(iter(living(set(stubs_of(running, model))))), signal.SIGKILL)
    return time.monotonic()


def sleeps(root: Path, name: str) -> None:
    (root / name / "1/model.py").write_text(_SLEEPER)


def ask_to_sleep(running: Tidegate, model: str, for_s: float, *, timeout_ms: int) -> bytes:
    sent = body().replace(b"[1.0]", b"[%f]" % (1.0 + for_s))
    headers = [("tidegate-timeout-ms", str(timeout_ms))]
    return exchange(running.port("http"), "POST", f"/v2/models/{model}/infer", sent, headers, timeout_s=LONG_S)


def is_served_again(calls: Calls) -> None:
    """Wait until twenty requests in a row were answered from now on."""
    now_s = time.monotonic()

    def is_so() -> bool:
        after = [is_answered for at_s, is_answered, _ in calls.seen if at_s >= now_s]
        return len(after) > 20 and all(after[-20:])

    wait_for(is_so, what="its revival")


def test_all_that_fits_is_loaded_at_the_start_and_a_stub_that_dies_is_replaced(start: Start, tmp_path: Path) -> None:
    write_models(tmp_path / "models", ("m0", "m1", "m2"))
    config = tmp_path / "models/m2/config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "tidegate_priority" value { string_value: "5" } }')
    flags = ("--memory-budget", "50MiB", "--model-repository", str(tmp_path / "models"), COMPLETE, "--load", "*")
    running = start(tmp_path / "state", *flags)
    assert list(loaded(running).values()) == [{"m2", "m0"}], "what matters most, then by name; for m1 there is no room"

    (stub,) = stubs_of(running, "m2")
    os.kill(stub, signal.SIGKILL)
    wait_for(lambda: "m2" in {event["model"] for event in shown(running)["events"] if event["kind"] == "lost"}, what="its death")
    assert answer_of(ask(running, "m2")) == 3.0, "it waited for the new one"
    assert not {stub} & living(set(stubs_of(running, "m2")))
    assert answer_of(ask(running, "m0")) == 1.0
    told = [(event["kind"], event["reason"]) for event in shown(running)["events"] if event["model"] == "m2"]
    assert told[-2:] == [("lost", "the Python process of 'm2' was killed by SIGKILL"), ("loaded", "")]
    assert list(loaded(running).values()) == [{"m2", "m0"}]

    # Again at once, so that the back-off is not over: nothing is sent there, and its unload ends all the same.
    os.kill(next(iter(living(set(stubs_of(running, "m2"))))), signal.SIGKILL)
    wait_for(lambda: list(loaded(running).values()) == [{"m0"}], what="its second death")
    AdminClient(running.endpoints["admin"]).unload("m2")
    wait_for(lambda: not any(replica["model"] == "m2" for replica in shown(running)["servers"][0]["replicas"]), what="its unload")


@pytest.fixture
def one_server(start: Start, tmp_path: Path) -> Tidegate:
    """One Triton behind two workers: m2 and m4 may hang, m1 has two instances, and e is an ensemble of m3."""
    models = tmp_path / "models"
    write_models(models, ("m0", "m1", "m2", "m3", "m4"))
    sleeps(models, "m2")
    sleeps(models, "m4")
    bad_models.write(models, "streamer", _STREAMER_CONFIG, {"1/model.py": _STREAMER})
    bad_models.write(models, "e", bad_models.ensemble("m3").replace("max_batch_size: 4", "max_batch_size: 8"), {"1/.keep": ""})
    config = models / "m1/config.pbtxt"
    config.write_text(config.read_text().replace("kind: KIND_CPU", "kind: KIND_CPU count: 2"))
    loads = (part for name in ("m0", "m1", "m2", "m4", "streamer", "e") for part in ("--load", name))
    return start(tmp_path / "state", "--workers", "2", "--model-repository", str(models), COMPLETE, *loads)


def test_one_server_has_it_back_in_seconds_whatever_the_deadlines(one_server: Tidegate) -> None:
    replaces_what_died(one_server)
    ends_what_hangs(one_server)
    ends_what_hangs_and_not_what_streams(one_server)
    refuses_what_ends_processes_before_it_streams(one_server)
    ends_the_other_instance_too(one_server)
    replaces_a_step_of_an_ensemble(one_server)
    unloads_what_died_again(one_server)


def replaces_what_died(running: Tidegate) -> None:
    with callers(running, "m0") as calls:
        time.sleep(1.0)
        killed_s = kill_one(running, "m0")
        wait_for(lambda: "model 'm0' was loaded anew" in running.said(), what="its revival")
        is_served_again(calls)
    assert calls.lost_for_s(killed_s) < 4 * _SOON_S, calls.summary(killed_s)


def ends_what_hangs(running: Tidegate) -> None:
    """A long request that somebody waits for is let compute, whatever others do meanwhile; one that hangs is ended."""
    with callers(running, "m4") as calls:
        time.sleep(0.5)
        (stub,) = stubs_of(running, "m4")
        assert answer_of(ask_to_sleep(running, "m4", 5.0, timeout_ms=60_000)) == 6.0
        assert stubs_of(running, "m4") == [stub]
        is_served_again(calls)
        hung_s = time.monotonic()
        assert status(ask_to_sleep(running, "m4", 3600.0, timeout_ms=_DEADLINE_MS)) in (503, 504)
        wait_for(lambda: "model 'm4' was loaded anew" in running.said(), what="its revival")
        is_served_again(calls)
    assert "the Python process of model 'm4' hung and was ended" in running.said()
    assert calls.lost_for_s(hung_s) < 8 * _SOON_S, calls.summary(hung_s)


def ends_what_hangs_and_not_what_streams(running: Tidegate) -> None:
    """One that sends pieces of one response while others wait in vain computes; one that begins none any more hangs."""
    with callers(running, "streamer", partial(ask_for_pieces, running, 1, timeout_ms=_DEADLINE_MS)) as calls:
        time.sleep(0.5)
        (stub,) = stubs_of(running, "streamer")
        assert ask_for_pieces(running, 20, timeout_ms=60_000).count(b"data: ") == 20
        assert stubs_of(running, "streamer") == [stub]
        is_served_again(calls)
        hung_s = time.monotonic()
        assert status(ask_for_pieces(running, -1, timeout_ms=_DEADLINE_MS)) in (503, 504)
        wait_for(lambda: "model 'streamer' was loaded anew" in running.said(), what="its revival")
        is_served_again(calls)
    assert "the Python process of model 'streamer' hung and was ended" in running.said()
    assert calls.lost_for_s(hung_s) < 8 * _SOON_S, calls.summary(hung_s)


def refuses_what_ends_processes_before_it_streams(running: Tidegate) -> None:
    ended = "the Python process of model 'streamer' ended with exit status 1"
    first = ask_for_pieces(running, -2, timeout_ms=60_000)
    # Triton says so first, or the gateway has seen it.
    assert (status(first), b"is not healthy" in first, b"has died" in first) in ((400, True, False), (503, False, True)), first
    wait_for(lambda: ended in running.said(), what="its death being seen")
    answers = [ask_for_pieces(running, -2, timeout_ms=60_000) for _ in range(3)]
    assert [status(each) for each in answers] == [422] * 3, answers
    assert status(ask_for_pieces(running, 1, timeout_ms=60_000)) == 200
    assert running.said().count(ended) == 2


def ask_for_pieces(running: Tidegate, count: int, *, timeout_ms: int) -> bytes:
    sent = b'{"COUNT": %d}' % count
    head = b"POST /v2/models/streamer/generate_stream HTTP/1.0\r\nHost: localhost\r\ntidegate-timeout-ms: %d\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", running.port("http")), timeout=LONG_S) as connection:
        connection.sendall(head % (timeout_ms, len(sent)) + sent)
        return b"".join(iter(partial(connection.recv, 1 << 16), b""))


def ends_the_other_instance_too(running: Tidegate) -> None:
    """Who has the time waits; of two instances the one that lives on of the old copy is ended."""
    old = set(stubs_of(running, "m1"))
    kill_one(running, "m1")
    wait_for(lambda: "model 'm1' was loaded anew" in running.said(), what="its revival")
    assert answer_of(ask(running, "m1")) == 2.0
    wait_for(lambda: not living(old), what="the end of the old copy")
    assert len(living(set(stubs_of(running, "m1")))) == 2


def replaces_a_step_of_an_ensemble(running: Tidegate) -> None:
    kill_one(running, "m3")
    wait_for(lambda: "model 'm3' was loaded anew" in running.said(), what="its revival")
    assert answer_of(ask(running, "e")) == 4.0

    # An administrator need not wait for the back-off of the second time, and a load is what it says.
    kill_one(running, "m3")
    wait_for(lambda: running.said().count("the Python process of model 'm3' was killed by SIGKILL") == 2, what="its second death")
    assert run_cli("models", "load", "e", "--state-dir", str(running.state_dir)).returncode == 0
    assert answer_of(ask(running, "e", tidegate_timeout_ms="5000")) == 4.0


def unloads_what_died_again(running: Tidegate) -> None:
    """An unload of one whose dead process a request has met, which Triton would not end."""
    admin = AdminClient(running.endpoints["admin"])
    kill_one(running, "m2")
    wait_for(lambda: "model 'm2' was loaded anew" in running.said(), what="its revival")
    with ThreadPoolExecutor() as others:
        asked = others.submit(ask_to_sleep, running, "m2", 3.0, timeout_ms=60_000)
        time.sleep(1.0)
        kill_one(running, "m2")
        wait_for(lambda: running.said().count("the Python process of model 'm2' was killed by SIGKILL") == 2, what="its second death")
        admin.unload("m2")
        assert b"is not healthy" in asked.result()
    wait_for(lambda: admin.get("m2")["state"] == "UNAVAILABLE", what="its unload")
    assert status(ask(running, "m2")) == 404
    assert not living(set(stubs_of(running, "m2")))


def test_a_fleet_of_three_on_nodes_serves_on(tmp_path: Path) -> None:
    write_models(tmp_path / "models", ("m0",))
    sleeps(tmp_path / "models", "m0")
    config = tmp_path / "models/m0/config.pbtxt"
    config.write_text(config.read_text() + 'parameters { key: "tidegate_min_replicas" value { string_value: "2" } }')
    flags = ("--workers", "2", "--memory-budget", "50MiB", "--load", "m0")
    with fleet_on(NODES, tmp_path / "fleet", *flags, repository=tmp_path / "models", sources=(COMPLETE,), count=3) as (running, _):
        serves_on(running)


def serves_on(running: Tidegate) -> None:
    wait_for(lambda: sum("m0" in models for models in loaded(running).values()) == 2, what="two copies")
    with callers(running, "m0") as calls:
        time.sleep(1.0)
        killed_s = kill_one(running, "m0")
        wait_for(lambda: "lost" in {event["kind"] for event in shown(running)["events"]}, what="its death")
        wait_for(lambda: sum("m0" in models for models in loaded(running).values()) == 2, what="the second copy")
        is_served_again(calls)
        assert calls.lost_for_s(killed_s) < 4 * _SOON_S, calls.summary(killed_s)

        hung_s = time.monotonic()
        ask_to_sleep(running, "m0", 3600.0, timeout_ms=_DEADLINE_MS)
        hung = "the Python process of 'm0' hung and was ended"
        wait_for(lambda: hung in {event["reason"] for event in shown(running)["events"]}, what="its end")
        wait_for(lambda: sum("m0" in models for models in loaded(running).values()) == 2, what="the second copy")
        is_served_again(calls)
    assert calls.lost_for_s(hung_s) < 8 * _SOON_S, calls.summary(hung_s)
