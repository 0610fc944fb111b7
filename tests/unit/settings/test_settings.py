from __future__ import annotations

import json
from dataclasses import fields
from ipaddress import ip_network
from pathlib import Path

import pytest
from pydantic import SecretStr

from control_plane.core.errors import StartupError
from control_plane.settings import (
    effective,
    from_plain,
    load_settings,
    to_plain,
)


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
        ("TIDEGATE_ALLOWED_HOSTS", "a_b.internal, ::1,[fe80::1]", "allowed_hosts", ["a_b.internal", "::1", "[fe80::1]"]),
        ("TIDEGATE_TRUSTED_PROXIES", "10.0.0.0/8, ::1", "trusted_proxies", [ip_network("10.0.0.0/8"), ip_network("::1/128")]),
        ("TIDEGATE_AUTHENTICATION", "true", "authentication", True),
        ("TIDEGATE_TRITON_CPUS", "", "triton_cpus", ()),
        ("TIDEGATE_MODEL_CPUS", "1-2", "model_cpus", (1, 2)),
        ("TIDEGATE_USAGE_SUMS", "1000", "usage_sums", 1000),
        ("TIDEGATE_USAGE_KEEP_DAYS", "400", "usage_keep_days", 400),
        ("TIDEGATE_EVENTS_KEEP", "5000", "events_keep", 5000),
        ("TIDEGATE_REQUEST_LOG", "/x/requests.jsonl", "request_log", Path("/x/requests.jsonl")),
        ("TIDEGATE_MODEL_PARAMETER", "a.b:k=v, a.b:l.m=x=y,c:k=", "model_parameter", {"a.b": {"k": "v", "l.m": "x=y"}, "c": {"k": ""}}),
    ],
)
def test_variables_are_read_as(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, name: str, expected: object) -> None:
    monkeypatch.setenv(variable, value)
    assert effective(load_settings())[name] == expected


def test_a_drain_is_as_long_as_the_longest_deadline_unless_it_is_set() -> None:
    assert load_settings({"request_timeout_s": 90}).gateway.longest_drain_s == 90
    assert load_settings({"request_timeout_s": 90, "drain_timeout_s": 0}).gateway.longest_drain_s == 0


@pytest.mark.parametrize("name", ["TIDEGATE_HTPP_PORT", "TIDEGATE_", "TIDEGATE_GATEWAY__HOST", "tidegate_htpp_port"])
def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(StartupError, match=f"unknown setting {name}\\b"):
        load_settings()


def test_a_misspelt_variable_is_told_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_HTPT_PORT", "1")
    with pytest.raises(StartupError, match=r"unknown setting TIDEGATE_HTPT_PORT \(did you mean TIDEGATE_HTTP_PORT\?\);"):
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
        ("allowed_hosts", "tidegate.internal:8000"),
        ("allowed_hosts", "https://tidegate.internal"),
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
        ("usage_keep_days", "0"),
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
        ("cache_bytes", "268,435,456"),
        ("cache_bytes", "-1"),
        ("max_body_bytes", "128 MiB of it"),
        ("warm_bytes", "0"),
        ("events_keep", "10"),
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


def test_every_number_of_bytes_may_be_written_with_its_unit() -> None:
    sizes = [name for name in effective(load_settings()) if "bytes" in name.split("_")]
    assert "cache_bytes" in sizes
    in_force = effective(load_settings(dict.fromkeys(sizes, "8MiB")))
    assert [in_force[name] for name in sizes] == [2**23] * len(sizes)


@pytest.mark.parametrize(
    ("name", "value"), [("memory_budget", "2Gi"), ("memory_budget", "lots"), ("warm_bytes", "64 gigs"), ("memory_budget", "2EiB")]
)
def test_who_miswrites_a_number_of_bytes_is_told_how_it_is_written(name: str, value: str) -> None:
    with pytest.raises(StartupError, match=rf"--{name.replace('_', '-')}: .*, such as 2GiB or 500MB, got '{value}'"):
        load_settings({name: value})


@pytest.mark.parametrize("pattern", ["(", "x{2,1}", "x(?!y)", "x(?=y)", r"(x)\1", "(?i)x"])
def test_a_pattern_that_triton_would_not_start_with_is_refused(pattern: str) -> None:
    with pytest.raises(StartupError, match=r"expected .*such as \^x-\(tenant"):
        load_settings({"header_forward_pattern": pattern})
    assert load_settings({"header_forward_pattern": "^x-(a|b)$"}).gateway.header_forward_pattern == "^x-(a|b)$"


@pytest.mark.parametrize("name", ["*.internal", "[::1]:8000", "::1:", "tidegate.internal/"])
def test_a_host_that_no_request_could_name_is_refused(name: str) -> None:
    with pytest.raises(StartupError, match=r"is no name of a host, such as tidegate\.internal"):
        load_settings({"allowed_hosts": ["tidegate.internal", name]})
