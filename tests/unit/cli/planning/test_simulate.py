"""`tidegate simulate`: its output, and its errors for invalid input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from control_plane.cli import command_line
from control_plane.core.errors import ControlPlaneError, InvalidRequest


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command_line(), ["simulate", *map(str, arguments)])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InvalidRequest | ControlPlaneError), result.output
    return str(result.exception)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Write a trace with one request per second for two models, and one for a third model at the end."""
    path = tmp_path / "trace.csv"
    path.write_text("seconds,model\n" + "".join(f"{second},{'ab'[second % 2]}\n" for second in range(300)) + "299.5,c\n")
    return path


def test_a_trace(trace: Path) -> None:
    result = run("--trace", trace, "--servers", 1, "--memory-budget", "400MiB", "--service-ms", 20, "--load-ms", 100)
    assert result.exit_code == 0
    header, row = result.stdout.splitlines()[:2]
    assert header.split() == ["servers", "loads", "unloads", "p50", "ms", "p99", "ms", "p99.9", "ms", "refused", "busy"]
    assert row.split() == ["1", "3", "1", "20.0", "20.0", "120.0", "0", "2%"]
    assert "301 requests for 3 models in 300 s" in result.output


def test_a_plan_for_programs(trace: Path) -> None:
    shape = ("--trace", trace, "--memory-budget", "400MiB", "--service-ms", 20, "--load-ms", 100)
    plan = json.loads(run(*shape, "--servers", 1, "-o", "json").stdout)
    assert (plan["requests"], plan["models"], plan["servers"]) == (301, 3, 1)
    latencies = {"p50_ms": pytest.approx(20.0), "p99_ms": pytest.approx(20.0), "p999_ms": pytest.approx(120.0)}
    busy = pytest.approx(301 * 0.02 / 299.5)
    assert plan["trials"] == [{"servers": 1, "loads": 3, "unloads": 1, "refused": 0, "busy": busy, **latencies}]
    found = yaml.safe_load(run(*shape, "--p99-ms", 100, "-o", "yaml").stdout)
    assert (found["servers"], found["trials"][0]["servers"]) == (1, 1)


def test_the_fewest_servers(trace: Path) -> None:
    result = run("--trace", trace, "--memory-budget", "400MiB", "--p99-ms", 100, "--load-ms", 100)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "1 server for p99 100 ms"


def test_costs_of_their_own(trace: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.csv"
    costs.write_text("model,bytes,load_ms\na,1000000,500\nunused,1,1\n")
    result = run("--trace", trace, "--servers", 1, "--load-ms", 100, "--costs", costs)
    assert result.stdout.splitlines()[1].split()[5] == "510.0"


def test_drawn_requests_are_the_same_by_seed() -> None:
    arguments = ("--models", 20, "--requests", 500, "--servers", 2)
    assert run(*arguments).stdout == run(*arguments).stdout != run(*arguments, "--seed", 1).stdout


def test_no_number_of_servers() -> None:
    assert "no number of servers up to 1024 answers 99 % of these requests within 5 ms; the best answers 0.0%" in refused(
        "--p99-ms", 5, "--requests", 100
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--memory-budget", "much"), "--memory-budget much: write a size such as 2GiB or 500MB"),
        (("--memory-budget", "0"), "--memory-budget 0: write a size"),
        (("--model-bytes=-5MB",), "--model-bytes -5MB: write a size"),
        (("--memory-budget", "1MiB"), "takes 200.0MiB and a server has 1.0MiB for models: give more with --memory-budget"),
        (("--trace", "/nowhere/trace.csv"), "/nowhere/trace.csv: it cannot be read: No such file or directory"),
        (("--costs", "/nowhere/costs.csv"), "/nowhere/costs.csv: it cannot be read: "),
    ],
)
def test_bad_input(arguments: tuple[str, ...], told: str) -> None:
    assert told in refused("--requests", 50, *arguments)


def test_a_bad_trace_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("seconds,model\n0,a\nlater,b\n")
    assert refused("--trace", path) == f"{path}: line 3: seconds is 'later'; write a number"
    path.write_bytes(b"\xff\xfe\x00")
    assert refused("--trace", path) == f"{path}: it cannot be read as UTF-8 text: byte 0 is none of it"


@pytest.mark.parametrize("arguments", [("--servers", "0"), ("--p99-ms", "0"), ("--models", "x"), ("--zipf", "-1"), ("--rate", "0")])
def test_numbers_out_of_range(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2
