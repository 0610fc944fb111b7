"""Three Tritons, on nodes behind two workers, of which one is frozen for a while: nobody loses a request, no page hangs, and it is
used again at once.

It stays frozen until all has happened that must not wait for its end, however slow the machine is.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from control_plane.admin.client import AdminClient
from tests.e2e.fleets import answer_of, counted, loaded, shown, write_models
from tests.e2e.nodes import NODES, fleet_on
from tests.e2e.processes import triton_of
from tests.e2e.raw_http import exchange, read_answer, status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, run_cli, wait_for

pytestmark = pytest.mark.timeout(300)

MODEL, ONCE = "m1", "m2"
"""One whose requests may be sent again, and one whose may not, since nothing says that equal ones have equal answers."""
CALLERS = 8
ONCE_TAKES_S = 0.2
"""How long a model computes that may be asked once only: each server has requests to it at every moment, also when one freezes."""
PAUSE_S = 0.05
"""After an answer: it is not the load that is tested, and the machine has other things to do."""
ANSWERS = 3
"""So many show that a caller goes on."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    repository = tmp_path_factory.mktemp("models")
    write_models(repository, (MODEL, ONCE))
    code = repository / ONCE / "1" / "model.py"
    code.write_text("import time\n" + code.read_text().replace("        found = ", f"        time.sleep({ONCE_TAKES_S})\n        found = "))
    for model in (MODEL, ONCE):
        with (repository / model / "config.pbtxt").open("a") as config:
            config.write('parameters { key: "tidegate_min_replicas" value { string_value: "3" } }\n')
            config.write("response_cache { enable: true }\n" if model == MODEL else "")
    flags = ("--workers", "2", "--memory-budget", "1GiB")
    with fleet_on(NODES, tmp_path_factory.mktemp("fleet"), *flags, repository=repository, sources=(COMPLETE,), count=3) as (running, _):
        wait_for(lambda: all(models == {MODEL, ONCE} for models in loaded(running).values()), what="a copy on each")
        yield running


@dataclass
class Callers:
    """What callers were answered, each on a connection of its own."""

    fleet: Tidegate
    answers: list[tuple[int, float, float, int]] = field(default_factory=list)
    """Each request's caller, when it began and ended, and its status; 0 for a lost connection."""
    began_s: dict[int, float] = field(default_factory=dict)
    """When the last request of each caller began."""
    _is_over: threading.Event = field(default_factory=threading.Event)

    def call(self, caller: int, model: str) -> None:
        """No two requests are equal, since equal ones are answered from the cache."""
        numbers = (float(caller + 2 * CALLERS * number) for number in itertools.count())
        with socket.create_connection(("127.0.0.1", self.fleet.port("http")), timeout=LONG_S) as connection:
            while not self._is_over.is_set():
                said, self.began_s[caller] = 0, time.monotonic()
                try:
                    number = next(numbers)
                    connection.sendall(request_of(model, number))
                    answer = read_answer(connection)
                    said = status(answer)
                    assert said != 200 or answer_of(answer) == number + float(model[1:])
                finally:
                    self.answers.append((caller, self.began_s[caller], time.monotonic(), said))
                self._is_over.wait(PAUSE_S)

    @contextmanager
    def calling(self) -> Iterator[None]:
        threads = [threading.Thread(target=self.call, args=(caller, model_of(caller))) for caller in range(2 * CALLERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def go_on(self, since_s: float) -> bool:
        """All have been answered what they have asked since then, except those who may ask once only and had asked before."""
        answered = Counter(caller for caller, began_s, *_ in list(self.answers) if began_s > since_s)
        waiting = {caller for caller, began_s in self.began_s.items() if began_s <= since_s and model_of(caller) == ONCE}
        return all(caller in waiting or answered[caller] >= ANSWERS for caller in range(2 * CALLERS))

    def held(self, since_s: float, until_s: float) -> set[str]:
        """Models of the requests that were there all this time."""
        return {model_of(caller) for caller, began_s, ended_s, _ in self.answers if began_s < since_s and ended_s > until_s}


def model_of(caller: int) -> str:
    return MODEL if caller < CALLERS else ONCE


def request_of(model: str, number: float) -> bytes:
    sent = json.dumps({"inputs": [{"name": "INPUT0", "shape": [1, 1], "datatype": "FP32", "data": [number]}]}).encode()
    return f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(sent)}\r\n\r\n".encode() + sent


@contextmanager
def frozen(fleet: Tidegate, server: str) -> Iterator[None]:
    """Within the block the server's Triton says nothing."""
    pid = triton_of(fleet, server)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def server_of(fleet: Tidegate, name: str) -> dict[str, Any]:
    return next(server for server in shown(fleet)["servers"] if server["name"] == name)


def events(fleet: Tidegate, server: str) -> list[str]:
    return [event["kind"] for event in shown(fleet)["events"] if event["kind"] != "loaded" and event["server"] == server]


def in_flight(fleet: Tidegate, name: str, model: str = MODEL) -> int:
    return sum(replica["in_flight"] for replica in server_of(fleet, name)["replicas"] if replica["model"] == model)


def was_used(fleet: Tidegate, name: str, *, since_s: float) -> bool:
    """Whether a request has begun at the server since then."""
    ago_s = time.monotonic() - since_s
    return any(replica["idle_s"] < ago_s for replica in server_of(fleet, name)["replicas"])


def test_a_frozen_triton_costs_nobody_a_request_and_is_used_again_at_once(fleet: Tidegate) -> None:
    # The first server of the fleet, which is asked first for all that every server can answer.
    name = "triton-0"
    before, callers = len(events(fleet, name)), Callers(fleet)
    with callers.calling():
        wait_for(lambda: in_flight(fleet, name, ONCE) > 0, what="requests at the server")
        with frozen(fleet, name):
            pages = [
                exchange(fleet.port("http"), method, path, timeout_s=LONG_S)
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
            with urllib.request.urlopen(fleet.endpoints["metrics"], timeout=LONG_S) as page:
                assert f'server="{name}"' in page.read().decode()
            wait_for(lambda: server_of(fleet, name)["is_silent"], what="its silence being noticed")
            assert counted(fleet, "tidegate_fleet_server_silent", server=name) == 1
            wait_for(lambda: in_flight(fleet, name) == 0, what="its requests being taken back")
            assert "silent" in run_cli("fleet", "--state-dir", str(fleet.state_dir)).stdout
            noticed_s = time.monotonic()
            wait_for(lambda: callers.go_on(noticed_s), what="answers to all who ask now")
            thawed_s = time.monotonic()
        wait_for(lambda: not server_of(fleet, name)["is_silent"], what="its return")
        returned_s = time.monotonic()
        wait_for(lambda: was_used(fleet, name, since_s=returned_s), what="its use")
    assert {said for *_, said in callers.answers} == {200}
    assert callers.held(noticed_s, thawed_s) == {ONCE}, "what had begun there was sent again, or waited where that could do harm"
    assert events(fleet, name)[before:] == ["silent", "answering"]
    assert f"server {name} is silent" in fleet.said()
    assert f"server {name} is answering after" in fleet.said()
