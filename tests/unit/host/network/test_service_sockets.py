from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.network.listening import port_of
from control_plane.host.network.service_sockets import ServiceSockets
from control_plane.settings import Settings, load_settings

FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "admin_port": 0}


def settings(**given: Any) -> Settings:
    return load_settings({**FREE, **given})


def test_endpoints_name_what_was_chosen(tmp_path: Path) -> None:
    sockets = ServiceSockets(settings(http_socket=tmp_path / "http.sock", grpc_socket=tmp_path / "grpc.sock"))
    endpoints = sockets.endpoints()
    assert endpoints == {
        "http": f"http://127.0.0.1:{port_of(sockets.http)}",
        "grpc": f"127.0.0.1:{port_of(sockets.grpc)}",
        "metrics": f"http://127.0.0.1:{port_of(sockets.metrics)}/metrics",
        "admin": f"http://127.0.0.1:{port_of(sockets.admin)}",
        "http_socket": f"unix:{tmp_path}/http.sock",
        "grpc_socket": f"unix:{tmp_path}/grpc.sock",
    }
    sockets.close()


def test_with_tls_the_ports_say_so_and_commands_have_a_socket_of_their_own(tmp_path: Path) -> None:
    sockets = ServiceSockets(settings(tls_certificate=tmp_path / "x", state_dir=tmp_path))
    sockets.bind_in_state_dir()
    endpoints = sockets.endpoints()
    assert endpoints.pop("admin_socket") == f"unix:{tmp_path}/admin.sock"
    schemes = {name: re.match(r"\w+://|", url)[0] for name, url in endpoints.items()}  # type: ignore[index]
    assert schemes == {"http": "https://", "grpc": "", "metrics": "https://", "admin": "https://"}
    sockets.close()
    assert not (tmp_path / "admin.sock").exists()


def test_with_tls_on_the_admin_port_alone_only_that_one_says_so(tmp_path: Path) -> None:
    sockets = ServiceSockets(settings(admin_tls_cert=tmp_path / "x", state_dir=tmp_path))
    sockets.bind_in_state_dir()
    endpoints = sockets.endpoints()
    assert endpoints["admin_socket"] == f"unix:{tmp_path}/admin.sock"
    assert (endpoints["http"][:7], endpoints["admin"][:8]) == ("http://", "https://")
    sockets.close()


def test_without_tls_or_where_its_path_is_too_long_there_is_no_such_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = tmp_path / ("x" * 120)
    deep.mkdir()
    for made in (settings(state_dir=tmp_path), settings(tls_certificate=tmp_path / "x", state_dir=deep)):
        sockets = ServiceSockets(made)
        sockets.bind_in_state_dir()
        assert "admin_socket" not in sockets.endpoints()
        sockets.close()
    assert caplog.text.count("need `--admin-url https://...`") == 1


def test_the_settings_in_force_have_the_ports_that_were_chosen() -> None:
    sockets = ServiceSockets(settings())
    gateway = sockets.settings_in_force().gateway
    ports = [port_of(each) for each in (sockets.http, sockets.grpc, sockets.metrics)]
    assert [gateway.http_port, gateway.grpc_port, gateway.metrics_port] == ports
    assert 0 not in ports
    sockets.close()


def test_closing_removes_what_is_in_the_file_system(tmp_path: Path) -> None:
    ServiceSockets(settings(http_socket=tmp_path / "http.sock")).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--http-port", "--grpc-port", "--metrics-port", "--admin-port"])
def test_a_taken_port_is_named_by_its_flag(flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(StartupError, match=f"is taken.*{flag}"):
        ServiceSockets(settings(**{flag[2:].replace("-", "_"): port_of(taken)}))


def test_after_a_failure_nothing_stays_behind(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = port_of(free)
    (tmp_path / "grpc.sock").write_text("in the way")
    with pytest.raises(StartupError, match="--grpc-socket"):
        ServiceSockets(settings(http_port=port, http_socket=tmp_path / "http.sock", grpc_socket=tmp_path / "grpc.sock"))
    assert [path.name for path in tmp_path.iterdir()] == ["grpc.sock"]
    socket.create_server(("127.0.0.1", port)).close()
