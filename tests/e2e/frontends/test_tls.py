"""TLS on both frontends, with unmodified clients; certificates change under way, and clients show their own where asked to."""

from __future__ import annotations

import signal
import socket
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from geventhttpclient.response import HTTPConnectionClosed
from tritonclient.utils import InferenceServerException

from tests.e2e.accounts import make_first_key
from tests.e2e.conftest import MODELS, Start
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, refused_start, run_cli, wait_for
from tests.tls_files import Authority, Identity, needs_openssl, subject_of

pytestmark = needs_openssl

ECHO_ONLY = ("--model-repository", str(MODELS), COMPLETE, "--load", "echo")
VALUES = np.array([[1, 2]], dtype=np.float32)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)


def flags(server: Identity) -> tuple[str, ...]:
    return ("--tls-certificate", str(server.certificate), "--tls-key", str(server.key))


def over_http(tidegate: Tidegate, authority: Authority, shows: Identity | None = None) -> np.ndarray:
    client = tritonclient.http.InferenceServerClient(
        f"localhost:{tidegate.port('http')}", ssl=True, ssl_context_factory=lambda: authority.client(shows)
    )
    tensor = tritonclient.http.InferInput("INPUT0", VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    with client:
        return client.infer("echo", [tensor]).as_numpy("OUTPUT0")


def over_grpc(tidegate: Tidegate, authority: Authority, shows: Identity | None = None) -> np.ndarray:
    client = tritonclient.grpc.InferenceServerClient(
        f"localhost:{tidegate.port('grpc')}",
        ssl=True,
        root_certificates=str(authority.certificate),
        private_key=str(shows.key) if shows else None,
        certificate_chain=str(shows.certificate) if shows else None,
    )
    tensor = tritonclient.grpc.InferInput("INPUT0", VALUES.shape, "FP32")
    tensor.set_data_from_numpy(VALUES)
    with client:
        return client.infer("echo", [tensor], client_timeout=LONG_S).as_numpy("OUTPUT0")


def shown_by(tidegate: Tidegate, frontend: str, authority: Authority, shows: Identity | None = None) -> str:
    client = authority.client(shows)
    with (
        socket.create_connection(("127.0.0.1", tidegate.port(frontend)), timeout=LONG_S) as plain,
        client.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        return subject_of(connection)


def assert_changes(running: Tidegate, authority: Authority, server: Identity, shows: Identity | None = None) -> None:
    """To a new certificate under way; a connection that was there goes on, and one that cannot be used changes nothing."""
    with (
        socket.create_connection(("127.0.0.1", running.port("http")), timeout=LONG_S) as plain,
        authority.client(shows).wrap_socket(plain, server_hostname="localhost") as held,
    ):
        authority.issue("after", into=server)
        running.process.send_signal(signal.SIGHUP)
        for frontend in ("http", "grpc", "admin"):
            wait_for(
                lambda frontend=frontend: [shown_by(running, frontend, authority, shows) for _ in range(4)] == ["after"] * 4,
                what="the new one",
            )
        held.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held.recv(100).startswith(b"HTTP/1.1 200"), "a connection that was there goes on"

    server.key.write_text("broken")
    running.process.send_signal(signal.SIGHUP)
    wait_for(lambda: "the old ones stay in force" in running.said(), what="a word about the broken key")
    assert shown_by(running, "http", authority, shows) == "after"
    np.testing.assert_array_equal(over_grpc(running, authority, shows), VALUES)


def test_both_frontends_of_workers_and_a_certificate_that_changes(start: Start, tmp_path: Path, authority: Authority) -> None:
    server = authority.issue("before")
    running = start(tmp_path / "state", *ECHO_ONLY, *flags(server), "--workers", "2")
    np.testing.assert_array_equal(over_http(running, authority), VALUES)
    np.testing.assert_array_equal(over_grpc(running, authority), VALUES)
    with urllib.request.urlopen(running.endpoints["metrics"], timeout=LONG_S, context=authority.client()) as page:
        assert b"tidegate_requests_total" in page.read()
    with urllib.request.urlopen(running.endpoints["admin"] + "/version", timeout=LONG_S, context=authority.client()) as answer:
        assert b"version" in answer.read()
    by_url = ("models", "list", "--admin-url", running.endpoints["admin"])
    assert run_cli(*by_url, env={"SSL_CERT_FILE": str(authority.certificate)}).returncode == 0
    assert "certificate verify failed" in run_cli(*by_url).stderr.replace("\n", " ")
    assert_changes(running, authority, server)
    assert running.stop() == 0, running.said()


def test_only_clients_that_show_a_known_certificate(start: Start, tmp_path: Path, authority: Authority) -> None:
    known, stranger = authority.issue("known"), Authority(authority.certificate.parent, "stranger").issue("unknown")
    server, client_ca = authority.issue("server"), ("--tls-client-ca", str(authority.certificate))
    running = start(tmp_path / "state", *ECHO_ONLY, *flags(server), *client_ca)
    np.testing.assert_array_equal(over_http(running, authority, known), VALUES)
    np.testing.assert_array_equal(over_grpc(running, authority, known), VALUES)
    for shows in (None, stranger):
        with pytest.raises((OSError, HTTPConnectionClosed)):
            over_http(running, authority, shows)
        with pytest.raises(InferenceServerException):
            over_grpc(running, authority, shows)
        with pytest.raises((OSError, HTTPException)):
            urllib.request.urlopen(running.endpoints["metrics"], timeout=LONG_S, context=authority.client(shows))
    with pytest.raises((OSError, HTTPException)):  # plain text is no way round it
        urllib.request.urlopen(f"http://127.0.0.1:{running.port('http')}/v2/health/live", timeout=LONG_S)
    listed = run_cli("models", "list", "--state-dir", str(running.state_dir))
    assert "echo" in listed.stdout, "commands on this machine need no certificate"
    assert_changes(running, authority, server, known)
    assert running.stop() == 0, running.said()


def test_a_triton_behind_tls_that_demands_a_certificate_and_a_key(start: Start, tmp_path: Path, authority: Authority) -> None:
    """Another gateway stands before it: it demands more than a proxy would, in both protocols."""
    known, ca = authority.issue("known"), ("--tls-client-ca", str(authority.certificate))
    header = tmp_path / "header"
    header.write_text(f"Authorization: Bearer {make_first_key(tmp_path / 'front')}\n")
    front = start(tmp_path / "front", *ECHO_ONLY, *flags(authority.issue("server")), *ca, "--authentication")
    ports = f"grpc_port={front.port('grpc')}&metrics_port={front.port_of_metrics()}"
    url = f"https://localhost:{front.port('http')}?{ports}"
    trusts = ("--triton-url", url, "--triton-ca", str(authority.certificate), "--triton-header-file", str(header))
    shows = ("--triton-certificate", str(known.certificate), "--triton-key", str(known.key))
    running = start(tmp_path / "state", *trusts, *shows)
    for ask in (inferred_over_http, inferred_over_grpc):
        np.testing.assert_array_equal(ask(running), VALUES)
    listed = run_cli("models", "list", "--state-dir", str(running.state_dir))
    assert "READY" in listed.stdout, "the control channel is behind TLS too"
    with urllib.request.urlopen(running.endpoints["metrics"], timeout=LONG_S) as page:
        assert b"nv_inference_count" in page.read(), "and so is its metrics page"
    assert running.stop() == 0, running.said()
    # One that shows no certificate is refused, and so are files that cannot be used.
    for wrong, said in (
        (trusts, "no live Triton answered"),
        ((*trusts, *shows[:2]), "given together"),
        ((*trusts, *shows, "--triton-ca", str(tmp_path / "none")), "No such file"),
    ):
        refused = refused_start("--state-dir", str(tmp_path / "other"), *wrong, env={"TIDEGATE_START_TIMEOUT_S": "2"})
        assert said in refused.stderr.replace("\n", " "), refused.stderr
    assert header.read_text().split()[-1] not in running.said() + refused.stderr


def inferred_over_http(tidegate: Tidegate) -> np.ndarray:
    with tritonclient.http.InferenceServerClient(tidegate.address("http")) as client:
        return client.infer("echo", [_input(tritonclient.http.InferInput)]).as_numpy("OUTPUT0")


def inferred_over_grpc(tidegate: Tidegate) -> np.ndarray:
    with tritonclient.grpc.InferenceServerClient(tidegate.address("grpc")) as client:
        return client.infer("echo", [_input(tritonclient.grpc.InferInput)]).as_numpy("OUTPUT0")


def _input(make: Callable[[str, list[int], str], Any]) -> Any:
    tensor = make("INPUT0", list(VALUES.shape), "FP32")
    tensor.set_data_from_numpy(VALUES)
    return tensor
