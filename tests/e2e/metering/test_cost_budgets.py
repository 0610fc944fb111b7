"""Cost budgets on the real Triton: which of a route's models answers follows from what Triton counts of each."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

from tests.e2e import raw_http
from tests.e2e.conftest import Start
from tests.e2e.tidegate import COMPLETE, LONG_S, PROJECT, Tidegate, run_cli, wait_for

FLAGS = ("--model-repository", str(PROJECT / "perf" / "models"), "--load", "large", "--load", "small", COMPLETE)
"""`large` takes 40 ms of an instance for each request, `small` 4 ms."""
BODY = {"inputs": [{"name": "X", "shape": [1], "datatype": "FP32", "data": [1]}]}


def model_of(running: Tidegate, budget: str = "") -> str:
    """The model that answers a request with this budget, or with the route's own."""
    answer = raw_http.infer(running.port("http"), "dial", BODY, fields=[("tidegate-cost-budget-units", budget)] if budget else [])
    found = re.search(rb"\r\ntidegate-model: (\w+)\r\n", answer)
    assert found is not None, answer
    return found[1].decode()


def counted(running: Tidegate, result: str) -> set[str]:
    """The models of answers with this result."""
    with urllib.request.urlopen(running.endpoints["metrics"], timeout=LONG_S) as page:
        text = page.read().decode()
    return set(re.findall(rf'^tidegate_cost_budget_requests_total\{{model="(\w+)",result="{result}",route="dial"\}} ', text, re.MULTILINE))


def test_what_triton_has_counted_of_each_model_chooses_the_one_that_answers(start: Start, tmp_path: Path) -> None:
    running = start(tmp_path, *FLAGS)
    where = ("--state-dir", str(tmp_path))
    assert run_cli("routes", "set", "dial", "--model", "large", "--faster", "small", *where).returncode == 0
    assert model_of(running, "20") == "large"
    assert counted(running, "unknown") == {"large"}
    wait_for(lambda: model_of(running, "20") == "small", what="the cost of the large model")
    assert model_of(running, "4000") == "large", "a busy machine takes more than 40 ms for it"
    wait_for(lambda: model_of(running, "20") and counted(running, "within") == {"small", "large"}, what="the cost of the small model")
    assert run_cli("routes", "set", "dial", "--cost-budget-units", "20", *where).returncode == 0
    assert model_of(running) == "small"
