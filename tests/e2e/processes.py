"""Processes of a running gateway, found by what they run, and addresses of its Triton."""

from __future__ import annotations

from tests.e2e import tidegate as servers
from tests.e2e.tidegate import (
    Tidegate,
    command_line,
    descendants,
    living,
    proc_files,
)


def triton_of(fleet: Tidegate, server: str) -> int:
    """Its process, by the state folder that it was started with."""
    host = host_of(fleet, server)
    for pid in servers.descendants(host.process.pid):
        if is_triton_of(fleet, server, pid):
            return pid
    raise AssertionError(f"no Triton of {server} is running")


def is_triton_of(fleet: Tidegate, server: str, pid: int) -> bool:
    folder = f"{host_of(fleet, server).state_dir}/" if fleet.nodes else f"/servers/{server}/"
    line = command_line(pid).decode().split("\0")
    return line[0].endswith("tritonserver") and any(folder in each for each in line)


def host_of(fleet: Tidegate, server: str) -> Tidegate:
    """Its node where it has one, else the gateway."""
    return fleet.nodes[int(server.rpartition("-")[2])] if fleet.nodes else fleet


def workers_of(tidegate: Tidegate) -> list[int]:
    return [pid for pid in living(descendants(tidegate.process.pid)) if b"control_plane.app.worker" in command_line(pid)]


def processes(tidegate: Tidegate, program: bytes) -> list[int]:
    return [pid for pid in living(descendants(tidegate.process.pid)) if program in command_line(pid).partition(b"\0")[0]]


def tritons_of(tidegate: Tidegate) -> list[int]:
    return processes(tidegate, b"bin/tritonserver") + processes(tidegate, b"triton_python_backend_stub")


def triton_pid(tidegate: Tidegate) -> int:
    names = proc_files(living(descendants(tidegate.process.pid)), "comm")
    return next(pid for pid, name in names.items() if name == "tritonserver")


def stubs_of(running: Tidegate, model: str) -> list[int]:
    """By their command lines, among the processes that this gateway or its nodes have started."""
    lines = {pid: line.split("\0") for pid, line in proc_files(running.below(), "cmdline").items()}
    return [pid for pid, line in lines.items() if "python_backend_stub" in line[0] and f"/{model}/" in line[1]]


def triton_url(tidegate: Tidegate) -> str:
    ports = [tidegate.triton_port(name) for name in ("HTTPService", "GRPCInferenceService", "Metrics Service")]
    return "http://127.0.0.1:{}?grpc_port={}&metrics_port={}".format(*ports)
