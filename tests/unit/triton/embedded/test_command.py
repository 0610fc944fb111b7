from __future__ import annotations

import re
import resource
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.core.endpoints import Endpoints, TritonEndpoints, TritonSockets
from control_plane.core.errors import StartupError
from control_plane.settings import TritonSettings
from control_plane.triton.embedded.command import (
    TritonFolders,
    choose_ports,
    http_threads,
    make_sockets,
    shm_prefix,
    triton_command,
    triton_folders,
)
from control_plane.triton.embedded.installation import TritonInstallation

INSTALLATION = TritonInstallation(Path("/t/tritonserver"), Path("/t/python"), Path("/t/caches"), Path("/t/libs"))
ENDPOINTS = TritonEndpoints(host="127.0.0.1", http_port=1, grpc_port=2, metrics_port=3)


@pytest.fixture
def folders(tmp_path: Path) -> TritonFolders:
    found = triton_folders(tmp_path)
    found.root.mkdir()
    return found


def command_of(folders: TritonFolders, endpoints: Endpoints = ENDPOINTS, *, config_name: str = "", **settings: object) -> list[str]:
    given = TritonSettings(**settings)  # type: ignore[arg-type]
    return triton_command(INSTALLATION, given, folders=folders, endpoints=endpoints, config_name=config_name)


def flags(folders: TritonFolders, endpoints: Endpoints = ENDPOINTS, *, config_name: str = "", **settings: object) -> dict[str, str]:
    command = command_of(folders, endpoints, config_name=config_name, **settings)
    assert command[0] == "/t/tritonserver"
    return dict(each.removeprefix("--").replace("backend-config=python,", "").split("=", 1) for each in command[1:])  # type: ignore[misc]


