"""Settings that are URLs of Tritons and of the API server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from control_plane.core.endpoints import ListedServer, TritonEndpoints, TritonSockets, authority
from control_plane.core.errors import StartupError
from control_plane.settings import (
    FleetSettings,
    from_plain,
    load_settings,
    parse_triton_url,
    parse_triton_urls,
    to_plain,
)


@pytest.mark.parametrize(
    ("url", "endpoints"),
    [
        ("http://h:9000", TritonEndpoints("h", 9000, 9001, 9002)),
        ("http://h:9000/", TritonEndpoints("h", 9000, 9001, 9002)),
        ("http://h", TritonEndpoints("h", 8000, 8001, 8002)),
        ("http://H:1", TritonEndpoints("h", 1, 2, 3)),
        ("http://h:9000?grpc_port=7", TritonEndpoints("h", 9000, 7, 9002)),
        ("http://h:9000?metrics_port=8&grpc_port=7", TritonEndpoints("h", 9000, 7, 8)),
        ("http://h:9000?grpc_port=1&metrics_port=65535", TritonEndpoints("h", 9000, 1, 65535)),
        ("http://127.0.0.1:9000", TritonEndpoints("127.0.0.1", 9000, 9001, 9002)),
        ("https://h:9000", TritonEndpoints("h", 9000, 9001, 9002, http_is_tls=True, grpc_is_tls=True)),
        ("https://h:9000?grpc_scheme=grpc", TritonEndpoints("h", 9000, 9001, 9002, http_is_tls=True)),
        ("http://h:9000?grpc_scheme=grpcs", TritonEndpoints("h", 9000, 9001, 9002, grpc_is_tls=True)),
        ("http://[::1]:9000", TritonEndpoints("::1", 9000, 9001, 9002)),
    ],
)
def test_triton_url(url: str, endpoints: TritonEndpoints) -> None:
    assert parse_triton_url(url) == endpoints


@pytest.mark.parametrize(
    "url",
    [
        "",
        "h:9000",
        "localhost",
        "https://h:9000?grpc_scheme=https",
        "tls://h:9000",
        "grpc://h:9001",
        "http://",
        "http://:9000",
        "http://h:x",
        "http://h:70000",
        "http://h:9000/v2",
        "http://h:9000?port=1",
        "http://h:9000?grpc_port=x",
        "http://h:9000?grpc_port=70000",
        "http://h:9000?metrics_port=0",
        "http://h:9000?grpc_port=-1",
        "http://h:9000?grpc_port",
        "http://h:65535",
        "http://h:9000#x",
        "http://h:9000?pool=short",
        "http://[::1:9000",
    ],
)
def test_a_wrong_triton_url_is_refused_and_repeated(url: str) -> None:
    with pytest.raises(StartupError) as caught:
        parse_triton_url(url)
    assert f"--triton-url {url!r}" in str(caught.value)


def test_a_host_that_cannot_be_told_is_none() -> None:
    with pytest.raises(StartupError, match=r"expected http\[s\]://HOST"):
        parse_triton_url("http://h\udcff:1")


@pytest.mark.parametrize(("host", "written"), [("h", "h:1"), ("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1")])
def test_authority(host: str, written: str) -> None:
    assert authority(host, 1) == written


def test_triton_urls() -> None:
    assert parse_triton_urls("") == []
    assert parse_triton_urls("http://h:1") == [ListedServer("triton", TritonEndpoints("h", 1, 2, 3))]
    assert parse_triton_urls("http://h:1, http://h:11?grpc_port=5&pool=long ,") == [
        ListedServer("triton-0", TritonEndpoints("h", 1, 2, 3)),
        ListedServer("triton-1", TritonEndpoints("h", 11, 5, 13), pool="long"),
    ]


@pytest.mark.parametrize(
    ("urls", "said"),
    [
        ("http://h:1,http://h:1", "'http://h:1,http://h:1' names a Triton twice"),
        ("http://h:1,http://h:9?grpc_port=2", "names a Triton twice"),
        (
            "http://h:1,ftp://h",
            "'ftp://h': expected http[s]://HOST:HTTP_PORT[?grpc_port=N&grpc_scheme=grpc|grpcs&metrics_port=N&node=HOST:PORT&pool=NAME]",
        ),
        ("http://h:1?node=n", "node should be HOST:PORT of a `tidegate node`, such as 10.0.0.5:8500"),
        ("http://h:1?node=n:1/x", "node should be HOST:PORT"),
        ("http://h:1?pool=a/b", "pool=NAME"),
        ("http://h:1?pool=-", "pool=NAME"),
    ],
)
def test_wrong_triton_urls_are_refused(urls: str, said: str) -> None:
    with pytest.raises(StartupError, match=re.escape(said)):
        parse_triton_urls(urls)


@pytest.mark.parametrize("text", ["triton", "models/triton", "triton,triton-fallback", "models/triton,triton-fallback"])
def test_services_of_one_namespace_have_commas_between(text: str) -> None:
    assert FleetSettings.model_validate({"triton_service": text}).triton_service == text


@pytest.mark.parametrize("text", ["triton,", "triton, other", "a/triton,b/other", ",".join(["triton"] * 11)])
def test_services_of_two_namespaces_are_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        FleetSettings.model_validate({"triton_service": text})


@pytest.mark.parametrize(
    ("given", "variables", "address"),
    [
        pytest.param({"triton_service": "triton"}, {"HOST": "10.0.0.1", "PORT": "6443"}, "10.0.0.1:6443", id="of its pod"),
        pytest.param({"kubernetes_lease": "a"}, {"HOST": "10.0.0.1", "PORT": "1"}, "10.0.0.1:1", id="for a lease"),
        pytest.param({"model_resources": True}, {"HOST": "10.0.0.1", "PORT": "1"}, "10.0.0.1:1", id="for resources"),
        pytest.param({"triton_service": "triton"}, {"HOST": "fd00::1"}, "[fd00::1]:443", id="IPv6, without a port"),
        pytest.param({"triton_service": "triton", "kubernetes_api": "api:1"}, {"HOST": "10.0.0.1"}, "api:1", id="given"),
        pytest.param({"triton_service": "triton"}, {"HOST": "10.0.0.1", "PORT": "tcp://10.0.0.1:1"}, "", id="no port"),
        pytest.param({"triton_service": "triton"}, {}, "", id="no pod"),
        pytest.param({}, {"HOST": "10.0.0.1", "PORT": "6443"}, "", id="nobody asks it"),
    ],
)
def test_the_api_server_is_that_of_the_gateways_pod(
    given: dict[str, object], variables: dict[str, str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST", "PORT"):
        monkeypatch.delenv(f"KUBERNETES_SERVICE_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    settings = load_settings(given)
    assert settings.fleet.kubernetes_api == address
    # Workers and `config show` have what the parent has, wherever they run.
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert from_plain(to_plain(settings)).fleet.kubernetes_api == address


def test_an_api_server_that_is_no_address_is_refused() -> None:
    with pytest.raises(StartupError, match="kubernetes-api"):
        load_settings({"kubernetes_api": "https://10.0.0.1"})


@pytest.mark.parametrize(
    ("attach", "expected"),
    [
        pytest.param("http://127.0.0.1:9000", TritonEndpoints("127.0.0.1", 9000, 9001, 9002, control_secret="s" * 16), id="ports"),
        pytest.param(
            "http://[::1]:9000?grpc_port=7&metrics_port=8", TritonEndpoints("::1", 9000, 7, 8, control_secret="s" * 16), id="each port"
        ),
        pytest.param("unix:/run/triton/", TritonSockets("/run/triton", control_secret="s" * 16), id="sockets"),
    ],
)
def test_the_triton_that_a_node_attaches_to(tmp_path: Path, attach: str, expected: object) -> None:
    (secret := tmp_path / "secret").write_text("s" * 16 + "\n")
    assert load_settings({"attach": attach, "attach_secret_file": str(secret)}).node.attached == expected
    assert load_settings().node.attached is None


@pytest.mark.parametrize(
    "attach", ["unix:triton.sock", "https://127.0.0.1:8000", "http://h:1?grpc_scheme=grpcs", "http://h:1?node=h:2", "127.0.0.1:8000"]
)
def test_a_triton_that_is_not_beside_the_node_is_not_attached_to(attach: str) -> None:
    with pytest.raises(StartupError, match="--attach"):
        load_settings({"attach": attach}).node.attached  # noqa: B018 - the error is meant


@pytest.mark.parametrize("url", ["http://localhost:4318", "https://collector.internal/otlp/v1/traces", "http://[::1]:4318"])
def test_url_of_a_collector(url: str) -> None:
    assert load_settings({"otlp_endpoint": url}).gateway.otlp_endpoint == url


@pytest.mark.parametrize(
    "url",
    [
        "localhost:4318",
        "grpc://localhost:4317",
        "http://",
        "http://user:hush@h:4318",
        "http://hush@h",
        "http://h:hush",
        "http://h/v1/traces?key=hush",
        "http://h/#hush",
    ],
)
def test_a_collectors_url_has_no_secrets(url: str) -> None:
    with pytest.raises(StartupError, match=r"^--otlp-endpoint: expected such as http://localhost:4318") as caught:
        load_settings({"otlp_endpoint": url})
    assert "hush" not in str(caught.value)
