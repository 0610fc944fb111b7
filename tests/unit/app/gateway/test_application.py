from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from control_plane.app.gateway.application import App
from control_plane.core.errors import StartupError
from control_plane.settings import load_settings

FREE = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "admin_port": 0}


def refusal(tmp_path: Path, **given: Any) -> str:
    with pytest.raises(StartupError) as caught:
        App(load_settings({**FREE, "state_dir": tmp_path / "state", **given}))
    return str(caught.value)


def test_a_start_that_fails_leaves_no_socket_behind(tmp_path: Path) -> None:
    assert "expected http[s]://HOST" in refusal(tmp_path, triton_url="ftp://x", http_socket=tmp_path / "http.sock")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["--host", "--admin-host"])
def test_beyond_loopback_nothing_listens_without_authentication(tmp_path: Path, host: str) -> None:
    assert refusal(tmp_path, **{host[2:].replace("-", "_"): "0.0.0.0"}).startswith(f"{host} 0.0.0.0: listening beyond loopback")


def test_client_certificates_are_authentication_for_the_data_ports_only(tmp_path: Path) -> None:
    with_client_ca = {"tls_client_ca": tmp_path / "ca.pem", "tls_certificate": tmp_path / "none.pem", "tls_key": tmp_path / "none.key"}
    assert "--tls-certificate" in refusal(tmp_path, host="0.0.0.0", **with_client_ca), "past the first check, at the files"
    assert refusal(tmp_path, admin_host="0.0.0.0", **with_client_ca).startswith("--admin-host 0.0.0.0")


def test_a_triton_of_somebody_elses_is_not_ours_to_pin(tmp_path: Path) -> None:
    assert "--triton-cpus is for the embedded Triton" in refusal(tmp_path, triton_url="http://127.0.0.1:1", triton_cpus="0")
    assert "--model-cpus is for the embedded Triton" in refusal(tmp_path, triton_url="http://127.0.0.1:1", model_cpus="0")
    assert "--model-parameter is for the embedded Triton" in refusal(tmp_path, triton_url="http://127.0.0.1:1", model_parameter="a:k=v")


async def test_a_hangup_without_tls_ends_nothing_and_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # or a failure would end the tests
    caplog.set_level("INFO")
    app = App(load_settings({**FREE, "state_dir": tmp_path / "state", "triton_url": "http://127.0.0.1:1"}))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app.run(lambda endpoints, failures: None))
        await asyncio.sleep(0.1)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.1)
        assert "SIGHUP is ignored" in caplog.text
        os.kill(os.getpid(), signal.SIGTERM)
    signal.signal(signal.SIGHUP, before)
