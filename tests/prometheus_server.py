"""A real Prometheus for a test: a free port, a folder of its own, gone at the end."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from perf.servers.processes import free_port, program, running

SCRAPE_S = 0.5
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Prometheus:
    """A running one."""

    port: int
    rules: Path
    """The file of its rules."""

    def ask(self, path: str, **parameters: str | float) -> Any:
        """`data` of an answer of its HTTP API; AssertionError with its words if it is an error."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}", timeout=_TIMEOUT_S) as answer:
                return json.load(answer)["data"]
        except HTTPError as exc:
            raise AssertionError(f"{path} {parameters}: {exc.read().decode()}") from exc

    def values(self, text: str) -> list[float]:
        """What PromQL gives now, by a range of one moment, as graphs are asked for; without what is not a number."""
        now_s = time.time()
        series = self.ask("query_range", query=text, start=now_s, end=now_s, step=1.0)["result"]
        found = [float(value) for each in series for _, value in each["values"]]
        return [value for value in found if not math.isnan(value)]


@contextmanager
def prometheus_server(folder: Path, target: str, *, key: str, labels: Mapping[str, str], groups: Sequence[Any]) -> Iterator[Prometheus]:
    """Context manager: one that scrapes the metrics page at `target` with that key, and evaluates the groups of rules."""
    path = program("prometheus")
    assert path is not None, "prometheus is missing: run apt-get install prometheus as root"
    rules = folder / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": list(groups)}))
    job = {
        "job_name": "gateway",
        "authorization": {"type": "Bearer", "credentials": key},
        "static_configs": [{"targets": [target], "labels": dict(labels)}],
    }
    times = {"scrape_interval": f"{SCRAPE_S * 1000:.0f}ms", "scrape_timeout": f"{SCRAPE_S * 1000:.0f}ms"}
    config = folder / "prometheus.yaml"
    config.write_text(yaml.safe_dump({"global": times, "rule_files": [str(rules)], "scrape_configs": [job]}))
    port = free_port()
    where = (f"--storage.tsdb.path={folder / 'series'}", f"--web.listen-address=127.0.0.1:{port}")
    with running((path, f"--config.file={config}", *where, "--log.level=warn"), port):
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not _is_ready(port):
            assert time.monotonic() < deadline_s, "prometheus does not become ready"
            time.sleep(0.05)
        yield Prometheus(port, rules)


def _is_ready(port: int) -> bool:
    """It listens before it has opened its folder."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=_TIMEOUT_S):
            return True
    except HTTPError:
        return False
