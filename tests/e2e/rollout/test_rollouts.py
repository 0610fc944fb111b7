"""Rollouts on the real Triton, behind two workers, while callers ask over HTTP, gRPC and a stream: versions that fail, are
slow and are good."""

from __future__ import annotations

import http.client
import json
import queue
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.processes import triton_url
from tests.e2e.tidegate import COMPLETE, LONG_S, SHARED_TRITON, Tidegate, run_cli, wait_for
from tests.redis_server import redis_server

PAUSE_S = 0.03
"""Pause of a caller before each request: what rollouts do is tested, not the load."""
MODEL = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "X")
            {body}
        return answers
"""
ANSWER = 'answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy())]))'
BODIES = {
    "v1": ANSWER,
    "fails": 'answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("out of order")))',
    "slow": "time.sleep(0.1); " + ANSWER,
    "good": ANSWER,
    "other": ANSWER,
    "wrong": 'answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x.as_numpy() + 1)]))',
    "hangs": "time.sleep(30)",
}
CONFIG = """
backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ DIMS ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tidegate]:
    folder = tmp_path_factory.mktemp("models")
    for name, body in BODIES.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL.format(body=body))
        (folder / name / "config.pbtxt").write_text(CONFIG.replace("DIMS", "2" if name == "other" else "1"))
    loads = [part for name in BODIES for part in ("--load", name)]
    tidegate = servers.start(
        tmp_path_factory.mktemp("state"), "--workers", "2", "--model-repository", str(folder), COMPLETE, *loads, env=SHARED_TRITON
    )
    yield tidegate
    assert tidegate.stop() == 0, tidegate.said()


class Callers:
    """Callers of the route over HTTP, gRPC and a gRPC stream, one request after the other, each with contents of its own."""

    def __init__(self, tidegate: Tidegate) -> None:
        self._tidegate = tidegate
        self._ends = threading.Event()
        self.answered: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(ask,)) for ask in (self._http, self._http, self._grpc, self._stream)]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _run(self, ask: Any) -> None:
        try:
            ask()
        except Exception as exc:
            self.wrong.append(repr(exc))

    def _values(self) -> Iterator[float]:
        while not self._ends.is_set():
            yield float(np.float32(np.random.default_rng().random()))
            time.sleep(PAUSE_S)

    def _http(self) -> None:
        with closing(http.client.HTTPConnection(self._tidegate.address("http"), timeout=LONG_S)) as connection:
            for value in self._values():
                self._ask(connection, value)

    def _ask(self, connection: http.client.HTTPConnection, value: float) -> None:
        connection.request("POST", "/v2/models/route/infer", body(value))
        answer = connection.getresponse()
        said, named = json.load(answer), answer.headers["tidegate-model"]
        if answer.status != 200 or named not in (None, said["model_name"]):
            self.wrong.append(f"{answer.status} {named} {said}")
        self.answered[said.get("model_name", "")] += 1

    def _grpc(self) -> None:
        with tritonclient.grpc.InferenceServerClient(self._tidegate.address("grpc")) as client:
            for value in self._values():
                self.answered[client.infer("route", [_tensor(value)]).get_response().model_name] += 1

    def _stream(self) -> None:
        answers: queue.Queue[Any] = queue.Queue()
        with tritonclient.grpc.InferenceServerClient(self._tidegate.address("grpc")) as client:
            client.start_stream(lambda result, error: answers.put(error or result))
            for value in self._values():
                client.async_stream_infer("route", [_tensor(value)])
                answer = answers.get(timeout=LONG_S)
                if isinstance(answer, Exception):
                    raise answer
                self.answered[answer.get_response().model_name] += 1


def body(value: float) -> str:
    return json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [value]}]})


def asked(tidegate: Tidegate) -> str:
    """The model that answers a request on a connection of its own; empty where none does."""
    with closing(http.client.HTTPConnection(tidegate.address("http"), timeout=LONG_S)) as connection:
        connection.request("POST", "/v2/models/route/infer", body(1.0))
        answer = connection.getresponse()
        return str(json.load(answer)["model_name"]) if answer.status == 200 else ""


