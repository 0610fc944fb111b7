from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.cli import main
from tests.tls_files import Authority, needs_openssl


@pytest.fixture(autouse=True)
def logs() -> Iterator[None]:
    """Restore what the command sets for its whole process."""
    ours = logging.getLogger("control_plane")
    handlers, levels = logging.root.handlers[:], (logging.root.level, ours.level)
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_password_in_the_url_of_a_triton_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, log_format: str
) -> None:
    url = "http://admin:hun,ter2@127.0.0.1:1"
    ports = [f"--{port}-port=0" for port in ("http", "grpc", "metrics", "admin")]  # the usual ones may be in use
    given = ["--triton-url", url, "--state-dir", str(tmp_path), "--log-format", log_format, *ports]
    monkeypatch.setattr(sys, "argv", ["tidegate", "serve", *given])
    with pytest.raises(SystemExit):
        main()
    told = "".join(capsys.readouterr())
    assert "attaching to the Triton at http://...@127.0.0.1:1 ..." in told
    assert "--triton-url 'http://...@127.0.0.1:1': expected http[s]://HOST" in " ".join(told.split())
    assert not any(part in told for part in ("admin", "hun", "ter2"))


@pytest.mark.parametrize(
    ("command", "unwanted"),
    [
        pytest.param("serve", ("control_plane.cli.admin", "control_plane.cli.planning", "fastapi", "httpx", "redis"), id="serve"),
        pytest.param("keys", ("control_plane.cli.serve", "control_plane.cli.planning", "fastapi", "redis"), id="keys"),
    ],
)
def test_a_command_begins_without_what_only_others_need(command: str, unwanted: tuple[str, ...]) -> None:
    """Importing all of it took half of a command's time on a slow machine."""
    program = f"""
import sys, contextlib, io
from control_plane.cli import main
sys.argv = ["tidegate", "{command}", "--help"]
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main()
print(*({{*{unwanted}, "control_plane.app.gateway.application"}} & set(sys.modules)))"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "\n"


def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state_dir: Path, *arguments: str) -> str:
    """Return what a start that fails prints on standard error, as one line."""
    ports = {f"--{frontend}-port": "0" for frontend in ("http", "grpc", "metrics", "admin")}
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    words = [word for pair in {"--state-dir": str(state_dir), **ports, **given}.items() for word in pair]
    monkeypatch.setattr(sys, "argv", ["tidegate", "serve", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return " ".join(said.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        pytest.param(["--host", "0.0.0.0"], "without authentication is refused", id="beyond loopback"),
        pytest.param(["--admin-host", "0.0.0.0"], "without authentication is refused", id="admin beyond loopback"),
        pytest.param(["--model-repository", "/no/such/folder"], "/no/such/folder", id="no such repository"),
        pytest.param(["--triton-url", "ftp://x"], "expected http[s]://HOST", id="bad URL"),
        pytest.param(["--http-port", "99999"], "--http-port", id="no such port"),
        pytest.param(["--gateway-cpus", "4095"], "--gateway-cpus: CPU 4095 cannot be used here", id="no such CPU"),
        pytest.param(["--triton-cpus", "x"], "--triton-cpus", id="no CPU at all"),
        pytest.param(["--model-cpus", "4095"], "--model-cpus: CPU 4095 cannot be used here", id="no such CPU for models"),
        pytest.param(["--workers", "0"], "--workers", id="no workers"),
        pytest.param(["--tls-certificate", "one.pem"], "--tls-key is missing", id="no key"),
        pytest.param(["--tls-client-ca", "ca.pem"], "--tls-certificate, which turns TLS on, is not given", id="no certificate"),
    ],
)
def test_a_start_that_cannot_work_says_why_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    assert says in refusal(monkeypatch, capsys, tmp_path, *arguments)


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("frontend", ["http", "grpc", "metrics", "admin"])
def test_a_taken_port_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, frontend: str, workers: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal(monkeypatch, capsys, tmp_path, f"--{frontend}-port", str(port), "--workers", workers)
    assert f"port {port} on 127.0.0.1 is taken" in said
    assert f"--{frontend}-port" in said


@needs_openssl
def test_certificates_that_cannot_be_used_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    one, other = (authority.issue(name) for name in ("one", "other"))
    swapped = ("--tls-certificate", str(one.certificate), "--tls-key", str(other.key))
    assert "the key is not the certificate's" in refusal(monkeypatch, capsys, tmp_path / "state", *swapped)
    own = ("--tls-certificate", str(one.certificate), "--tls-key", str(one.key))
    assert "without authentication is refused" in refusal(monkeypatch, capsys, tmp_path / "state", "--host", "0.0.0.0", *own)


def test_help_is_grouped_by_subject_and_whole_in_80_columns() -> None:
    environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    command = [sys.executable, "-m", "control_plane", "serve", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True, env=environment).stdout
    panels = re.findall(r"(?m)^╭─ ([A-Za-z ]+) ─", shown)
    ours = ("Ports", "Models", "State and logs", "Triton", "Nodes", "Fleet", "Regions", "Access", "Response cache", "Stop", "CPUs")
    assert panels == ["Options", *ours]
    assert re.findall(r"--[a-z-]+", shown.partition("╭─ Ports")[0]) == ["--help"]
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= 80
