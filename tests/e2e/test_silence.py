"""Three Tritons of which one is frozen for seconds: nobody loses a request, no page hangs, and it is used again at once."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from control_plane.admin.client import AdminClient
from tests.e2e.nodes import EMBEDDED, NODES, fleet_on
from tests.e2e.raw_http import exchange, read_answer, status
from tests.e2e.test_fleet import answer_of, loaded, shown, write_models
from tests.e2e.test_fleet_failures import counted, triton_of
from tests.e2e.tidegate import Tidegate, run_cli, wait_for

pytestmark = pytest.mark.timeout(300)

MODEL, ONCE = "m1", "m2"
"""One whose requests may be sent again, and one whose may not, since nothing says that equal ones have equal answers."""
CALLERS = 8
FROZEN_S = 5.0
SOON_S = 3.0
"""Less than the freeze lasts, far more than anything takes that does not wait for its end."""


@pytest.fixture(scope="module", params=[(EMBEDDED, 1), (EMBEDDED, 2), (NODES, 1)], ids=["one process", "two workers", "nodes"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, (MODEL, ONCE))
    for model in (MODEL, ONCE):
        with (repository / model / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "tidegate_min_replicas" value { string_value: "3" } }\n')
            config.write("response_cache { enable: true }\n" if model == MODEL else "")
    place, workers = request.param
    root = tmp_path_factory.mktemp("fleet")
    with fleet_on(place, root, "--workers", str(workers), "--memory-budget", "1GiB", repository=repository, count=3) as (running, _):
        wait_for(lambda: all(models == {MODEL, ONCE} for models in loaded(running).values()), what="a copy on each")
        yield running


@dataclass
class Callers:
    """What callers were answered, each on a connection of its own."""

    fleet: Tidegate
    answers: list[tuple[str, float, float, int]] = field(default_factory=list)
    """Of each request its model, when it began, how long it took, and its status; 0 for a lost connection."""
    _is_over: threading.Event = field(default_factory=threading.Event)

    def call(self, caller: int, model: str) -> None:
        """No two requests are equal, since equal ones are answered from the cache."""
        numbers = (float(caller + 2 * CALLERS * number) for number in itertools.count())
        with socket.create_connection(("127.0.0.1", self.fleet.port("http")), timeout=60.0) as connection:
            while not self._is_over.is_set():
                began_s, said = time.monotonic(), 0
                try:
                    number = next(numbers)
                    connection.sendall(request_of(model, number))
                    answer = read_answer(connection)
                    said = status(answer)
                    assert said != 200 or answer_of(answer) == number + float(model[1:])
                finally:
                    self.answers.append((model, began_s, time.monotonic() - began_s, said))

    @contextmanager
    def calling(self) -> Iterator[None]:
        models = [MODEL] * CALLERS + [ONCE] * CALLERS
        threads = [threading.Thread(target=self.call, args=(caller, model)) for caller, model in enumerate(models)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def slowest_s(self, *models: str, from_s: float, until_s: float) -> float:
        return max(took_s for model, began_s, took_s, _ in self.answers if model in models and from_s <= began_s <= until_s)


def request_of(model: str, number: float) -> bytes:
    sent = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}).encode()
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent


@contextmanager
def frozen(fleet: Tidegate, server: str) -> Iterator[float]:
    """The server's Triton says nothing meanwhile, for `FROZEN_S` at least; since when."""
    pid, since_s = triton_of(fleet, server), time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    try:
        yield since_s
        time.sleep(max(0.0, since_s + FROZEN_S - time.monotonic()))
    finally:
        os.kill(pid, signal.SIGCONT)


def server_of(fleet: Tidegate, name: str) -> dict[str, Any]:
    return next(server for server in shown(fleet)["servers"] if server["name"] == name)


def events(fleet: Tidegate) -> list[tuple[str, str]]:
    return [(event["kind"], event["server"]) for event in shown(fleet)["events"] if event["kind"] != "loaded"]


def in_flight(fleet: Tidegate, name: str) -> int:
    return sum(replica["in_flight"] for replica in server_of(fleet, name)["replicas"] if replica["model"] == MODEL)


def test_a_frozen_triton_costs_nobody_a_request_and_is_used_again_at_once(fleet: Tidegate) -> None:
    # The first server of the fleet, which is asked first for all that every server can answer.
    name, before, callers = "triton-0", len(events(fleet)), Callers(fleet)
    with callers.calling():
        time.sleep(1.0)
        with frozen(fleet, name):
            asked_s = time.monotonic()
            pages = [
                exchange(fleet.port("http"), method, path, timeout_s=SOON_S)
                for method, path in (
                    ("GET", "/v2/health/ready"),
                    ("GET", "/v2"),
                    ("POST", "/v2/repository/index"),
                    ("GET", "/v2/models/stats"),
                    ("GET", f"/v2/models/{MODEL}/ready"),
                )
            ]
            assert [status(page) for page in pages] == [200] * len(pages)
            assert json.loads(pages[2].partition(b"\r\n\r\n")[2])[0]["state"] == "READY"
            AdminClient(fleet.endpoints["admin"]).list_models()
            with urllib.request.urlopen(fleet.endpoints["metrics"], timeout=SOON_S) as page:
                assert f'server="{name}"' in page.read().decode()
            assert time.monotonic() - asked_s < SOON_S
            wait_for(lambda: server_of(fleet, name)["is_silent"], timeout_s=SOON_S, what="its silence being noticed")
            assert counted(fleet, "tidegate_fleet_server_silent", server=name) == 1
            wait_for(lambda: in_flight(fleet, name) == 0, timeout_s=SOON_S, what="its requests being taken back")
            assert "silent" in run_cli("fleet", "--state-dir", str(fleet.state_dir)).stdout
            noticed_s = time.monotonic()
        thawed_s = time.monotonic()
        wait_for(lambda: not server_of(fleet, name)["is_silent"], what="its return")
        wait_for(lambda: in_flight(fleet, name) > 0, what="its use")
    assert {said for *_, said in callers.answers} == {200}
    assert callers.slowest_s(MODEL, ONCE, from_s=noticed_s, until_s=thawed_s) < FROZEN_S / 2, "none begins there"
    assert callers.slowest_s(MODEL, from_s=0.0, until_s=thawed_s) < FROZEN_S, "those that had begun there were sent again"
    assert callers.slowest_s(ONCE, from_s=0.0, until_s=thawed_s) > FROZEN_S / 2, "or waited, where that could do harm"
    assert events(fleet)[before:] == [("silent", name), ("answering", name)]
    assert f"server {name} is silent" in fleet.said()
    assert f"server {name} is answering after" in fleet.said()