def _tensor(value: float) -> tritonclient.grpc.InferInput:
    tensor = tritonclient.grpc.InferInput("X", [1], "FP32")
    tensor.set_data_from_numpy(np.array([value], dtype=np.float32))
    return tensor


def cli(tidegate: Tidegate, *arguments: str) -> str:
    ended = run_cli(*arguments, "--state-dir", str(tidegate.state_dir))
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def rolled_out(tidegate: Tidegate, model: str, *options: str) -> str:
    """The last event of a rollout to that model."""
    how = ("--samples", "50", "--seconds", "1", *(() if "--shadow-samples" in options else ("--no-shadow",)))
    cli(tidegate, "rollouts", "start", "route", "--to", model, *how, *options)
    history: list[str] = []

    def has_ended() -> bool:
        history[:] = cli(tidegate, "rollouts", "history", "route").splitlines()
        return any(word in history[-1] for word in ("rolled back", "aborted", " promoted ")) and "promoted: " not in history[-1]

    wait_for(has_ended, what=f"the end of the rollout to {model}", every_s=0.5)
    return history[-1]


def test_bad_versions_are_rolled_back_a_good_one_is_promoted_and_no_request_fails(running: Tidegate) -> None:
    cli(running, "routes", "set", "route", "--model", "v1", "--repeatable")
    wait_for(lambda: all(asked(running) == "v1" for _ in range(20)), what="the route, in both workers")
    with Callers(running) as callers:
        assert "rolled back: faults: " in rolled_out(running, "fails", "--steps", "10")
        assert "rolled back: slower than " in rolled_out(running, "slow", "--steps", "20")
        assert " promoted" in rolled_out(running, "good", "--steps", "20,50")
        before = callers.answered["v1"]
        wait_for(lambda: callers.answered["good"] > 200, what="answers of the new model")
        assert callers.answered["v1"] - before < 100
    assert callers.wrong == []
    assert set(callers.answered) == {"v1", "slow", "good"}, "what fails has answered nobody"
    refused = run_cli("rollouts", "start", "route", "--to", "other", "--state-dir", str(running.state_dir))
    assert (refused.returncode, "output Y was FP32[1] and is FP32[2]" in refused.stderr) == (1, True)


def test_what_is_wrong_is_found_in_its_shadow_and_answers_nobody(running: Tidegate) -> None:
    cli(running, "routes", "set", "route", "--model", "v1", "--repeatable")
    wait_for(lambda: all(asked(running) == "v1" for _ in range(20)), what="the route, in both workers")
    before = copied(running)
    shadow = ("--shadow-samples", "60", "--shadow-percent", "30", "--agreement", "tolerance", "--steps", "20")
    with Callers(running) as callers:
        assert "rolled back: disagreement: " in rolled_out(running, "wrong", *shadow)
        assert "rolled back: faults: " in rolled_out(running, "fails", *shadow)
        assert "rolled back: faults: " in rolled_out(running, "hangs", *shadow)
        assert set(callers.answered) == {"v1"}
        assert " promoted" in rolled_out(running, "good", *shadow, "--bake", "1")
    assert callers.wrong == []
    after = copied(running)
    assert all(after[result] > before[result] for result in ("agrees", "differs", "failed")), after
    whats = cli(running, "rollouts", "history", "route").splitlines()[-5:]
    assert ["shadow first" in whats[0], "step 1: 20 %" in whats[1], "all requests, for 1 s beside v1" in whats[2]] == [True] * 3


def copied(tidegate: Tidegate) -> Counter[str]:
    """Requests to be copied, by what became of them, of all workers."""
    counts: Counter[str] = Counter()
    for labels, count in metric(tidegate, "tidegate_copied_requests_total"):
        counts[labels["result"]] += count
    return counts


