"""Dashboards and alerts before a real Prometheus, which scrapes a gateway with a real Triton as a PodMonitor has it scrape."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from perf.servers.processes import program
from tests.dashboards import Query, choices, everything, queries, rule_groups
from tests.e2e import raw_http
from tests.e2e import tidegate as servers
from tests.e2e.accounts import Administrator, make_first_key
from tests.e2e.conftest import MODELS
from tests.e2e.tidegate import COMPLETE, PROJECT, Tidegate, wait_for
from tests.prometheus_server import SCRAPE_S, Prometheus, prometheus_server

WINDOW = "1m"
_TIMEOUT_S = 30.0
ECHO = {"inputs": [{"name": "INPUT0", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
WITHOUT_DATA = {
    "tidegate_shared_cache": "there is no --cache-url",
    "tidegate_job_deliveries": "no job has a webhook or an output",
    "tidegate_latency_budget": "no route has faster models",
    "tidegate_cost_budget": "no route has faster models",
    "tidegate_copied_requests": "no route has a mirror or a rollout",
    "tidegate_region": "there are no other regions",
    "nv_gpu_": "there may be no GPU",
}
"""Beginnings of metrics that this gateway need not have, and why."""


@dataclass
class Site:
    """A gateway under some traffic, and the Prometheus that watches it."""

    gateway: Tidegate
    prometheus: Prometheus
    callers: dict[str, str]
    """Keys by tenant."""

    def ask(self, model: str, body: object, *, tenant: str = "team") -> int:
        return raw_http.status(raw_http.infer(self.gateway.port("http"), model, body, fields=[("x-api-key", self.callers[tenant])]))

    def ask_some(self) -> None:
        """Answers that are computed, cached, failed, refused for want of a model, and turned away."""
        for number in range(4):
            assert self.ask("text_embedding", texts("the tide" if number else f"the tide at {time.monotonic()}")) == 200
            assert self.ask("text_embedding", texts(f"the tide at {time.monotonic()}" + " rises and falls" * 80)) == 200
            assert self.ask("echo", ECHO) == 200
            self.ask("echo", ECHO, tenant="small")
            assert self.ask("slow", seconds(-1.0 if number else 0.0)) == (500 if number else 200), "nobody sleeps for less than nothing"
        assert self.ask("way", ECHO) == 200
        assert self.ask("broken", ECHO) >= 400

    def lacks_data(self) -> list[Query]:
        return [each for each in EXPECTED if not self.prometheus.values(each.filled(WINDOW))]


EXPECTED = [each for each in queries() if not any(name in each.text for name in WITHOUT_DATA)]


def texts(text: str) -> object:
    return {"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}


def seconds(count: float) -> object:
    return {"inputs": [{"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [count]}]}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("dashboards")
    shutil.copytree(MODELS / "echo", root / "more" / "next")
    repositories = [PROJECT / "model_repository", PROJECT / "ensembles", MODELS, root / "more"]
    flags = [part for path in repositories for part in ("--model-repository", str(path))]
    key = make_first_key(root / "gateway")
    gateway = servers.start(root / "gateway", *flags, COMPLETE, "--authentication", "--memory-budget", "1GiB", "--load", "echo")
    try:
        administrator = Administrator(gateway, key)
        administrator.make_tenant("team")
        administrator.make_tenant("small", requests_per_s=1.0)
        callers = {tenant: administrator.make_key(tenant, "infer:*") for tenant in ("team", "small")}
        administrator.do("PUT", "/routes/way", {"model": "echo"})
        administrator.do("POST", "/rollouts/way", {"model": "next", "steps": [{"weight": 5000, "samples": 1000}]})
        scraper = administrator.make_key("team", "metrics")
        target, labels = f"127.0.0.1:{gateway.port_of_metrics()}", {"namespace": "tidegate", "pod": "gateway-0"}
        groups = [{**group, "interval": "1s"} for group in rule_groups()]
        with prometheus_server(root, target, key=scraper, labels=labels, groups=groups) as prometheus:
            it = Site(gateway, prometheus, callers)
            # What has a label for models or tenants counts from its second scrape.
            wait_for(lambda: prometheus.values("tidegate_build_info"), what="a scrape")
            it.ask_some()
            wait_for(lambda: prometheus.values('tidegate_requests_total{model="slow"}'), what="a scrape with models")
            it.ask_some()
            yield it
    finally:
        gateway.kill()


def test_each_panel_shows_something(site: Site) -> None:
    deadline_s = time.monotonic() + _TIMEOUT_S
    while lacking := site.lacks_data():
        assert time.monotonic() < deadline_s, lacking
        site.ask_some()
        time.sleep(2 * SCRAPE_S)


@pytest.mark.parametrize("query", [each for each in queries() if each not in EXPECTED], ids=lambda each: each.panel)
def test_what_may_show_nothing_here_is_asked_for_without_an_error(site: Site, query: Query) -> None:
    site.prometheus.values(query.filled(WINDOW))


def test_shares_are_shares(site: Site) -> None:
    for each in EXPECTED:
        if "Share of" in each.panel:
            assert all(0 <= value <= 1 for value in site.prometheus.values(each.filled(WINDOW))), each


def test_quantiles_are_within_the_histograms_bounds(site: Site) -> None:
    found = [site.prometheus.values(each.filled(WINDOW)) for each in EXPECTED if "histogram_quantile" in each.text]
    assert len(found) >= 5
    # Seconds, and compute units of a model that sleeps for one.
    assert all(0 < value <= 4096 and math.isfinite(value) for values in found for value in values)


def test_each_variable_has_something_to_choose(site: Site) -> None:
    for series, label in choices():
        assert site.prometheus.ask(f"label/{label}/values", **{"match[]": everything(series)}), (series, label)


def test_rules_are_evaluated_and_none_fires_without_need(site: Site) -> None:
    found = [rule for group in site.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(found) == sum(len(group["rules"]) for group in rule_groups())
    for rule in found:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule
        assert rule.get("state") != "firing", rule
        site.prometheus.values(rule["query"])


def test_promtool_has_nothing_to_say_of_the_rules(site: Site) -> None:
    path = program("promtool")
    assert path is not None
    done = subprocess.run([path, "check", "rules", str(site.prometheus.rules)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_understands_the_whole_page(site: Site) -> None:
    (target,) = site.prometheus.ask("targets", state="active")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", ""), json.dumps(target)
