"""The command line and the admin API against a running tidegate."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from control_plane.host.state_dir import running_state_dirs
from tests.e2e.tidegate import LONG_S, PROJECT, Tidegate, run_cli


def admin(tidegate: Tidegate, method: str, path: str, **headers: str) -> tuple[int, Any]:
    request = urllib.request.Request(tidegate.endpoints["admin"] + path, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=LONG_S) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_admin_api_loads_and_unloads(tidegate: Tidegate) -> None:
    assert admin(tidegate, "GET", "/health/ready")[0] == 200
    assert admin(tidegate, "GET", "/version")[1]["version"]
    status, model = admin(tidegate, "POST", "/models/slow/unload")
    assert (status, model["name"]) == (200, "slow")
    status, model = admin(tidegate, "POST", "/models/slow/load")
    assert (status, model["state"], model["versions"]) == (200, "READY", ["1"])


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        pytest.param("GET", "/models/nowhere", 404, "model_not_found", id="unknown model"),
        pytest.param("POST", "/models/nowhere/load", 404, "model_not_found", id="load unknown"),
        pytest.param("POST", "/models/nowhere/unload", 404, "model_not_found", id="unload unknown"),
        pytest.param("POST", "/models/broken/load", 422, "load_failed", id="load broken"),
    ],
)
def test_admin_api_says_what_went_wrong(tidegate: Tidegate, method: str, path: str, status: int, code: str) -> None:
    found, body = admin(tidegate, method, path)
    assert (found, body["code"]) == (status, code)
    assert body["error"]


def test_admin_api_refuses_pages_of_other_sites(tidegate: Tidegate) -> None:
    assert admin(tidegate, "POST", "/models/slow/load", Origin="http://elsewhere.example")[0] == 403


def test_openapi_names_every_endpoint(tidegate: Tidegate) -> None:
    paths = admin(tidegate, "GET", "/openapi.json")[1]["paths"]
    assert {"/models", "/models/{name}", "/models/{name}/load", "/models/{name}/unload", "/health/live", "/version"} <= set(paths)


def test_models_list_shows_states(tidegate: Tidegate) -> None:
    listed = run_cli("models", "list", "--state-dir", str(tidegate.state_dir))
    lines = {line.split()[0]: line for line in listed.stdout.splitlines()[1:]}
    assert "READY" in lines["text_embedding"]
    assert "READY" not in lines["broken"]


def test_models_say_which_variant_is_served_and_why(tidegate: Tidegate) -> None:
    where = ("--state-dir", str(tidegate.state_dir))
    listed = run_cli("models", "list", *where).stdout
    (served,) = re.findall(r"^ *text_encoder +READY +1 +(\w+)", listed, re.MULTILINE)
    shown = run_cli("models", "show", "text_encoder", *where).stdout
    assert re.search(rf"^variant +{served} *$", shown, re.MULTILINE)
    # The others with their times.
    assert re.search(rf"^why +{served} \(.*\), not .*(fp32|int8) \(.* ms", shown, re.MULTILINE)
    assert "nowhere" in run_cli("models", "show", "nowhere", *where).stderr


def test_declared_objects_and_the_audit_log_of_them(tidegate: Tidegate, tmp_path: Path) -> None:
    where = ("--state-dir", str(tidegate.state_dir))
    file = tmp_path / "gateway.yaml"
    file.write_text("kind: Tenant\nname: declared\nspec: {burst: 5}\n---\nkind: Route\nname: declared\nspec: {model: echo}\n")
    assert (
        run_cli("apply", "-f", str(file), "--reason", "a first time", *where).stdout == "Tenant declared created\nRoute declared created\n"
    )
    assert run_cli("apply", "-f", str(file), *where).stdout == "Tenant declared unchanged\nRoute declared unchanged\n"
    assert run_cli("diff", "-f", str(file), *where).returncode == 0
    assert run_cli("get", "route", "declared", *where).stdout == "kind: Route\nname: declared\nspec:\n  model: echo\n"
    assert run_cli("delete", "-f", str(file), *where).returncode == 0
    exported = [json.loads(line)["change"] for line in run_cli("audit", "export", *where).stdout.splitlines()]
    told = [(change["action"], change["kind"], change["reason"]) for change in exported if change["name"] == "declared"]
    assert told == [
        ("create", "tenant", "a first time"),
        ("create", "route", "a first time"),
        ("delete", "route", ""),
        ("delete", "tenant", ""),
    ]
    assert run_cli("audit", "verify", *where).returncode == 0


def test_models_load_and_unload(tidegate: Tidegate) -> None:
    where = ("--state-dir", str(tidegate.state_dir))
    assert run_cli("models", "unload", "slow", *where).returncode == 0
    assert "READY" in run_cli("models", "load", "slow", *where).stdout
    assert "runs no fleet" in run_cli("models", "release", "slow", *where).stderr
    refused = run_cli("models", "load", "nowhere", *where)
    assert refused.returncode == 1
    assert "nowhere" in refused.stderr


def test_embed_does_the_main_job(tidegate: Tidegate, tmp_path: Path) -> None:
    where = ("--state-dir", str(tidegate.state_dir))
    assert "384 dimensions" in run_cli("embed", "some text", *where).stdout
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(f"line number {number}" for number in range(70)))
    assert "70 texts, 384 dimensions" in run_cli("embed", "--file", str(lines), *where).stdout


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_profile_says_where_the_time_of_a_request_goes(tidegate: Tidegate, tmp_path: Path, protocol: str) -> None:
    where = ("--state-dir", str(tidegate.state_dir), "--protocol", protocol, "--requests", "20")
    found = json.loads(run_cli("profile", "text_embedding", "-o", "json", *where).stdout)
    ms = {each["name"]: each["ms"] for each in found["stages"]}
    assert ms["text_encoder: computing"] > 0.1
    assert sum(ms.values()) == pytest.approx(found["total_ms"], rel=0.1)
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert (found["server"]["p50_ms"] > 0, found["concurrency"]) == (True, 1)
    crowd = json.loads(run_cli("profile", "text_embedding", "-o", "json", "--concurrency", "8", *where).stdout)
    assert (crowd["concurrency"], crowd["requests"]) == (8, 20)
    own = tmp_path / "request.json"
    own.write_text('{"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["always the same"]}]}')
    table = run_cli("profile", "text_embedding", "--data", str(own), *where)
    assert "all, at its client" in table.stdout
    own.write_text("[]")
    assert 'needs "inputs"' in run_cli("profile", "text_embedding", "--data", str(own), *where).stderr
    assert "nowhere' is not found" in (said := run_cli("profile", "nowhere", *where).stderr)
    assert "`tidegate models show nowhere`" in said


def test_commands_say_when_nobody_is_there(tmp_path: Path) -> None:
    done = run_cli("embed", "x", "--url", "http://127.0.0.1:9", "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert "is `tidegate serve` running there?" in done.stderr


def test_doctor_finds_a_working_machine(tidegate: Tidegate) -> None:
    done = run_cli("doctor", "--state-dir", str(tidegate.state_dir))
    assert done.returncode == 0, done.stdout
    for line in ("Python", "glibc", "embedded Triton", "model text_encoder", "shared memory", "GPU"):
        assert line in done.stdout


def test_config_show_follows_the_environment() -> None:
    shown = run_cli("config", "show", env={"TIDEGATE_HTTP_PORT": "8123"}).stdout
    assert re.search(r"TIDEGATE_HTTP_PORT +8123", shown)
    refused = run_cli("config", "show", env={"TIDEGATE_HTPP_PORT": "1"})
    assert "unknown setting TIDEGATE_HTPP_PORT" in refused.stderr


def test_without_being_told_a_command_finds_what_this_user_runs(tidegate: Tidegate) -> None:
    listed = run_cli("models", "list")
    running = running_state_dirs()
    assert tidegate.state_dir in running
    if len(running) == 1:
        assert (listed.returncode, "text_embedding" in listed.stdout) == (0, True)
    elif PROJECT / ".state" not in running:  # others on this machine
        assert (listed.returncode, str(tidegate.state_dir) in listed.stderr) == (1, True)