def metric(tidegate: Tidegate, name: str) -> list[tuple[dict[str, str], int]]:
    """The labels and values of a metric, of all workers."""
    page = raw_http.exchange(tidegate.port_of_metrics(), "GET", "/metrics").decode()
    lines = (line for line in page.splitlines() if line.startswith(name + "{"))
    return [(dict(re.findall(r'(\w+)="([^"]*)"', line)), int(float(line.split()[-1]))) for line in lines]


def test_a_mirror_gets_copies_for_as_long_as_it_stands_and_nobody_notices_one_that_fails_or_hangs(running: Tidegate) -> None:
    def to(model: str, result: str) -> int:
        found = metric(running, "tidegate_copied_requests_total")
        return sum(count for labels, count in found if (labels["route"], labels["model"], labels["result"]) == ("route", model, result))

    cli(running, "routes", "set", "route", "--model", "v1", "--repeatable", "--mirror", "other", "--mirror-percent", "100")
    warned = run_cli("routes", "set", "route", "--mirror", "wrong", "--state-dir", str(running.state_dir)).stderr
    assert "warning" not in warned
    warned = run_cli("routes", "set", "route", "--mirror", "other", "--state-dir", str(running.state_dir)).stderr
    assert "warning: copies to the mirror will fail: model 'other' would break callers of 'v1': output Y was FP32[1]" in warned
    wait_for(lambda: all(asked(running) == "v1" for _ in range(20)), what="the route, in both workers")
    with Callers(running) as callers:
        for model, result in (("good", "answered"), ("fails", "failed"), ("hangs", "failed"), ("missing", "uncounted")):
            before = to(model, result)
            cli(running, "routes", "set", "route", "--mirror", model)
            wait_for(lambda: to(model, result) >= before + 2, what=f"copies to {model}", every_s=0.3)  # noqa: B023
        assert "copies of 100 % to missing" in " ".join(cli(running, "routes", "list").split())
        took = metric(running, "tidegate_copied_request_duration_seconds_count")
        halves = {labels["half"]: count for labels, count in took if (labels["route"], labels["model"]) == ("route", "good")}
        assert halves["original"] == halves["copy"] >= 2
        cli(running, "routes", "set", "route", "--mirror", "none")
        time.sleep(1.0)
        sent = to("missing", "uncounted")
        answered = callers.answered.total()
        wait_for(lambda: callers.answered.total() > answered + 100, what="requests that nobody copies")
        assert to("missing", "uncounted") == sent
    assert (callers.wrong, set(callers.answered)) == ([], {"v1"})


def test_when_the_leader_is_killed_another_gateway_goes_on(running: Tidegate, tmp_path: Path) -> None:
    with redis_server(tmp_path) as redis, ExitStack() as ends:
        gateways = []
        for name in ("one", "other"):
            gateways.append(servers.start(tmp_path / name, "--triton-url", triton_url(running), "--state-url", redis.url))
            ends.callback(gateways[-1].kill)
        cli(gateways[0], "routes", "set", "route", "--model", "v1")
        wait_for(lambda: any("leads the rollouts, token" in each.said() for each in gateways), what="a leader")
        leader, other = sorted(gateways, key=lambda each: "leads the rollouts, token" not in each.said())
        wait_for(lambda: asked(other) == "v1", what="the route")
        with Callers(other) as callers:
            cli(
                leader, "rollouts", "start", "route", "--to", "good", "--steps", "20,50", "--samples", "50", "--seconds", "3", "--no-shadow"
            )
            # The leader serves none of these requests: it goes forward by what the other has seen.
            wait_for(lambda: "2 of 2" in cli(other, "rollouts", "status", "route"), what="the second step", every_s=0.2)
            leader.kill()
            wait_for(lambda: " promoted" in cli(other, "rollouts", "status", "route"), what="the end of the rollout", every_s=0.5)
        assert callers.wrong == []
        events = [line.split("%")[1].split() for line in cli(other, "rollouts", "history", "route").splitlines()[1:]]
        assert [words[0].rstrip(":") for words in events] == ["began", "step", "promoted", "promoted"]
