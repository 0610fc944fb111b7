"""The liveness probe of the Triton container: it notices a Triton that is silent, and a node that is frozen beside a living one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.host.boot_clock import boot_time_s
from control_plane.host.heartbeat import EVERY_S, FILE
from deploy.images.is_alive import main
from tests.http_server import AskedRequest, http_server
from tests.unit.deploy.rendered import CASES, containers, env, pod_spec, render, workloads

LONG_S = 60.0


def probes() -> list[tuple[tuple[str, ...], str, float, float]]:
    """(command, state folder, its grace, the pod's) of each Triton container whose probe is a program."""
    found = set()
    for case in CASES:
        for workload in workloads(render(case)):
            for each in containers(workload):
                probe = each.get("livenessProbe", {})
                if "is_alive.py" in str(probe):
                    pod_s = pod_spec(workload)["terminationGracePeriodSeconds"]
                    own = (probe["terminationGracePeriodSeconds"], pod_s)
                    found.add((tuple(probe["exec"]["command"]), env(each)["TIDEGATE_STATE_DIR"], *own))
    return sorted(found)


class Triton:
    """A Triton whose liveness has this status."""

    status = 200
    port = 0

    def answer(self, asked: AskedRequest) -> None:
        asked.answer(self.status if asked.path == "/v2/health/live" else 404)


@pytest.fixture
def triton() -> Iterator[Triton]:
    found = Triton()
    with http_server(found.answer) as url:
        found.port = int(url.rpartition(":")[2])
        yield found


def words(folder: Path, port: int) -> list[str]:
    """The probe's own arguments, with this machine's file and port."""
    (((*_, heartbeat, at_most, url), state_dir, _, _),) = probes()
    assert heartbeat == f"--heartbeat={state_dir}/{FILE}"
    assert "8000/v2/health/live" in url
    return [heartbeat.replace(state_dir, str(folder)), at_most, url.replace(":8000", f":{port}")]


def test_every_node_is_probed_by_the_program_of_its_image() -> None:
    (((*program, _, at_most, _), _, grace_s, pod_s),) = probes()
    assert program == ["python3", "/opt/tidegate/is_alive.py"]
    assert float(at_most.partition("=")[2]) >= 10 * EVERY_S, "a machine that is busy for seconds is no fault"
    assert grace_s < pod_s / 2, "gateways do not leave a pod of which only a container ends"


@pytest.mark.parametrize(
    ("age_s", "status", "expected", "told"),
    [
        pytest.param(1.0, 200, 0, "", id="both live"),
        pytest.param(1000.0, 200, 1, "the node", id="the node is frozen"),
        pytest.param(1.0, 503, 1, "Triton", id="Triton says no"),
        pytest.param(None, 200, 1, "heartbeat", id="no node has ever been here"),
        pytest.param(-1000.0, 200, 1, "the node", id="of another boot of this machine"),
    ],
)
def test_what_is_alive(
    tmp_path: Path, triton: Triton, capsys: pytest.CaptureFixture[str], age_s: float | None, status: int, expected: int, told: str
) -> None:
    triton.status = status
    if age_s is not None:
        (tmp_path / FILE).write_text(f"{boot_time_s() - age_s:020.3f}\n")
    assert main(words(tmp_path, triton.port)) == expected
    assert told in capsys.readouterr().out


def test_a_triton_that_is_away_is_not_alive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / FILE).write_text(f"{boot_time_s():020.3f}\n")
    assert main(words(tmp_path, 1)) == 1
    assert "Triton" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["", "x\n", "-1", "nan"])
def test_a_heartbeat_that_says_nothing_is_none(tmp_path: Path, triton: Triton, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    assert main(words(tmp_path, triton.port)) == 1


def test_a_frozen_process_is_noticed_and_forgiven_when_it_goes_on(tmp_path: Path, triton: Triton) -> None:
    """With the node's own heartbeat; a shorter patience than the probe's, since a test would wait for it."""
    mine = [*words(tmp_path, triton.port), "--at-most-s=3"]
    code = f"import asyncio, pathlib; from control_plane.host.heartbeat import beat; asyncio.run(beat(pathlib.Path({str(tmp_path)!r})))"

    def wait_until(status: int) -> None:
        end_s = time.monotonic() + LONG_S
        while main(mine) != status:
            assert time.monotonic() < end_s, status
            time.sleep(0.1)

    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            wait_until(0)
            process.send_signal(signal.SIGSTOP)
            wait_until(1)
            process.send_signal(signal.SIGCONT)
            wait_until(0)
        finally:
            process.kill()
