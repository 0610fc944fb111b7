"""Grafana's dashboards of the component `monitoring`: their panels, the queries of these, and what variables ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MONITORING = Path(__file__).parents[1] / "deploy" / "kubernetes" / "components" / "monitoring"
_LABEL_VALUES = re.compile(r"label_values\((\w+(?:\{.*\})?), (\w+)\)")


@dataclass(frozen=True)
class Query:
    """PromQL of a panel, with Grafana's variables in it, and what its lines are called."""

    panel: str
    text: str
    legend: str

    def filled(self, window: str) -> str:
        """As Grafana asks it with everything chosen; rates are taken over `window`."""
        return everything(self.text.replace("$__rate_interval", window))


def dashboards() -> dict[str, Any]:
    """Return each dashboard by the name of its file."""
    return {path.name: json.loads(path.read_text()) for path in sorted(MONITORING.glob("*.json"))}


def panels(dashboard: Mapping[str, Any]) -> list[Any]:
    """Return the panels of a dashboard, without those that are only the heading of a row."""
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def queries() -> list[Query]:
    """Return the queries of all panels of all dashboards."""
    return [
        Query(panel["title"], target["expr"], target["legendFormat"])
        for dashboard in dashboards().values()
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]


def choices() -> Iterator[tuple[str, str]]:
    """What each variable lists: (series, label)."""
    for dashboard in dashboards().values():
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
                assert found, variable
                yield found[1], found[2]


def everything(text: str) -> str:
    """PromQL with each variable standing for all of its values."""
    return re.sub(r"\$\w+", ".*", text)


def rule_groups() -> list[Any]:
    """Groups of Prometheus' rules."""
    groups: list[Any] = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]["groups"]
    return groups
