"""Programs are ended whatever happens, and what /proc says of them and their children is added up."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest

from perf.servers.processes import PROJECT, cpu_s, execute_tidegate, free_port, missing_packages, running, tree, usage

SERVER = """
import os, socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
if os.fork() == 0:
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    open(sys.argv[2], "w").close()
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    """A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_outgoing_connection_can_take_a_port_before_it_is_bound() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port() for _ in range(50)]
    assert lowest <= 20_000 or max(ports) < lowest
    assert len(set(ports)) > 1


def test_a_tidegate_has_a_session_of_its_own_and_its_words_are_added_to_its_log(tmp_path: Path) -> None:
    log = tmp_path / "output.txt"
    log.write_text("before\n")
    started = execute_tidegate(["--version"], log, os.environ)
    assert os.getsid(started.pid) == started.pid
    assert started.wait(timeout=60) == 0
    assert re.fullmatch(r"before\ntidegate \S+\n", log.read_text())


def test_children_count_and_the_program_is_ended(tmp_path: Path) -> None:
    port, done = free_port(), tmp_path / "done"
    with running([sys.executable, "-c", SERVER, str(port), str(done)], port) as pid:
        while not done.exists():
            time.sleep(0.01)
        processes = tree(pid)
        assert len(processes) == 2
        assert cpu_s(pid) >= 0.15
        assert usage(pid).threads == 2
        assert usage(pid).rss_bytes > 1 << 20
        os.kill(processes[1], 9)
    assert not is_alive(pid)


def test_a_program_that_ends_at_once_is_told_with_its_words() -> None:
    with pytest.raises(RuntimeError, match="no such thing"), running([sys.executable, "-c", "exit('no such thing')"], free_port()):
        pass


def test_an_error_inside_ends_the_program_too() -> None:
    port, pids = free_port(), []

    def interrupted() -> None:
        with running([sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)], port) as pid:
            pids.append(pid)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not is_alive(pids[0])


def test_nobody_uses_nothing() -> None:
    gone = 2**22 + 1
    assert cpu_s(gone) == 0
    assert usage(gone).rss_bytes == 0


def test_missing_programs_are_told_by_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wrk").write_text("#!/bin/sh\n")
    (tmp_path / "wrk").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_packages(["wrk", "h2load"]) == ["nghttp2-client"]


def test_programs_are_installed_without_the_services_that_they_recommend() -> None:
    installs = re.findall(r"apt-get install -y.*", (PROJECT / "Makefile").read_text())
    assert len(installs) == 2
    assert all("--no-install-recommends" in each for each in installs)
