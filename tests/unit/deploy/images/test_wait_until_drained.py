"""The preStop hook of the Triton container."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from control_plane.fleet.membership.draining import DrainLimits
from deploy.images.wait_until_drained import TABLES, connected, main
from tests.unit.deploy.rendered import CASES, Case, containers, named, render, workloads

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
GRPC = "   1: 0500000A:1F41 0900000A:C350 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
LISTENING = "   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
TO_ELSEWHERE = "   2: 0100007F:C350 0100007F:1F40 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
NODE = "   4: 0500000A:2134 0500000A:C352 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
OF_THE_POD = (
    "   5: 0100007F:1F40 0100007F:C353 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
    "   6: 0500000A:1F41 0500000A:C354 01 00000000:00000000 00:00000000 00000000     0        0 1 1\n"
)
"""By loopback, and by the pod's own address."""
CLOSING = "   3: 0500000A:1F40 0900000A:C351 08 00000000:00000000 00:00000000 00000000     0        0 1 1\n"


class Clock:
    """Time that passes while the program sleeps; at its moments something happens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, table: Path, held: str, **at: float) -> None:
        self.now_s = 0.0
        self._held = held
        self._table, self._gone_s = table, at.get("gone_s", float("inf"))
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        monkeypatch.setattr("time.sleep", self._sleep)
        table.write_text(HEAD + LISTENING + TO_ELSEWHERE + OF_THE_POD + self._held)

    def _sleep(self, delay_s: float) -> None:
        self.now_s += delay_s
        if self.now_s >= self._gone_s:
            self._table.write_text(HEAD + LISTENING + TO_ELSEWHERE + OF_THE_POD + CLOSING)


def hooks() -> list[list[str]]:
    """The hook's command in each overlay that has one, as it stands there."""
    found = []
    for case in CASES:
        for workload in workloads(render(case)):
            found += [each["lifecycle"]["preStop"]["exec"]["command"] for each in containers(workload) if "lifecycle" in each]
    return [list(words) for words in {tuple(words) for words in found}]


@pytest.mark.parametrize("command", hooks(), ids=" ".join)
@pytest.mark.parametrize("held", [GRPC, NODE], ids=["a gateway at Triton", "a gateway at the node"])
@pytest.mark.parametrize(("gone_s", "ended_s"), [(0.5, 35.0), (60.0, 62.0), (float("inf"), 195.0)])
def test_it_waits_for_the_last_connection_but_not_for_ever(
    command: list[str], gone_s: float, ended_s: float, held: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert command[:2] == ["python3", "/opt/tidegate/wait_until_drained.py"]
    clock = Clock(monkeypatch, tmp_path / "tcp", held, gone_s=gone_s)
    assert main(command[2:], [str(tmp_path / "tcp"), str(tmp_path / "no such table")]) == 0
    assert clock.now_s == pytest.approx(ended_s, abs=1.1)


def test_what_counts_as_connected(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    table.write_text(HEAD + LISTENING + GRPC + NODE + TO_ELSEWHERE + OF_THE_POD + CLOSING)
    assert connected([str(table)], {8500}, {8000, 8001}) == 2
    assert connected([str(table)], {8500}) == 1
    assert connected([str(table)], (), {8000, 8001}) == 1
    assert connected([str(table)], (), {8000}) == 0
    assert connected([str(table)], {8000, 8001}) == 3, "here the pod's own count, too"


def test_it_sees_real_connections() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as listening:
            listening.bind((host, 0))
            listening.listen()
            port = listening.getsockname()[1]
            assert connected(TABLES, {port}) == 0
            with socket.create_connection((host, port)):
                server, _ = listening.accept()
                assert connected(TABLES, {port}) == 1
                server.close()


def test_the_longest_wait_has_room_for_a_gateways_drain() -> None:
    limits = DrainLimits()
    (container,) = containers(named(render(Case("local")), "Deployment", "triton"))
    words = container["lifecycle"]["preStop"]["exec"]["command"]
    at_most_s = float(next(word.partition("=")[2] for word in words if word.startswith("--at-most-s=")))
    assert at_most_s >= limits.move_s + limits.report_grace_s + limits.end_s + limits.unload_s
