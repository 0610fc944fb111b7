"""What a shadow of 10 % costs callers: turns with one and without, of a model that sleeps, so that cores are not what is shared."""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np

from perf.chaos.sites.gateways import Gateway
from perf.rollouts.fleet import Fleet
from perf.rollouts.report import Run

_CALLERS = 4
_PERCENT = 10
_MODEL = """
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            time.sleep(0.01)
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]))
        return answers
"""
_CONFIG = """backend: "python"
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 4 } ]
"""


def cost_of_shadow(turns: int, turn_s: float) -> Run:
    """Measure so many turns of both kinds, one after the other: ratios are taken within each pair."""
    with tempfile.TemporaryDirectory(prefix="tidegate-shadow-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for model in ("stable", "next"):
            (folder / "models" / model / "1").mkdir(parents=True)
            (folder / "models" / model / "1" / "model.py").write_text(_MODEL)
            (folder / "models" / model / "config.pbtxt").write_text(_CONFIG)
        gateway = Gateway(folder / "state", "--model-repository", str(folder / "models"), "--load", "stable", "--load", "next")
        gateway.start()
        try:
            return _measured(Fleet(gateway), turns, turn_s)
        finally:
            gateway.stop()


def _measured(site: Fleet, turns: int, turn_s: float) -> Run:
    site.client.ask("PUT", "routes", "r", body={"model": "stable", "is_repeatable": True})
    time.sleep(1.5)
    _turn(site, turn_s)
    ratios: list[tuple[float, float]] = []
    asked, before = 0, site.copied()
    for _ in range(turns):
        without = _turn(site, turn_s)
        shadow = {"weight": 100 * _PERCENT, "samples": 10**9, "min_s": 0.0}
        site.begin("r", "next", steps=[{"weight": 100}], shadow=shadow, agreement={"kind": "exact"})
        time.sleep(0.5)
        beside = _turn(site, turn_s)
        site.abort("r")
        time.sleep(0.5)
        asked += len(without) + len(beside)
        ratios.append((_ratio(beside, without, 50), _ratio(beside, without, 99)))
    p50, p99 = (median(each) for each in zip(*ratios, strict=True))
    return Run(turns, asked, copied=site.copied() - before, as_wanted=turns, p50_ratio=p50, p99_ratio=p99)


def _ratio(one: list[float], other: list[float], percent: float) -> float:
    return float(np.percentile(one, percent) / np.percentile(other, percent))


def _turn(site: Fleet, turn_s: float) -> list[float]:
    """Seconds that each request took."""
    took: list[float] = []

    def ask(number: int) -> None:
        ends_s, value = time.monotonic() + turn_s, float(number)
        with closing(http.client.HTTPConnection(site.address("http"), timeout=30.0)) as connection:
            while (began_s := time.monotonic()) < ends_s:
                value += _CALLERS
                body = json.dumps({"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [value]}]})
                connection.request("POST", "/v2/models/r/infer", body)
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"status {answer.status}")
                took.append(time.monotonic() - began_s)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return took
