from __future__ import annotations

import json
import re
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane import settings as module
from control_plane.core.endpoints import ListedServer, TritonEndpoints, TritonSockets, authority
from control_plane.core.errors import StartupError
from control_plane.settings import (
    Settings,
    effective,
    from_plain,
    load_settings,
    parse_triton_url,
    parse_triton_urls,
    to_plain,
    without_user,
)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own TIDEGATE_ variables, so that they cannot decide a test."""
    for name in list(module.os.environ):
        if name.upper().startswith("TIDEGATE_"):
            monkeypatch.delenv(name)


def value_of(name: str, settings: Settings) -> object:
    return effective(settings)[name]


def test_defaults_are_tritons_own_ports_on_loopback() -> None:
    settings = load_settings()
    gateway = settings.gateway
    assert (gateway.host, gateway.http_port, gateway.grpc_port, gateway.metrics_port) == ("127.0.0.1", 8000, 8001, 8002)
    assert (settings.admin.admin_host, settings.admin.admin_port) == ("127.0.0.1", 8080)
    assert settings.triton.load is None
    assert settings.triton.triton_url == ""


def test_a_variable_overrides_the_default_and_a_flag_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "9000")
    assert load_settings().gateway.http_port == 9000
    assert load_settings({"http_port": None}).gateway.http_port == 9000
    assert load_settings({"http_port": 0}).gateway.http_port == 0
    assert load_settings({"http_port": 0}).gateway.grpc_port == 8001


def test_an_empty_variable_counts_as_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "")
    assert load_settings().gateway.http_port == 8000


@pytest.mark.parametrize(
    ("variable", "value", "name", "expected"),
    [
        ("TIDEGATE_LOAD", "a, b,,c ", "load", ["a", "b", "c"]),
        ("TIDEGATE_LOAD", "*", "load", ["*"]),
        ("TIDEGATE_MODEL_REPOSITORY", "/a,/b c", "model_repository", [Path("/a"), Path("/b c")]),
        ("TIDEGATE_STATE_DIR", "/x", "state_dir", Path("/x")),
        ("TIDEGATE_LOG_FORMAT", "json", "log_format", "json"),
        ("TIDEGATE_DRAIN_TIMEOUT_S", "0", "drain_timeout_s", 0.0),
        ("TIDEGATE_REQUEST_TIMEOUT_S", "0.5", "request_timeout_s", 0.5),
        ("TIDEGATE_IDLE_TIMEOUT_S", "0", "idle_timeout_s", 0.0),
        ("TIDEGATE_ALLOW_SHARED_MEMORY", "true", "allow_shared_memory", True),
        ("TIDEGATE_HTTP_SOCKET", "/x/http.sock", "http_socket", Path("/x/http.sock")),
        ("TIDEGATE_GATEWAY_CPUS", "0,2-3", "gateway_cpus", (0, 2, 3)),
        ("TIDEGATE_TRUSTED_PROXIES", "10.0.0.0/8, ::1", "trusted_proxies", [ip_network("10.0.0.0/8"), ip_network("::1/128")]),
        ("TIDEGATE_AUTHENTICATION", "true", "authentication", True),
        ("TIDEGATE_TRITON_CPUS", "", "triton_cpus", ()),
        ("TIDEGATE_MODEL_CPUS", "1-2", "model_cpus", (1, 2)),
        ("TIDEGATE_USAGE_SUMS", "1000", "usage_sums", 1000),
        ("TIDEGATE_REQUEST_LOG", "/x/requests.jsonl", "request_log", Path("/x/requests.jsonl")),
        ("TIDEGATE_MODEL_PARAMETER", "a.b:k=v, a.b:l.m=x=y,c:k=", "model_parameter", {"a.b": {"k": "v", "l.m": "x=y"}, "c": {"k": ""}}),
    ],
)
def test_variables_are_read_as(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str, expected: object) -> None:
    monkeypatch.setenv(variable, value)
    assert value_of(name, load_settings()) == expected


def test_a_drain_is_as_long_as_the_longest_deadline_unless_it_is_set() -> None:
    assert load_settings({"request_timeout_s": 90}).gateway.longest_drain_s == 90
    assert load_settings({"request_timeout_s": 90, "drain_timeout_s": 0}).gateway.longest_drain_s == 0


@pytest.mark.parametrize("name", ["TIDEGATE_HTPP_PORT", "TIDEGATE_", "TIDEGATE_GATEWAY__HOST", "tidegate_htpp_port"])
def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(StartupError, match=f"unknown setting {name};"):
        load_settings()


def test_all_unknown_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_B", "1")
    monkeypatch.setenv("TIDEGATE_A", "1")
    with pytest.raises(StartupError, match="TIDEGATE_A, TIDEGATE_B"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("http_port", "eighty"),
        ("http_port", "-1"),
        ("admin_port", "65536"),
        ("max_body_bytes", "10"),
        ("max_connections", "0"),
        ("max_inflate_ratio", "0"),
        ("max_json_bytes", "10"),
        ("max_elements", "0"),
        ("max_message_fields", "1"),
        ("header_forward_pattern", "\u00fc"),
        ("request_timeout_s", "0"),
        ("request_timeout_s", "nan"),
        ("request_timeout_s", "inf"),
        ("load_timeout_s", "inf"),
        ("start_timeout_s", "-1"),
        ("drain_timeout_s", "inf"),
        ("drain_timeout_s", "-0.1"),
        ("drain_pause_s", "-1"),
        ("log_format", "xml"),
        ("workers", "0"),
        ("usage_sums", "999"),
        ("cache_bytes", "100000000000000000000000"),
        ("gateway_cpus", "one"),
        ("trusted_proxies", "10.0.0.1/8"),
        ("trusted_proxies", "proxy.example"),
        ("authentication", "maybe"),
        ("triton_cpus", "3-1"),
        ("model_parameter", "variant=fp32"),
        ("model_parameter", "text_encoder:variant"),
        ("servers", "0"),
        ("servers", "65"),
        ("servers", "two"),
        ("memory_budget", "lots"),
        ("memory_budget", "-1"),
        ("memory_budget", "0"),
        ("memory_budget", "2 gallons"),
        ("memory_budget", "2Gi"),
        ("warm_bytes", "0"),
        ("fleet_name", "a b"),
        ("fleet_name", "x" * 65),
        ("load_wait_s", "0"),
        ("load_wait_s", "inf"),
        ("triton_transport", "udp"),
        ("triton_env", "A=b"),
        ("triton_env", "TIDEGATE_STATE_URL"),
    ],
)
def test_a_bad_value_is_refused_by_what_gave_it(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    variable = f"TIDEGATE_{name.upper()}"
    flag = "--" + name.replace("_", "-")
    monkeypatch.setenv(variable, value)
    with pytest.raises(StartupError, match=rf"^{variable}: .*{value}"):
        load_settings()
    monkeypatch.delenv(variable)
    with pytest.raises(StartupError, match=rf"^{flag}: .*{value}"):
        load_settings({name: value})


def test_bad_values_of_one_group_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "x")
    monkeypatch.setenv("TIDEGATE_GRPC_PORT", "y")
    with pytest.raises(StartupError, match=r"TIDEGATE_HTTP_PORT.*; TIDEGATE_GRPC_PORT"):
        load_settings()


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().gateway.http_port = 1


def test_effective_lists_every_setting_once() -> None:
    settings = load_settings()
    groups = [getattr(settings, each.name) for each in fields(settings)]
    assert len(effective(settings)) == sum(len(type(group).model_fields) for group in groups)
    assert not any(isinstance(value, SecretStr) for value in effective(settings).values())


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


def test_nobody_is_shown_a_password_in_a_triton_url() -> None:
    url = "http://user:secret@h:9000"
    for read in (parse_triton_url, parse_triton_urls):
        with pytest.raises(StartupError, match=re.escape("--triton-url 'http://...@h:9000': expected")) as caught:
            read(url)
        assert "secret" not in str(caught.value)
    assert value_of("triton_url", load_settings({"triton_url": url})) == "http://...@h:9000"


@pytest.mark.parametrize(
    "password", ["s3,cret", "s3'cret", 's3"cret', "s3/cret", "s3//cret", "s3@cret", "s3?cret", "s3 cret", "\u2100cret"]
)
@pytest.mark.parametrize("before", ["", "http://h:1,"])
def test_whatever_it_is_made_of(password: str, before: str) -> None:
    urls = f"{before}http://user:{password}@h:9000"
    with pytest.raises(StartupError) as caught:
        parse_triton_urls(urls)
    assert "cret" not in str(caught.value)
    assert "s3" not in str(caught.value)
    assert without_user(urls) == f"{before}http://...@h:9000"


def test_who_has_none_is_shown_whole() -> None:
    for text in ("http://h:1,http://h:11", "me@work", "//" * 100_000):
        assert without_user(text) == text


def test_a_host_that_cannot_be_told_is_none() -> None:
    with pytest.raises(StartupError, match=r"expected http\[s\]://HOST"):
        parse_triton_url("http://h\udcff:1")


@pytest.mark.parametrize(("host", "written"), [("h", "h:1"), ("127.0.0.1", "127.0.0.1:1"), ("::1", "[::1]:1")])
def test_authority(host: str, written: str) -> None:
    assert authority(host, 1) == written


def test_a_state_url_is_masked_where_it_is_shown_and_whole_for_another_process() -> None:
    settings = load_settings({"state_url": "redis://:s3cret@h/0"})
    assert settings.state.state_url == SecretStr("redis://:s3cret@h/0")
    assert value_of("state_url", settings) == "********"
    assert "s3cret" not in f"{settings} {settings!r}"
    assert from_plain(json.loads(json.dumps(to_plain(settings)))) == settings
    assert load_settings().state.state_url is None


def test_another_process_gets_the_same_settings_whatever_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "gateway_cpus": "0-2",
        "load": ["a"],
        "http_socket": Path("/x"),
        "workers": 3,
        "triton_url": "http://h:1",
        "servers_file": Path("/servers.yaml"),
        "pools": "short,long",
        "fleet_name": "mine",
        "trusted_proxies": "10.0.0.0/8,::1",
    }
    settings = load_settings(given)
    plain = json.loads(json.dumps(to_plain(settings)))
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "1")
    monkeypatch.setenv("TIDEGATE_WORKERS", "9")
    assert from_plain(plain) == settings


def test_the_commands_key_is_masked_where_it_is_shown_and_no_other_process_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_API_KEY", "tg_s3cret")
    settings = load_settings()
    assert settings.admin.api_key == SecretStr("tg_s3cret")
    assert value_of("api_key", settings) == "********"
    assert "s3cret" not in f"{settings} {settings!r} {to_plain(settings)}"


@pytest.mark.parametrize(
    ("given", "is_on"),
    [
        ({}, False),
        ({"servers": 2}, True),
        ({"memory_budget": "2GiB"}, True),
        ({"servers_file": Path("servers.yaml")}, True),
        ({"load_wait_s": 5.0}, False),
    ],
)
def test_what_makes_a_fleet(given: dict[str, object], is_on: bool) -> None:
    assert load_settings(given).fleet.is_on is is_on


@pytest.mark.parametrize(("text", "count"), [("2GiB", 2**31), ("1500MB", 1_500_000_000), ("1048576", 2**20)])
def test_a_budget_is_read_as_bytes_and_another_process_has_the_same(text: str, count: int) -> None:
    settings = load_settings({"memory_budget": text})
    assert settings.fleet.memory_budget == count
    assert from_plain(json.loads(json.dumps(to_plain(settings)))).fleet.memory_budget == count


@pytest.mark.parametrize(
    ("name", "value"), [("memory_budget", "2Gi"), ("memory_budget", "lots"), ("warm_bytes", "64 gigs"), ("memory_budget", "2EiB")]
)
def test_who_miswrites_a_number_of_bytes_is_told_how_it_is_written(name: str, value: str) -> None:
    with pytest.raises(StartupError, match=rf"--{name.replace('_', '-')}: .*, such as 2GiB or 500MB, got '{value}'"):
        load_settings({name: value})


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:s3cret@bucket/models",
        "s3://key:s3cr/s3cret@bucket/models",
        "s3://key@bucket/s3cret",
        "s3://bucket/models?secret=s3cret",
        "http://user:s3cret@host:80/models",
        "filecache::s3://s3cret/models",
        "s3://key:s3cret",
    ],
)
def test_credentials_have_no_place_in_a_stores_url_and_nobody_is_shown_them(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    with pytest.raises(StartupError, match=r"^--model-store: leave credentials .* such as s3://BUCKET/PREFIX$") as told:
        load_settings({"model_store": ["/models", url]})
    assert "s3cret" not in str(told.value)
    monkeypatch.setenv("TIDEGATE_MODEL_STORE", f"/models,{url}")
    with pytest.raises(StartupError, match=r"^TIDEGATE_MODEL_STORE: leave credentials") as told:
        load_settings()
    assert "s3cret" not in str(told.value)


@pytest.mark.parametrize(
    "url", ["/models", "models", "s3://bucket", "s3://bucket/team@corp/models", "http://host:8080/models", "memory://x"]
)
def test_a_store_without_credentials_is_taken_as_it_is(url: str) -> None:
    assert load_settings({"model_store": [url]}).triton.model_store == [url]


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


@pytest.mark.parametrize("pattern", ["(", "x{2,1}", "x(?!y)", "x(?=y)", r"(x)\1", "(?i)x"])
def test_a_pattern_that_triton_would_not_start_with_is_refused(pattern: str) -> None:
    with pytest.raises(StartupError, match=r"expected .*such as \^x-\(tenant"):
        load_settings({"header_forward_pattern": pattern})
    assert load_settings({"header_forward_pattern": "^x-(a|b)$"}).gateway.header_forward_pattern == "^x-(a|b)$"


@pytest.mark.parametrize("name", ["state_url", "cache_url", "jobs_url"])
def test_a_secret_may_come_from_a_file(name: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" redis://:password@h/0 \nanother line\n")
    settings = load_settings({f"{name}_file": file})
    read = {**vars(settings.state), **vars(settings.cache), **vars(settings.jobs)}[name]
    assert read.get_secret_value() == "redis://:password@h/0"
    assert "password" not in repr(settings)
    assert from_plain(to_plain(settings)) == settings, "a worker has it too"
    by_value = load_settings({f"{name}_file": file, name: "redis://other"})
    assert {**vars(by_value.state), **vars(by_value.cache), **vars(by_value.jobs)}[name].get_secret_value() == "redis://other"


@pytest.mark.parametrize("content", [None, b"", b"\nredis://second-line\n", b"\xff"], ids=["no file", "empty", "a blank line", "no UTF-8"])
def test_a_file_without_a_secret_is_refused(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartupError, match=r"--state-url-file: (cannot be read: No such file|has no text|is not UTF-8).*, got '.*secret'"):
        load_settings({"state_url_file": str(file)})


def test_the_api_key_may_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("tg_key\n")
    monkeypatch.setenv("TIDEGATE_API_KEY_FILE", str(tmp_path / "key"))
    key = load_settings().admin.api_key
    assert key is not None
    assert key.get_secret_value() == "tg_key"


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