def test_flags(folders: TritonFolders) -> None:
    assert flags(folders) == {
        "model-repository": str(folders.root / "repository"),
        "backend-directory": str(folders.root / "backends"),
        "model-control-mode": "explicit",
        "strict-readiness": "false",
        "exit-timeout-secs": "3",
        "log-format": "ISO8601",
        "http-address": "127.0.0.1",
        "grpc-address": "127.0.0.1",
        "metrics-address": "127.0.0.1",
        "http-port": "1",
        "grpc-port": "2",
        "http-thread-count": str(http_threads(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
        "metrics-port": "3",
        "shm-region-prefix-name": shm_prefix(folders.root),
        "stub-timeout-seconds": "300",
        "http-header-forward-pattern": "(?i)^tidegate-background$|^tidegate-time-left-ms$",
        "grpc-header-forward-pattern": "(?i)^tidegate-background$|^tidegate-time-left-ms$",
    }


@pytest.mark.parametrize(("open_files", "threads"), [(-1, 64), (1_000_000, 64), (1024, 32), (256, 8), (20, 8)])
def test_there_are_as_many_http_threads_as_descriptors_allow(open_files: int, threads: int) -> None:
    assert http_threads(open_files) == threads


def test_sockets_are_named_from_its_working_directory_so_that_no_state_folder_is_too_long(folders: TritonFolders) -> None:
    said = flags(folders, TritonSockets(f"{folders.sockets}/1.x"))
    assert {name: value for name, value in said.items() if name.endswith(("-address", "-port"))} == {
        "http-address": "unix:../sockets/1.x/http.sock",
        "grpc-address": "unix:../sockets/1.x/grpc.sock",
        "grpc-port": "1",
        "metrics-address": "unix:../sockets/1.x/metrics.sock",
    }
    assert str(TritonSockets("/s").grpc) == "unix:/s/grpc.sock:1", "as Triton then names it"


def test_each_life_has_a_folder_of_its_own_for_its_sockets_and_a_secret(folders: TritonFolders) -> None:
    one, other = make_sockets(folders), make_sockets(folders)
    assert one.folder != other.folder
    assert one.control_secret != other.control_secret
    assert {Path(each.folder).stat().st_mode & 0o777 for each in (one, other)} == {0o700}
    assert folders.sockets.stat().st_mode & 0o777 == 0o700


def test_sockets_of_processes_that_were_killed_are_removed_and_no_others(folders: TritonFolders) -> None:
    left = folders.sockets / "1.of-a-killed-one"
    left.mkdir(parents=True)
    (left / "http.sock").touch()
    own = make_sockets(folders)
    make_sockets(folders)
    assert not left.exists()
    assert Path(own.folder).exists()


def test_what_is_locked_opens_by_the_secret_at_both_frontends(folders: TritonFolders) -> None:
    endpoints = replace(ENDPOINTS, control_secret="s3cret")
    command = command_of(folders, endpoints)
    assert [flag for flag in command if "s3cret" in flag] == [
        "--http-restricted-api=model-repository:tidegate-control=s3cret",
        "--grpc-restricted-protocol=model-repository:tidegate-control=s3cret",
    ]
    assert "s3cret" not in repr(endpoints)


def test_ports_that_other_hosts_reach_lock_what_touches_this_machine(folders: TritonFolders) -> None:
    command = command_of(folders, replace(ENDPOINTS, host="10.0.0.5", control_secret="s3cret"))
    assert [flag for flag in command if "s3cret" in flag] == [
        "--http-restricted-api=model-repository,shared-memory,trace,logging:tidegate-control=s3cret",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:tidegate-control=s3cret",
    ]


def test_model_cpus_are_a_host_policy_with_a_numa_node_and_a_range(folders: TritonFolders) -> None:
    command = command_of(folders, model_cpus=(0, 1, 2))
    node, cores = (each for each in command if each.startswith("--host-policy="))
    assert re.fullmatch(r"--host-policy=cpu,numa-node=\d+", node)
    assert cores == "--host-policy=cpu,cpu-cores=0-2"
    alone = command_of(folders, model_cpus=(4095,))
    assert alone[-2:] == ["--host-policy=cpu,numa-node=0", "--host-policy=cpu,cpu-cores=4095-4095"]


def test_flags_of_the_operators_own_come_last_as_they_are(folders: TritonFolders) -> None:
    own = ["--rate-limit=execution_count", "--rate-limit-resource=R1:4:0", "--backend-config=python,shm-default-byte-size=4194304"]
    assert command_of(folders, triton_arg=own)[-3:] == own


def test_a_config_name_is_passed_on(folders: TritonFolders) -> None:
    assert flags(folders, config_name="gpu")["model-config-name"] == "gpu"


@pytest.mark.parametrize(("load_timeout_s", "stub_timeout"), [(0.2, "1"), (59.6, "60"), (3600.0, "3600")])
def test_stubs_may_take_as_long_as_a_load(folders: TritonFolders, load_timeout_s: float, stub_timeout: str) -> None:
    assert flags(folders, load_timeout_s=load_timeout_s)["stub-timeout-seconds"] == stub_timeout


def test_ports_are_free_distinct_and_on_loopback() -> None:
    chosen = choose_ports()
    ports = {chosen.http_port, chosen.grpc_port, chosen.metrics_port}
    assert len(ports) == 3
    for port in ports:
        assert port is not None
        with socket.socket() as probe:
            probe.bind((chosen.host, port))


def test_each_start_chooses_anew() -> None:
    assert len({choose_ports().http_port for _ in range(20)}) > 1
    assert len({choose_ports().control_secret for _ in range(20)}) == 20


def test_the_prefix_is_the_same_for_one_folder_and_starts_no_others(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "ab"
    one.mkdir()
    other.mkdir()
    assert shm_prefix(one) == shm_prefix(one)
    assert not shm_prefix(one).startswith(shm_prefix(other))
    assert shm_prefix(one).endswith("_")


def test_the_same_path_in_another_container_has_another_prefix(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    before = shm_prefix(folder)
    folder.rename(tmp_path / "kept")
    folder.mkdir()
    assert shm_prefix(folder) != before


@pytest.mark.parametrize("name", ["my state", "a'b", "a$(b)", "a;b", "a&b", "a\tb", "a(1)"])
def test_a_state_folder_that_would_break_the_stubs_shell_command_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(StartupError, match="Triton cannot run Python models under a path with"):
        triton_folders(tmp_path / name)


def test_a_relative_or_unusual_state_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert triton_folders(Path(".state/jürgen-1.0_x@y")).root == tmp_path / ".state/jürgen-1.0_x@y/triton"


def test_headers_that_the_gateway_sends_on_become_parameters_over_both_protocols(folders: TritonFolders) -> None:
    settings = TritonSettings()
    command = triton_command(
        INSTALLATION, settings, folders=folders, endpoints=ENDPOINTS, config_name="", header_forward_pattern="^x-(a|b)$"
    )
    own = "(?i)^tidegate-background$|^tidegate-time-left-ms$"
    assert {f"--{api}-header-forward-pattern={own}|^x-(a|b)$" for api in ("http", "grpc")} <= set(command)
    assert {f"--{api}-header-forward-pattern={own}" for api in ("http", "grpc")} <= set(command_of(folders))
